"""What timm's users expect of a model, beyond its numbers."""

import copy
import pickle
from collections.abc import Callable, Sequence
from functools import partial

import pytest
import torch
from tiny_models import example, tiny_model
from torch import nn

from saccade import create_model, list_attentions
from saccade.errors import ConfigError
from saccade.layers import ATTENTIONS
from saccade.layers.block import Block
from saccade.layers.positions import resample_grid_positions
from saccade.models import VisionTransformer, ViTConfig
from saccade.models.config import override


@pytest.mark.parametrize("attention", list_attentions())
def test_checkpointing_changes_no_gradient(attention: str) -> None:
    torch.manual_seed(0)
    model = tiny_model("vit_cifar", attention, depth=2)  # with dropout, which must repeat itself
    x = example(model)
    gradients = []
    for enable in (False, True):
        model.set_grad_checkpointing(enable)
        torch.manual_seed(1)
        gradients.append(torch.autograd.grad(model(x).square().sum(), list(model.parameters())))
    torch.testing.assert_close(*gradients)


def test_checkpointing_runs_blocks_twice() -> None:
    model = tiny_model("vit_cifar", depth=2)
    calls = []
    model.blocks[0].norm1.register_forward_hook(lambda *_: calls.append(1))
    model(example(model)).sum().backward()
    assert len(calls) == 1
    model.set_grad_checkpointing()
    model(example(model)).sum().backward()
    assert len(calls) == 3


@pytest.mark.parametrize("head_hidden_dim", [None, 12])
def test_reset_classifier(head_hidden_dim: int | None) -> None:
    model = tiny_model("vit_cifar", head_hidden_dim=head_hidden_dim, class_names=("a", "b", "c"))
    x = example(model)
    model.reset_classifier(7)
    assert model.get_classifier() is model.head
    assert model(x).shape == (2, 7)
    assert (model.config.num_classes, model.config.class_names) == (7, None)
    model.reset_classifier(0)
    assert isinstance(model.get_classifier(), nn.Identity)
    assert model(x).shape == (2, 16)


@pytest.mark.parametrize("pool", ["avg", "map", "token"])
def test_reset_classifier_changes_the_pooling(pool: str) -> None:
    model = tiny_model("vit_cifar").double()
    model.reset_classifier(3, global_pool=pool)
    assert model(example(model).double()).shape == (2, 3)
    assert (model.attn_pool is not None) == (pool == "map")


def test_average_pooling_averages_patches_without_the_class_token() -> None:
    model = tiny_model("vit_cifar", global_pool="avg").eval()
    tokens = torch.randn(2, 7, 16)
    expected = model.head(model.fc_norm(tokens[:, 1:].mean(1)))
    torch.testing.assert_close(model.forward_head(tokens), expected)


def test_weight_decay_spares_tokens_positions_and_temperatures() -> None:
    model = tiny_model("taylorshift_vit_na_patch16_224", depth=2)
    assert model.no_weight_decay() == {
        "cls_token",
        "pos_embed",
        "blocks.0.attn.core.temperature",
        "blocks.1.attn.core.temperature",
    }


def test_weight_decay_spares_the_pooling_query_and_keeps_matrices() -> None:
    model = tiny_model("performer_ftheta_cifar", global_pool="map")
    spared = model.no_weight_decay()
    assert "attn_pool.latent" in spared
    assert not {"blocks.0.attn.core.w1", "blocks.0.attn.qkv.weight"} & spared


@pytest.mark.parametrize(
    "attention", [name for name in list_attentions() if not ATTENTIONS[name].self_only]
)
def test_windows_for_every_attention(attention: str) -> None:
    """A patch far from a changed one notices only through the class token, one block later."""
    torch.manual_seed(0)
    options = {"img_size": (8, 12), "patch_size": 1, "feature_seed": 0}
    model = tiny_model("light_vit", attention, window=4, depth=1, **options).eval()
    x = torch.randn(1, 1, 8, 12)
    other = x.clone()
    other[..., 0, 0] += 1
    changed = (model.forward_features(other) != model.forward_features(x)).any(-1)[0]
    rows = torch.arange(96) // 12
    in_window = (rows < 4) & (torch.arange(96) % 12 < 4)
    assert changed[0]
    assert torch.equal(changed[1:], in_window)


def test_shifted_windows_alternate() -> None:
    options = {"img_size": 8, "patch_size": 1, "depth": 4}
    model = tiny_model("light_vit", window=4, shifted=True, **options)
    assert [block.attn.shifted for block in model.blocks] == [False, True, False, True]
    model.set_input_size((8, 16))
    assert model(torch.randn(2, 1, 8, 16)).shape == (2, 3)


def test_other_channels_drop_the_normalization() -> None:
    assert create_model("vit_cifar", depth=1, in_chans=1).config.mean == (0.5,)
    assert create_model("vit_cifar", depth=1, in_chans=1, mean=(0.1,)).config.mean == (0.1,)


def test_another_attention_drops_the_options_of_the_old_one() -> None:
    config = ViTConfig(attention="taylor", attention_options={"N0": 5}, feature_seed=1)
    assert override(config, {"depth": 1}).attention_options == {"N0": 5}
    assert override(config, {"attention": "taylor"}).attention_options == {"N0": 5}
    assert override(config, {"attention": "performer"}).attention_options == {}
    given = {"attention": "performer", "attention_options": {"num_features": 8}}
    assert override(config, given).attention_options == {"num_features": 8}


def test_attention_dropout_of_a_variant_is_for_attentions_with_weights() -> None:
    """Given by the user it is refused where there are none; the variant's own is left out."""
    rates = {name: tiny_model("taylorir_small", name).config.attn_drop_rate for name in ATTENTIONS}
    weighted = {"softmax", "taylor", "taylorshift"}
    assert rates == {name: 0.1 if name in weighted else 0.0 for name in ATTENTIONS}
    with pytest.raises(ConfigError, match="no weights to drop"):
        tiny_model("taylorir_small", "performer", attn_drop_rate=0.1)


def test_norm_eps_reaches_every_layer_norm() -> None:
    options = {"depth": 2, "global_pool": "map", "norm_eps": 0.125}
    models = [tiny_model(name, **options) for name in ("vit_cifar", "taylorshift_imdb")]
    models.append(tiny_model("vit_cifar", global_pool="avg", norm_eps=0.125))
    for model in models:
        norms = [module for module in model.modules() if isinstance(module, torch.nn.LayerNorm)]
        assert len(norms) == 2 * len(model.blocks) + 1 + (model.attn_pool is not None)
        assert {norm.eps for norm in norms} == {0.125}


def test_images_of_another_size_keep_the_class_token_without_a_position() -> None:
    model = tiny_model("taylorshift_vit_na_patch16_224").eval()
    torch.nn.init.normal_(model.pos_embed)
    assert model.pos_embed.shape == (1, 6, 16)
    before = model.pos_embed.detach().clone()
    model.set_input_size((64, 96))
    assert model.pos_embed.shape == (1, 24, 16)
    x = torch.randn(2, 3, 64, 96)
    torch.testing.assert_close(model.embed(x)[:, :1], model.cls_token.expand(2, -1, -1))
    torch.testing.assert_close(model.embed(x)[:, 1:], model.patch_embed(x) + model.pos_embed)
    expected = resample_grid_positions(before, (2, 3), (4, 6))
    torch.testing.assert_close(model.pos_embed.detach(), expected)


@pytest.mark.parametrize("dtype", [torch.bfloat16, torch.float64])
def test_other_dtypes(dtype: torch.dtype) -> None:
    model = tiny_model("taylorir_small").to(dtype)
    logits = model(example(model).to(dtype))
    assert logits.dtype == dtype
    assert logits.isfinite().all()


def test_empty_batch() -> None:
    model = tiny_model("vit_cifar").eval()
    assert model(example(model, batch_size=0)).shape == (0, 3)


@pytest.mark.parametrize("attention", list_attentions())
def test_autocast(attention: str) -> None:
    torch.manual_seed(0)
    model = tiny_model("taylorir_small", attention, depth=2, init_values=0.1, global_pool="map")
    x = example(model)
    with torch.autocast("cpu", torch.bfloat16):
        logits = model(x)
    logits.float().sum().backward()
    torch.testing.assert_close(logits.float(), model(x), rtol=0.05, atol=0.02)
    assert all(p.grad.isfinite().all() for p in model.parameters() if p.grad is not None)


@pytest.mark.parametrize("name", ["taylorir_small", "taylorshift_imdb", "performer_cifar"])
def test_copies_and_pickles(name: str) -> None:
    model = tiny_model(name).eval()
    x = example(model)
    for other in (copy.deepcopy(model), pickle.loads(pickle.dumps(model))):
        assert torch.equal(other(x), model(x))
        assert other.config == model.config


def test_blocks_share_their_compilations(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(torch, "compile", partial(torch.compile, backend="aot_eager"))
    torch._dynamo.reset()
    model = tiny_model("vit_cifar", depth=6, drop_path_rate=0.1).train()
    x = example(model)
    torch.manual_seed(0)
    expected = model(x)
    model.set_compiled()
    counters = torch._dynamo.utils.counters["stats"]
    before = counters["unique_graphs"]
    torch.manual_seed(0)
    torch.testing.assert_close(model(x), expected)
    # The stem, the first block, the second, since the first one's drop path is off, one that serves
    # all others, the head.
    assert counters["unique_graphs"] - before == 5


def test_models_of_one_process_are_compiled_apart(monkeypatch: pytest.MonkeyPatch) -> None:
    """Variants of one function would hold sizes open, which makes slower kernels, or run out."""
    shapes: list[tuple[object, ...]] = []

    def backend(
        graph: torch.fx.GraphModule, inputs: Sequence[object], options: object
    ) -> Callable[..., object]:
        shapes.append(tuple(x.shape for x in inputs if isinstance(x, torch.Tensor)))
        return graph.forward

    monkeypatch.setattr(torch, "compile", partial(torch.compile, backend=backend))
    torch._dynamo.reset()
    for width in range(8, 8 * 11, 8):
        model = tiny_model("vit_cifar", depth=2, embed_dim=width, num_heads=2).train()
        model.set_compiled()
        before = len(shapes)
        model(example(model))
        assert len(shapes) - before == 4, "the stem, the first block, the others, the head"
        sizes = [size for shape in shapes[before:] for sides in shape for size in sides]
        assert all(type(size) is int for size in sizes), "no size is left open"


@pytest.fixture
def compiled_model(monkeypatch: pytest.MonkeyPatch) -> VisionTransformer:
    monkeypatch.setattr(torch, "compile", partial(torch.compile, backend="aot_eager"))
    torch._dynamo.reset()
    model = tiny_model("vit_cifar", depth=2, pos_drop_rate=0.0, proj_drop_rate=0.0).train()
    model.set_compiled()
    return model


@pytest.mark.parametrize("name", ["blocks.0", "pos_drop", "norm", "head_drop", "head"])
def test_whoever_hooks_in_after_a_step_hears_it(compiled_model, name: str) -> None:
    model, heard = compiled_model, []
    x = example(model)
    expected = model(x)
    model.get_submodule(name).register_forward_hook(lambda *call: heard.append(call[2].shape))
    torch.testing.assert_close(model(x), expected)
    assert len(heard) == 1


class Doubled(Block):
    """A block that somebody changed."""

    def forward(self, *arguments, **options):
        return 2 * super().forward(*arguments, **options)


def test_blocks_that_somebody_changed_are_called(compiled_model) -> None:
    model = compiled_model
    model.blocks[1].__class__ = Doubled
    x = example(model)
    found = model(x)
    model.set_compiled(False)
    torch.testing.assert_close(found, model(x))
    model.blocks[1].__class__ = Block
    assert not torch.allclose(found, model(x))


def test_features_that_somebody_changed_are_taken() -> None:
    model = tiny_model("vit_cifar").eval()
    x = example(model)
    zero = torch.zeros_like(model.forward_features(x))
    model.forward_features = lambda _: zero
    assert torch.equal(model(x), model.forward_head(zero))


def test_drop_path_may_be_another_module() -> None:
    model = tiny_model("vit_cifar", depth=2, drop_path_rate=0.5, proj_drop_rate=0.0).train()
    block, heard = model.blocks[1], []
    x = torch.randn(3, 5, model.embed_dim)
    block.drop_path1.register_forward_hook(lambda *_: heard.append("dropped"))
    block(x)
    assert heard == ["dropped"]
    block.drop_path1 = block.drop_path2 = nn.Identity()
    assert torch.equal(block.train()(x), block.eval()(x))


def test_checkpointed_step_compiles_without_graph_breaks() -> None:
    torch._dynamo.reset()
    torch.manual_seed(0)
    model = tiny_model("taylorir_small").eval()
    model.set_grad_checkpointing()
    x = example(model)
    weight = model.blocks[0].attn.qkv.weight
    expected = torch.autograd.grad(model(x).sum(), weight)
    compiled = torch.compile(model, fullgraph=True, backend="aot_eager_decomp_partition")
    torch.testing.assert_close(torch.autograd.grad(compiled(x).sum(), weight), expected)
