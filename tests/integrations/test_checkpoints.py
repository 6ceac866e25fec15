"""Weights of other libraries: the same logits here, and back to the same bytes there."""

import pickle
import sys
from pathlib import Path

import pytest
import torch
from safetensors.torch import save_file

from saccade import TaylorShiftTransformer, TaylorShiftViT, create_model
from saccade.errors import ConfigError
from saccade.integrations import (
    detect_layout,
    from_layout,
    load_checkpoint,
    read_checkpoint,
    to_layout,
)
from tests.integrations.tiny import enlarged, images, timm_model, vision_model

sys.path.append(str(Path(__file__).parents[1] / "models"))
import published as pub
import published_vits as vits

SIZES = {"img_size": 32, "patch_size": 8, "embed_dim": 32, "depth": 2, "num_heads": 2}


def ours(attention="softmax", **options):
    return create_model(
        "vit_tiny_patch16_224", attention, num_classes=5, **{**SIZES, **options}
    ).eval()


def older(state):
    """The keys of transformers 4, as written in files on the Hub."""
    names = {
        "layers.": "encoder.layer.",
        "attention.q_proj": "attention.attention.query",
        "attention.k_proj": "attention.attention.key",
        "attention.v_proj": "attention.attention.value",
        "attention.o_proj": "attention.output.dense",
        "mlp.fc1": "intermediate.dense",
        "mlp.fc2": "output.dense",
    }
    found = {}
    for key, tensor in state.items():
        for new, old in names.items():
            key = key.replace(new, old)
        found[key] = tensor
    return found


def test_timm_vit():
    theirs = timm_model(init_values=0.5)
    model = ours(init_values=0.5)
    assert load_checkpoint(model, theirs.state_dict()).layout == "timm"
    torch.testing.assert_close(model(images()), theirs(images()), rtol=1e-5, atol=1e-5)
    back = to_layout(model.state_dict(), "timm")
    assert back.keys() == theirs.state_dict().keys()


@pytest.mark.parametrize("layout", ["transformers", "transformers4"])
def test_transformers_vit(layout):
    theirs = vision_model("ViT")
    state = theirs.state_dict()
    given = state if layout == "transformers" else older(state)
    model = ours(mlp_hidden_dim=64, norm_eps=1e-12)
    assert load_checkpoint(model, given).layout == layout
    expected = theirs(images()).logits
    torch.testing.assert_close(model(images()), expected, rtol=1e-5, atol=1e-5)
    back = to_layout(model.state_dict(), layout)
    assert back.keys() == given.keys()
    assert all(torch.equal(back[key], given[key]) for key in given)
    theirs.load_state_dict(to_layout(model.state_dict(), "transformers"))


def test_a_swapped_transformers_vit_keeps_its_temperatures():
    from saccade.integrations import swap_attention

    theirs = vision_model("ViT")
    swap_attention(theirs, "taylorshift")
    with torch.no_grad():
        theirs.vit.layers[1].attention.saccade_core.temperature.fill_(2.5)
    model = ours("taylorshift", mlp_hidden_dim=64, norm_eps=1e-12)
    assert load_checkpoint(model, theirs.state_dict()).own == ()
    expected = theirs(images()).logits
    torch.testing.assert_close(model(images()), expected, rtol=1e-4, atol=1e-4)


def test_published_taylorshift_vit():
    weights = pub.taylorshift_shapes(12, 2, 3, 24, 5)
    weights |= pub.linear_shapes("patch_embed.proj", 1, 12) | {
        "patch_embed.proj.weight": (12, 3, 4, 4),
        "pos_embed": (1, 4, 12),
    }
    w = pub.random_weights(weights)
    sizes = {"embed_dim": 12, "depth": 2, "num_heads": 3, "mlp_ratio": 2.0, "num_classes": 5}
    model = TaylorShiftViT(8, patch_size=4, **sizes).double().eval()
    done = load_checkpoint(model, w)
    assert (done.layout, done.own) == ("taylorshift", ())
    x = torch.randn(2, 3, 8, 8, dtype=torch.float64)
    expected = pub.taylorshift_vit(w, x, 3, 2, patch=4)
    torch.testing.assert_close(model(x), expected, rtol=1e-9, atol=1e-9)
    back = to_layout(model.state_dict(), "taylorshift")
    assert all(torch.equal(back[key], w[key]) for key in w)


def test_published_taylorshift_sequences():
    shapes = pub.taylorshift_shapes(12, 2, 3, 48, 5) | pub.linear_shapes("patch_embed", 7, 12)
    w = pub.random_weights(shapes)
    model = TaylorShiftTransformer(40, 7, embed_dim=12, depth=2, num_heads=3, num_classes=5)
    model = model.double().eval()
    load_checkpoint(model, w)
    x = torch.randn(2, 33, 7, dtype=torch.float64)
    expected = pub.taylorshift_transformer(w, x, 3, 2)
    torch.testing.assert_close(model(x), expected, rtol=1e-5, atol=1e-5)
    back = to_layout(model.state_dict(), "taylorshift")
    assert all(torch.equal(back[key], w[key]) for key in w)


def test_vit_from_scratch():
    w = pub.random_weights(vits.vit_from_scratch_shapes(48, 4, 192, 4, 64))
    model = create_model("vit_micro_patch4_32", final_norm=False).double().eval()
    assert load_checkpoint(model, w).layout == "vit-from-scratch"
    x = torch.randn(2, 3, 32, 32, dtype=torch.float64)
    expected = vits.vit_from_scratch(w, x, 4, 4)
    torch.testing.assert_close(model(x), expected, rtol=1e-9, atol=1e-9)
    back = to_layout(model.state_dict(), "vit-from-scratch")
    assert all(torch.equal(back[key], w[key]) for key in w)


def test_a_softmax_file_fills_a_model_with_another_attention():
    model = ours("taylorshift")
    done = load_checkpoint(model, timm_model().state_dict())
    assert done.own == tuple(f"blocks.{i}.attn.core.temperature" for i in (0, 1))
    with pytest.raises(ConfigError, match=r"state must have no 'blocks\.0\.attn\.core"):
        to_layout(model.state_dict(), "timm")


def test_a_swapped_pair_of_q_and_k_is_caught():
    """Planted error: k before q."""
    theirs = vision_model("ViT")
    state = theirs.state_dict()
    wrong = {
        k.replace("q_proj", "x").replace("k_proj", "q_proj").replace("x", "k_proj")
        if "_proj" in k
        else k: v
        for k, v in state.items()
    }
    model = ours(mlp_hidden_dim=64, norm_eps=1e-12)
    load_checkpoint(model, wrong)
    assert (model(images()) - theirs(images()).logits).norm() > 1e-3


@pytest.mark.parametrize("nested", ["", "model", "state_dict"])
@pytest.mark.parametrize("kind", ["safetensors", "pt"])
def test_both_kinds_of_file(kind, nested, tmp_path):
    state = {k: v.clone() for k, v in enlarged(ours()).state_dict().items()}
    path = tmp_path / f"weights.{kind}"
    if kind == "safetensors":
        save_file(state, path)
    else:
        torch.save({nested: state, "epoch": 3} if nested else state, path)
    found = read_checkpoint(path)
    assert found.keys() == state.keys()
    assert all(torch.equal(found[key], state[key]) for key in state)


class Harmful:
    def __reduce__(self):
        return (Path.touch, (Path("pwned"),))


def test_a_pickle_that_runs_code_is_refused(tmp_path, monkeypatch):
    monkeypatch.chdir(tmp_path)
    for name, write in (
        ("a.pt", lambda p: torch.save({"x": Harmful()}, p)),
        ("b.bin", lambda p: p.write_bytes(pickle.dumps(Harmful()))),
    ):
        path = tmp_path / name
        write(path)
        with pytest.raises(ConfigError, match="must be a safetensors file or a PyTorch file") as e:
            read_checkpoint(path)
        assert "\n" not in str(e.value)
    assert not (tmp_path / "pwned").exists()


@pytest.mark.parametrize(
    ("content", "words"),
    [
        (None, "No such file"),
        (b"", "weights"),
        (b"hello, this is a text\n", "weights"),
        (b"\x08\0\0\0\0\0\0\0{broken}", "weights"),
    ],
)
def test_other_files_are_one_line(content, words, tmp_path):
    path = tmp_path / "weights.pt"
    if content is not None:
        path.write_bytes(content)
    with pytest.raises(ConfigError, match=words) as caught:
        read_checkpoint(path)
    assert "\n" not in str(caught.value)


def test_weights_that_do_not_fit_are_one_line():
    with pytest.raises(ConfigError, match=r"got 5 differences: no 'blocks\.0\.ls1\.gamma'"):
        load_checkpoint(ours(init_values=0.1, img_size=64), timm_model().state_dict())
    with pytest.raises(ConfigError, match="weights must have one of the layouts"):
        detect_layout({"conv1.weight": torch.zeros(1)})
    with pytest.raises(ConfigError, match="weights must have q, k and v of"):
        from_layout({"layers.0.attention.q_proj.weight": torch.zeros(2, 2)})
    state = vision_model("ViT").state_dict() | {"vit.layers.0.novel.weight": torch.zeros(1)}
    with pytest.raises(ConfigError, match=r"must not have 'vit\.layers\.0\.novel\.weight'"):
        from_layout(state)
