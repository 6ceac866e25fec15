"""ONNX files against torch in float64, for every attention; and what is refused."""

import copy
import json
from pathlib import Path
from typing import Any

import numpy as np
import onnx
import pytest
import torch
from numpy.typing import NDArray

from saccade.errors import ConfigError, ExportError
from saccade.export import ExportOptions, export_onnx
from saccade.export.algorithm import choose_algorithm
from saccade.export.graph import samples
from saccade.export.onnx_file import build_onnx, session_of
from saccade.layers import MultiHeadAttention
from saccade.layers.cores import SoftmaxCore
from saccade.ops.backends import is_plain, plain_operators
from tests.export.models import forms, image_model, sequence_model, with_every_attention

ALL = pytest.mark.parametrize(("attention", "algorithm"), forms())


def run(proto: onnx.ModelProto, *inputs: torch.Tensor) -> list[NDArray[Any]]:
    session = session_of(proto)
    names = [value.name for value in session.get_inputs()]
    return session.run(None, {name: x.numpy() for name, x in zip(names, inputs, strict=True)})


@torch.no_grad()
def exact(model: Any, x: torch.Tensor, *masks: torch.Tensor) -> NDArray[Any]:
    """The logits in float64, on the ordinary path."""
    assert not is_plain()
    wide = copy.deepcopy(model).double()
    return wide(x.double() if x.is_floating_point() else x, *masks).numpy()


def assert_equal(proto: onnx.ModelProto, model: Any, limit: float, **options: Any) -> None:
    for batch in (1, 2, 5):
        inputs = samples(model, batch, seed=40 + batch, **options)
        found = run(proto, *inputs)[0]
        expected = exact(model, *inputs)
        assert found.shape == expected.shape
        scale = max(1.0, np.abs(expected).max()) if limit > 1e-3 else 1.0
        assert np.abs(found - expected).max() <= limit * scale


@ALL
def test_no_graph_holds_the_number_of_tokens_fast(attention: str, algorithm: str) -> None:
    """torch refuses to trace where the code makes a constant of a dynamic size."""
    options = {} if algorithm == "auto" else {"algorithm": algorithm}
    layer = MultiHeadAttention(8, 2, attention, attention_options=options).eval()
    longest = getattr(layer.core, "max_tokens", 1 << 20)
    tokens = torch.export.Dim("tokens", min=2, max=longest - 1)
    with plain_operators(), torch.no_grad():
        found = torch.export.export(
            layer, (torch.randn(1, 9, 8),), dynamic_shapes=({1: tokens},), strict=False
        )
    x = torch.randn(1, 5, 8)
    torch.testing.assert_close(found.module()(x), layer(x))


@pytest.mark.parametrize("precision", [pytest.param("fp32", marks=pytest.mark.slow), "fp16"])
def test_images_through_every_attention(precision: str) -> None:
    """All in one model, because every export takes seconds; one by one they are slow tests.

    The float32 graph of images is held to float64 in `test_pt2_through_every_attention`, and its
    operators as ONNX in float32 in `test_sequences_through_every_attention`.
    """
    model = with_every_attention(image_model)
    checked = build_onnx(model, ExportOptions(precision=precision))
    assert_equal(checked.proto, model, {"fp32": 1e-4, "fp16": 5e-3}[precision])


def test_sequences_through_every_attention() -> None:
    model = with_every_attention(sequence_model)
    proto = build_onnx(model, ExportOptions(dynamic_size=True)).proto
    assert_equal(proto, model, 1e-4)
    assert_equal(proto, model, 1e-4, size=5)


@pytest.mark.slow
@ALL
@pytest.mark.parametrize("precision", ["fp32", "fp16"])
def test_images(attention: str, algorithm: str, precision: str) -> None:
    model = image_model(attention)
    checked = build_onnx(model, ExportOptions(precision=precision, algorithm=algorithm))
    assert_equal(checked.proto, model, {"fp32": 1e-4, "fp16": 5e-3}[precision])
    assert checked.max_error <= {"fp32": 1e-4, "fp16": 5e-3}[precision]
    kinds = {x.data_type for x in checked.proto.graph.initializer if len(x.dims) == 2}
    assert onnx.TensorProto.FLOAT16 in kinds or precision == "fp32"


@pytest.mark.slow
@ALL
def test_sequences_with_a_mask_and_of_other_lengths(attention: str, algorithm: str) -> None:
    model = sequence_model(attention)
    options = ExportOptions(algorithm=algorithm, dynamic_size=True)
    proto = build_onnx(model, options).proto
    assert_equal(proto, model, 1e-4)
    assert_equal(proto, model, 1e-4, size=5)


@pytest.mark.parametrize("attention", ["softmax", "taylorshift"])
def test_shifted_windows_and_maps(attention: str) -> None:
    model = image_model(attention, depth=2, window=3, shifted=True)
    proto = build_onnx(model, ExportOptions(maps=(-1, 0))).proto
    assert_equal(proto, model, 1e-4)
    (x,) = samples(model, 2, seed=3)
    _, first, last = run(proto, x)
    assert [value.name for value in proto.graph.output] == ["logits", "map_0", "map_1"]
    np.testing.assert_allclose(first.sum(-1), 1, atol=1e-5)
    assert first.shape == last.shape == (2, 2, 17, 17)


@pytest.mark.parametrize(
    ("positions", "attention"),
    [
        ("learned", "taylorshift"),
        ("sinusoidal_1d", "softmax"),
        ("sinusoidal_2d", "performer"),
        ("none", "taylor"),
    ],
)
def test_images_of_other_sizes(positions: str, attention: str) -> None:
    model = image_model(attention, pos_embed=positions, img_size=(16, 24))
    proto = build_onnx(model, ExportOptions(dynamic_size=True)).proto
    model.patch_embed.strict_img_size = False
    assert_equal(proto, model, 1e-4)
    assert_equal(proto, model, 1e-4, size=(28, 20))


def test_a_fixed_size_is_fixed_and_the_batch_is_not() -> None:
    proto = build_onnx(image_model(img_size=(16, 24), global_pool="map"), ExportOptions()).proto
    (images,) = proto.graph.input
    sizes = [dim.dim_param or dim.dim_value for dim in images.type.tensor_type.shape.dim]
    assert sizes == ["batch", 3, 16, 24]


def operators(proto: onnx.ModelProto) -> set[str]:
    return {node.op_type for node in proto.graph.node}


@pytest.mark.parametrize("opset", [18, 20, 23])
def test_opsets(opset: int) -> None:
    model = image_model()
    proto = build_onnx(model, ExportOptions(opset=opset)).proto
    assert proto.opset_import[0].version == opset
    assert ("Attention" in operators(proto)) == (opset == 23)
    assert_equal(proto, model, 1e-4)


def test_fp16_sums_in_float32() -> None:
    model = image_model("softmax", global_pool="avg", class_token=False)
    proto = build_onnx(model, ExportOptions(precision="fp16")).proto
    inferred = onnx.shape_inference.infer_shapes(proto).graph
    kinds = {x.name: x.type.tensor_type.elem_type for x in inferred.value_info}
    sums = [node for node in inferred.node if node.op_type in {"Softmax", "ReduceMean"}]
    assert len(sums) >= 2
    assert {kinds[node.input[0]] for node in sums} == {onnx.TensorProto.FLOAT}
    assert [x.type.tensor_type.elem_type for x in (*proto.graph.input, *proto.graph.output)] == [
        onnx.TensorProto.FLOAT
    ] * 2


def test_the_algorithm_follows_the_number_of_tokens() -> None:
    short, long = image_model("taylor"), image_model("taylor", img_size=128)
    assert choose_algorithm(short, "auto").algorithm == "direct"
    chosen = choose_algorithm(long, "auto")
    assert chosen.algorithm == "efficient"
    assert "1025 tokens >" in chosen.reason
    with pytest.raises(ConfigError, match="algorithm must be 'auto' for attention 'softmax'"):
        choose_algorithm(image_model(), "direct")


def test_the_file_says_what_it_is(tmp_path: Path) -> None:
    model = image_model("taylor", class_names=tuple("abcde"))
    report = export_onnx(model, tmp_path / "model.onnx")
    proto = onnx.load(report.path)
    facts = {x.key.partition(".")[2]: json.loads(x.value) for x in proto.metadata_props}
    assert facts["class_names"] == list("abcde")
    assert facts["preprocessing"]["image_size"] == [16, 16]
    assert facts["preprocessing"]["mean"] == list(model.config.mean)
    assert facts["model"]["attention"] == "taylor"
    assert facts["model"]["algorithm"] == "direct"
    assert facts["model"]["max_error"] == report.max_error <= 1e-4
    assert facts["provenance"]["saccade"]
    assert report.num_bytes == report.path.stat().st_size
    assert report.algorithm.startswith("direct: 17 tokens <=")
    with pytest.raises(ConfigError, match="out must be a new file"):
        export_onnx(model, report.path)
    with pytest.raises(ConfigError, match=r"out must be a file named \*\.onnx"):
        export_onnx(model, tmp_path / "model.pt")


class Planted(SoftmaxCore):
    """Wrong by one per cent in an exported graph alone."""

    factor = 1.01

    def attend(self, *args: Any, **kwargs: Any) -> torch.Tensor:
        out = super().attend(*args, **kwargs)
        return out * self.factor if is_plain() else out


class PlantedNan(Planted):
    factor = float("nan")


class PlantedGelu(torch.nn.GELU):
    def forward(self, x: torch.Tensor) -> torch.Tensor:
        return super().forward(x) + (0.01 if is_plain() else 0.0)


@pytest.mark.parametrize("core", [Planted, PlantedNan])
def test_a_wrong_attention_is_refused_by_its_layer(core: type[Planted], tmp_path: Path) -> None:
    model = image_model(depth=3)
    model.blocks[1].attn.core = core(2, 8)
    with pytest.raises(ExportError, match=r"to 0.0001 \(fp32\), .* in layer 'blocks.1.attn'"):
        export_onnx(model, tmp_path / "model.onnx")
    assert list(tmp_path.iterdir()) == []


def test_a_wrong_mlp_is_refused_by_its_layer(tmp_path: Path) -> None:
    model = image_model(depth=2)
    model.blocks[0].mlp.act = PlantedGelu()
    with pytest.raises(ExportError, match=r"begins in layer 'blocks\.0\.mlp'"):
        export_onnx(model, tmp_path / "model.onnx")


class Branching(SoftmaxCore):
    def attend(self, q: torch.Tensor, *args: Any, **kwargs: Any) -> torch.Tensor:
        if float(q.sum()) > 0:
            q = 2 * q
        return super().attend(q, *args, **kwargs)


class Obstructed(SoftmaxCore):
    export_obstacle = "it sorts its keys into buckets"


@pytest.mark.parametrize(
    ("core", "reason"), [(Branching, "data-dependent"), (Obstructed, "it sorts its keys")]
)
def test_an_attention_without_a_graph_is_refused_with_the_reason(
    core: type[SoftmaxCore], reason: str, capfd: pytest.CaptureFixture[str]
) -> None:
    model = image_model()
    model.blocks[0].attn.core = core(2, 8)
    with pytest.raises(ExportError, match=f"attention 'softmax'.* cannot be exported: .*{reason}"):
        build_onnx(model, ExportOptions())
    assert capfd.readouterr() == ("", "")


def test_options_that_cannot_be_are_refused() -> None:
    with pytest.raises(ConfigError, match="opset must be an integer from 18 to 23, got 99"):
        ExportOptions(opset=99)
    with pytest.raises(ConfigError, match="unknown precision 'fp8'"):
        ExportOptions(precision="fp8")
    with pytest.raises(ConfigError, match="maps must name blocks from 0 to 0"):
        build_onnx(image_model(), ExportOptions(maps=(1,)))
    with pytest.raises(ConfigError, match="dynamic_size must be False for attention within"):
        build_onnx(image_model(window=2), ExportOptions(dynamic_size=True))


def test_the_plain_path_is_chosen_by_its_context_alone() -> None:
    model = image_model("taylor")
    before = torch.export.export(model, samples(model, 2), strict=False)
    with plain_operators():
        during = torch.export.export(model, samples(model, 2), strict=False)
    named = [str(node.target) for node in before.graph.nodes]
    assert any("saccade" in name for name in named)
    assert not any("saccade" in str(node.target) for node in during.graph.nodes)
    assert not is_plain()
