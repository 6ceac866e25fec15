"""FLOPs by formula against torch's counter on meta, and the table of what a model costs."""

from io import StringIO

import pytest
import torch
from rich.console import Console
from tiny_models import Model, example, tiny_model
from torch.utils.flop_counter import FlopCounterMode

from saccade import create_model, list_attentions, list_models, model_summary
from saccade.models import count_flops


def counted_flops(model: Model, x: torch.Tensor) -> int:
    with FlopCounterMode(display=False) as counter:
        model(x)
    return counter.get_total_flops()


def meta_model(name: str, attention: str | None = None, **overrides: object) -> Model:
    with torch.device("meta"):
        return create_model(name, attention, **overrides).eval()


def one_sample(model: Model) -> torch.Tensor:
    with torch.device("meta"):
        return example(model, batch_size=1)


@pytest.mark.parametrize("attention", list_attentions())
@pytest.mark.parametrize("name", ["hybrid_cifar", "taylorshift_imdb", "taylorir_small"])
def test_formula_is_what_torch_counts_for_every_attention(name: str, attention: str) -> None:
    model = meta_model(name, attention, depth=2)
    assert sum(count_flops(model).values()) == counted_flops(model, one_sample(model))


@pytest.mark.parametrize("name", list_models())
def test_formula_is_what_torch_counts_for_every_model(name: str) -> None:
    model = meta_model(name)
    assert sum(count_flops(model).values()) == counted_flops(model, one_sample(model))


@pytest.mark.parametrize("N0", [-1, 2**64])
def test_taylor_counts_the_form_that_runs(N0: int) -> None:
    model = meta_model("taylorir_small")
    model.N0 = N0
    assert sum(count_flops(model).values()) == counted_flops(model, one_sample(model))


def test_efficient_form_is_linear_and_direct_form_quadratic() -> None:
    model = meta_model("taylorshift_imdb", depth=1)

    def growth(N0: int) -> float:
        model.N0 = N0
        core = model.blocks[0].attn.core
        return core.flops(8000) / core.flops(4000)

    assert growth(-1) == 2
    assert growth(2**64) == 4


@pytest.mark.parametrize(
    "overrides",
    [
        {"global_pool": "map"},
        {"stem": "conv_patch", "patch_size": 4},
        {"head_hidden_dim": 40, "head_dim": 8},
        {"stem": "patch_linear", "img_size": (32, 64)},
    ],
    ids=str,
)
def test_formula_is_what_torch_counts_for_other_parts(overrides: dict[str, object]) -> None:
    model = meta_model("vit_micro_patch4_32", **overrides)
    assert sum(count_flops(model).values()) == counted_flops(model, one_sample(model))


def test_image_models_have_no_sequence_length() -> None:
    with pytest.raises(ValueError, match="seq_len must be None for an image model, got 5"):
        count_flops(meta_model("light_vit"), seq_len=5)


@pytest.mark.parametrize("name", list_models())
def test_summary_accounts_for_every_parameter(name: str) -> None:
    model = meta_model(name)
    summary = model_summary(model)
    assert summary.params == sum(p.numel() for p in model.parameters())
    assert summary.flops == sum(count_flops(model).values())
    assert all(part.shape for part in summary.parts)
    assert summary.parts[-1].shape == (1, model.config.num_classes)


@pytest.mark.parametrize("attention", list_attentions())
def test_activation_memory_is_what_a_real_step_keeps(attention: str) -> None:
    model = tiny_model("vit_cifar", attention, depth=2, global_pool="map")
    known = {tensor.untyped_storage().data_ptr() for tensor in model.state_dict().values()}
    kept: dict[int, torch.UntypedStorage] = {}

    def keep(tensor: torch.Tensor) -> torch.Tensor:
        kept.setdefault(tensor.untyped_storage().data_ptr(), tensor.untyped_storage())
        return tensor

    with torch.autograd.graph.saved_tensors_hooks(keep, lambda tensor: tensor):
        logits = model(example(model, batch_size=3))
    expected = sum(storage.nbytes() for address, storage in kept.items() if address not in known)
    assert logits.shape == (3, 3)
    assert model_summary(model, batch_size=3).activation_bytes == expected


def test_checkpointing_keeps_the_inputs_of_blocks_only() -> None:
    model = tiny_model("taylorir_small", depth=3, pos_drop_rate=0.0)
    before = model_summary(model).activation_bytes
    model.set_grad_checkpointing()
    summary = model_summary(model)
    rows = {part.name: part.activation_bytes for part in summary.parts}
    blocks = rows["positions"] + sum(size for name, size in rows.items() if "blocks" in name)
    assert blocks == 3 * (7 * 16 * 4)
    assert summary.activation_bytes < before / 2


def test_summary_prints_as_a_table() -> None:
    summary = model_summary(tiny_model("light_vit"), batch_size=4)
    stream = StringIO()
    Console(file=stream, width=110).print(summary)
    assert stream.getvalue() == str(summary)
    for text in ("light_vit, softmax, batch of 4", "blocks.0.attn", "4 x 7 x 16", "total"):
        assert text in str(summary)
