"""timm's tools and calls on our models: what timm's own VisionTransformer does is the oracle."""

from functools import partial

import pytest
import timm
import torch
from tests.train.tiny_runs import tiny
from timm.data import resolve_data_config
from timm.models._features import FeatureGetterNet
from timm.models._pretrained import PretrainedCfg
from timm.models.vision_transformer import VisionTransformer as TimmViT
from tiny_models import example, tiny_model
from torch import Tensor, nn

from saccade import create_model
from saccade.data import DatasetInfo
from saccade.errors import ConfigError
from saccade.explain.hooks import check_model
from saccade.models import FeatureExtractor, VisionTransformer
from saccade.train import build_model

SMALL = {"img_size": 32, "patch_size": 8, "depth": 4, "num_classes": 5, "embed_dim": 24}
NAME = "vit_tiny_patch16_224"


def twins(**overrides: object) -> tuple[TimmViT, VisionTransformer]:
    """timm's class and ours with timm's weights, in float64."""
    options = SMALL | {"num_heads": 3} | overrides
    theirs = TimmViT(**options).double().eval()
    ours = create_model(NAME, **options).double().eval()
    with torch.no_grad():
        for parameter in theirs.parameters():
            parameter.add_(0.05 * torch.randn_like(parameter))
    ours.load_state_dict(theirs.state_dict(), strict=True)
    return theirs, ours


def images(*size: int) -> Tensor:
    return torch.randn(2, 3, *(size or (32, 32)), dtype=torch.float64)


@pytest.mark.parametrize(
    "overrides",
    [
        {"mean": (0.1, 0.2, 0.3), "std": (0.4, 0.5, 0.6), "img_size": (32, 48)},
        {"in_chans": 1, "mean": (0.3,), "std": (0.2,)},
    ],
    ids=str,
)
def test_timm_reads_the_preprocessing_of_a_model(overrides: dict[str, object]) -> None:
    model = create_model(NAME, **(SMALL | {"num_heads": 3} | overrides))
    found = resolve_data_config(model=model)
    config = model.config
    assert found["input_size"] == (config.in_chans, *config.img_size)
    assert (found["mean"], found["std"]) == (config.mean, config.std)
    assert (found["interpolation"], found["crop_pct"]) == ("bilinear", 1.0)
    assert model.default_cfg == model.pretrained_cfg
    model.set_input_size(64)
    assert resolve_data_config(model=model)["input_size"][1:] == (64, 64)


def test_the_configuration_names_the_layers_that_it_says() -> None:
    for name in ("vit_cifar", "taylorir_small", "residual_cifar", "light_vit", "hybrid_cifar"):
        model = tiny_model(name)
        first = model.get_submodule(model.pretrained_cfg["first_conv"])
        last = model.get_submodule(model.pretrained_cfg["classifier"])
        assert next(model.patch_embed.parameters()) is first.weight
        assert last.weight.shape[0] == model.num_classes == model.pretrained_cfg["num_classes"]
    model.reset_classifier(0)
    assert model.pretrained_cfg["classifier"] is None
    known = set(PretrainedCfg().to_dict(remove_null=False))
    assert set(model.pretrained_cfg) <= known


def test_attributes_that_timm_reads_are_timms() -> None:
    theirs, ours = twins()
    names = ("num_features", "head_hidden_size", "embed_dim", "num_classes", "global_pool")
    tokens = ("num_prefix_tokens", "num_reg_tokens", "reg_token", "has_class_token")
    for name in (*names, *tokens, "no_embed_class", "dynamic_img_size"):
        assert getattr(ours, name) == getattr(theirs, name), name
    features = ours.forward_head(ours.forward_features(images()), pre_logits=True)
    assert features.shape == (2, ours.head_hidden_size)
    taylor = tiny_model("taylorir_small")  # whose head has a hidden layer
    features = taylor.forward_head(taylor.forward_features(example(taylor)), pre_logits=True)
    assert features.shape == (2, taylor.head_hidden_size)


@pytest.mark.parametrize("size", [(32, 32), (48, 64), (16, 8)])
@pytest.mark.parametrize("pool", ["token", "avg"])
def test_dynamic_image_sizes_agree_with_timm(size: tuple[int, int], pool: str) -> None:
    theirs, ours = twins(dynamic_img_size=True, global_pool=pool)
    x = images(*size)
    torch.testing.assert_close(ours(x), theirs(x))
    torch.testing.assert_close(ours.forward_intermediates(x), theirs.forward_intermediates(x))


@pytest.mark.parametrize("stem", ["patch", "patch_linear", "conv_patch", "conv_residual"])
@pytest.mark.parametrize("pos_embed", ["sinusoidal_1d", "sinusoidal_2d", "learned", "none"])
def test_a_dynamic_size_is_that_size_set(stem: str, pos_embed: str) -> None:
    options = SMALL | {"num_heads": 3, "stem": stem, "pos_embed": pos_embed}
    ours = create_model(NAME, dynamic_img_size=True, **options).double().eval()
    x = images(48, 24)
    dynamic = ours(x)
    ours.set_input_size((48, 24))
    torch.testing.assert_close(ours(x), dynamic)


def test_dynamic_sizes_in_windows_compiled_and_trained(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(torch, "compile", partial(torch.compile, backend="aot_eager"))
    compiled = tiny_model("vit_cifar", dynamic_img_size=True, pos_drop_rate=0, proj_drop_rate=0)
    x = torch.randn(2, 3, 16, 8)
    expected = compiled(x)
    compiled.set_compiled()
    torch.testing.assert_close(compiled(x), expected)
    model = tiny_model(
        "light_vit", "taylor", img_size=8, patch_size=1, window=4, depth=2, dynamic_img_size=True
    )
    model(torch.randn(2, 1, 12, 8)).sum().backward()
    small = tiny_model("vit_cifar", img_size=16, dynamic_img_size=True)
    small(torch.randn(2, 3, 8, 12)).sum().backward()
    assert small.pos_embed.grad.abs().max() > 0
    with pytest.raises(ConfigError, match=r"size of x must be .* multiples of 4.* got \(8, 6\)"):
        small(torch.randn(2, 3, 8, 6))
    with pytest.raises(ConfigError, match=r"dynamic_img_size must be a bool, got 'yes'"):
        create_model(NAME, dynamic_img_size="yes")


def test_a_strict_model_says_how_to_take_other_sizes() -> None:
    model = tiny_model("vit_cifar")
    with pytest.raises(ConfigError, match=r"set_input_size\(.*dynamic_img_size=True"):
        model(torch.randn(2, 3, 16, 16))


@pytest.mark.parametrize("class_token", [True, False])
def test_no_pooling_agrees_with_timm(class_token: bool) -> None:
    theirs, ours = twins(global_pool="", class_token=class_token)
    x = images()
    assert ours(x).shape == (2, 16 + class_token, 5)
    torch.testing.assert_close(ours(x), theirs(x))
    theirs, ours = twins(global_pool="avg")
    for model in (theirs, ours):
        model.reset_classifier(0, "")
    torch.testing.assert_close(ours(x), theirs(x))


MASKS = {
    "queries and keys": torch.rand(17, 17, generator=torch.Generator().manual_seed(0)) > 0.3,
    "each sample and head": torch.rand(2, 3, 17, 17, generator=torch.Generator().manual_seed(1))
    > 0.3,
    "added to the scores": torch.randn(2, 1, 17, 17, generator=torch.Generator().manual_seed(2)),
    "keys of each sample": torch.rand(2, 1, 1, 17, generator=torch.Generator().manual_seed(3))
    > 0.3,
    "keys of all samples": torch.rand(1, 17, generator=torch.Generator().manual_seed(4)) > 0.3,
}


@pytest.mark.parametrize("name", MASKS)
def test_attention_masks_agree_with_timm(name: str) -> None:
    theirs, ours = twins()
    mask, x = MASKS[name].clone(), images()
    if mask.dtype == torch.bool:
        mask[..., 0] = True  # every query has a key
    else:
        mask = mask.double()
    expected = theirs(x, attn_mask=mask)
    assert not torch.allclose(expected, theirs(x))
    torch.testing.assert_close(ours(x, attn_mask=mask), expected)
    found, others = (m.forward_intermediates(x, attn_mask=mask)[1] for m in (ours, theirs))
    torch.testing.assert_close(found, others)
    block = ours.blocks[0](ours.embed(x), attn_mask=mask)
    torch.testing.assert_close(block, theirs.blocks[0](ours.embed(x), attn_mask=mask))
    ours.set_grad_checkpointing()
    torch.testing.assert_close(ours(x, attn_mask=mask), expected)


def test_causal_attention_agrees_with_timm() -> None:
    theirs, ours = twins()
    x = images()
    torch.testing.assert_close(ours(x, is_causal=True), theirs(x, is_causal=True))
    with pytest.raises(ConfigError, match="is_causal must be False if attn_mask is given"):
        ours(x, attn_mask=MASKS["keys of all samples"], is_causal=True)


@pytest.mark.parametrize("attention", ["taylor", "taylorshift", "performer", "performer_ftheta"])
def test_other_attentions_take_masks_of_keys_and_refuse_others(attention: str) -> None:
    model = tiny_model("vit_cifar", attention, depth=2).eval()
    x = example(model)
    keys = torch.tensor([True, True, False, True, True, False, True]).expand(2, 1, 1, 7)
    other = x.clone()
    other[:, :, :4, 4:8] += 1  # patch 1 is token 2, which no token attends to
    kept = [token for token in range(7) if token != 2]
    found, changed = (model.forward_features(y, attn_mask=keys)[:, kept] for y in (x, other))
    torch.testing.assert_close(found, changed)
    assert not torch.allclose(model(x), model(other))
    for mask in (torch.ones(7, 7, dtype=torch.bool), torch.zeros(2, 1, 1, 7)):
        with pytest.raises(ConfigError, match=r"attn_mask .*\(B, 1, 1, N\).* got torch"):
            model(x, attn_mask=mask)


def test_a_query_without_keys_gets_no_nan() -> None:
    _, ours = twins()
    mask = MASKS["queries and keys"].clone()
    mask[3] = False
    assert ours(images(), attn_mask=mask).isfinite().all()


@pytest.mark.parametrize(
    "arguments",
    [
        ([0, 2], True, True, False, "NLC"),
        (None, False, False, False, "NCHW", True),
        (2, True, False, False, "NCHW", False, True),
        ([1], False, False, True, "NCHW", True, True),
    ],
    ids=str,
)
def test_intermediates_take_arguments_in_timms_order(arguments: tuple[object, ...]) -> None:
    theirs, ours = twins(img_size=(32, 48))
    x = images(32, 48)
    expected = theirs.forward_intermediates(x, *arguments)
    torch.testing.assert_close(ours.forward_intermediates(x, *arguments), expected)


def test_dinos_interface_agrees_with_timm() -> None:
    theirs, ours = twins()
    x = images()
    for options in ({}, {"n": [0, 3], "reshape": True, "norm": True}):
        expected = theirs.get_intermediate_layers(x, **options)
        torch.testing.assert_close(ours.get_intermediate_layers(x, **options), expected)


@pytest.mark.parametrize("out_indices", [None, 2, (0, 2), (-1,)])
def test_features_only_is_timms(out_indices: object) -> None:
    options = {key: SMALL[key] for key in ("img_size", "depth")}
    chosen = {} if out_indices is None else {"out_indices": out_indices}
    theirs = timm.create_model(NAME, features_only=True, **options, **chosen).eval()
    ours = create_model(NAME, features_only=True, **options, **chosen).eval()
    assert isinstance(ours, FeatureExtractor)
    own, known = ours.model.state_dict(), theirs.model.state_dict()
    assert own.keys() == known.keys(), "the same parts are dropped"
    ours.model.load_state_dict(known)
    x = torch.randn(2, 3, 32, 32)
    torch.testing.assert_close(ours(x), theirs(x))
    for method in ("channels", "reduction", "module_name"):
        own, known = (getattr(net.feature_info, method) for net in (ours, theirs))
        assert (own(), own(0), own([0, 1])) == (known(), known(0), known([0, 1]))
    assert resolve_data_config(model=ours)["mean"] == ours.model.config.mean


def test_timms_own_feature_getter_takes_our_models() -> None:
    theirs, ours = twins()
    x = images()
    expected, found = (FeatureGetterNet(m, out_indices=[0, 2])(x) for m in (theirs, ours))
    torch.testing.assert_close(found, expected)


@pytest.mark.parametrize("pool", ["token", "avg", "map"])
def test_a_pruned_model_saves_and_loads(pool: str, tmp_path) -> None:
    model = tiny_model("vit_cifar", "performer", depth=3, feature_seed=1, global_pool=pool).eval()
    x = example(model)
    expected = model.forward_intermediates(x, [1], intermediates_only=True)
    assert model.prune_intermediate_layers([1], prune_norm=True) == [1]
    model.save_pretrained(tmp_path)
    again = VisionTransformer.from_pretrained(tmp_path)
    assert len(again.blocks) == again.config.depth == 2
    assert isinstance(again.head, nn.Identity)
    torch.testing.assert_close(
        again.forward_intermediates(x, [1], intermediates_only=True), expected
    )


def test_features_only_refuses_what_has_no_maps() -> None:
    with pytest.raises(ConfigError, match="features_only must be False for a sequence model"):
        create_model("taylorshift_imdb", features_only=True)
    with pytest.raises(
        ConfigError, match=r"out_indices must be None without features_only=True, got \[1\]"
    ):
        create_model(NAME, out_indices=[1])
    with pytest.raises(ConfigError, match="blocks from 0 to 3"):
        create_model(NAME, depth=4, features_only=True, out_indices=[4])


def test_training_and_maps_refuse_a_model_without_pooling() -> None:
    config = tiny("model.overrides.global_pool=''")
    info = DatasetInfo("digits", 10, tuple("0123456789"), (8, 8), 1, (0.5,), (0.5,))
    with pytest.raises(ConfigError, match=r"model\.overrides\.global_pool must be 'token'"):
        build_model(config, info)
    with pytest.raises(ConfigError, match=r"global_pool must be 'token', 'avg' or 'map' for maps"):
        check_model(tiny_model("vit_cifar", global_pool=""))
