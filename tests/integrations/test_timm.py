"""timm: softmax in our layer is timm's own; other attentions load timm's weights."""

import pytest
import timm
import torch
from timm.layers import Attention

from saccade import create_model
from saccade.errors import ConfigError, UnknownNameError
from saccade.integrations.timm import TimmAttention, attention, register
from saccade.layers import list_attentions
from tests.integrations.tiny import (
    SIZES,
    assert_same,
    gradients,
    images,
    timm_model,
)

ROUNDING = 2e-6
VARIANTS = {
    "plain": {},
    "qk_norm": {"qk_norm": True},
    "scale_norm": {"scale_attn_norm": True},
    "without biases": {"qkv_bias": False, "proj_bias": False},
    "layer scale, registers": {"init_values": 0.5, "reg_tokens": 2},
}


def both(**options):
    """timm's model, and the same with our softmax."""
    theirs = timm_model(**options)
    ours = timm.create_model(
        "vit_tiny_patch16_224", num_classes=5, attn_layer=attention("softmax"), **SIZES, **options
    ).eval()
    ours.load_state_dict(theirs.state_dict(), strict=True)
    return theirs, ours


@pytest.mark.parametrize("options", VARIANTS.values(), ids=VARIANTS)
def test_softmax_is_timms(options):
    theirs, ours = both(**options)
    assert list(ours.state_dict()) == list(theirs.state_dict())
    expected = gradients(theirs, lambda: theirs(images()))
    assert_same(gradients(ours, lambda: ours(images())), expected, ROUNDING)


def test_softmax_is_timms_under_autocast():
    theirs, ours = both(qk_norm=True)
    with torch.autocast("cpu", torch.bfloat16):
        expected = gradients(theirs, lambda: theirs(images()))
        found = gradients(ours, lambda: ours(images()))
    assert_same(found, expected, 1e-2)


@pytest.mark.parametrize("name", ["softmax", "taylor", "taylorshift", "performer"])
def test_compiled_is_eager(name):
    model = timm.create_model(
        "vit_tiny_patch16_224", num_classes=5, attn_layer=attention(name), **SIZES
    )
    model.load_state_dict(timm_model().state_dict())
    compiled = torch.compile(model.eval(), backend="aot_eager", fullgraph=True)
    expected = gradients(model, lambda: model(images()))
    assert_same(gradients(model, lambda: compiled(images())), expected, 1e-5)


@pytest.mark.slow
@pytest.mark.parametrize("name", ["softmax", "taylor"])
def test_compiled_by_inductor_is_eager(name):
    model = timm.create_model("vit_tiny_patch16_224", attn_layer=attention(name), **SIZES).eval()
    expected = gradients(model, lambda: model(images()))
    found = gradients(model, lambda: torch.compile(model)(images()))
    assert_same(found, expected, 1e-4)


@pytest.mark.parametrize("name", list_attentions())
def test_every_attention_takes_timms_weights_and_saves_its_own(name):
    theirs = timm_model()
    model = timm.create_model(
        "vit_tiny_patch16_224", num_classes=5, attn_layer=attention(name), **SIZES
    ).eval()
    before = {k: v.clone() for k, v in model.state_dict().items() if ".core." in k}
    model.load_state_dict(theirs.state_dict(), strict=True)
    after = model.state_dict()
    assert all(torch.equal(after[key], value) for key, value in before.items())
    assert set(after) - set(theirs.state_dict()) == set(before)
    other = timm.create_model(
        "vit_tiny_patch16_224", num_classes=5, attn_layer=attention(name), **SIZES
    ).eval()
    other.load_state_dict(after, strict=True)
    torch.testing.assert_close(other(images()), model(images()), rtol=0, atol=0)


def test_an_incomplete_core_is_not_accepted():
    model = timm.create_model("vit_tiny_patch16_224", attn_layer=attention("performer"), **SIZES)
    state = model.state_dict()
    del state["blocks.0.attn.core.projection"]
    with pytest.raises(RuntimeError, match=r"Missing key.*blocks.0.attn.core.projection"):
        model.load_state_dict(state)


def test_a_mask_of_keys_hides_them():
    layer = attention("taylor")(32, num_heads=2, qkv_bias=True)
    x = torch.randn(2, 7, 32)
    mask = torch.arange(7) < 5
    short = layer(x[:, :5])
    for shape in ((1, 1, 1, 7), (7,)):
        out = layer(x, attn_mask=mask.view(shape))
        torch.testing.assert_close(out[:, :5], short, rtol=1e-4, atol=1e-5)
    additive = torch.zeros(7, 7).masked_fill(~mask, float("-inf"))
    out = layer(x, attn_mask=additive)
    torch.testing.assert_close(out[:, :5], short, rtol=1e-4, atol=1e-5)


@pytest.mark.parametrize("is_causal", [False, True])
def test_softmax_takes_every_mask(is_causal):
    theirs = Attention(32, num_heads=2, qkv_bias=True)
    ours = attention("softmax")(32, num_heads=2, qkv_bias=True)
    ours.load_state_dict(theirs.state_dict())
    x, mask = torch.randn(2, 7, 32), None if is_causal else torch.randn(7, 7)
    expected = theirs(x, attn_mask=mask, is_causal=is_causal)
    torch.testing.assert_close(ours(x, attn_mask=mask, is_causal=is_causal), expected)


@pytest.mark.parametrize(
    ("call", "words"),
    [
        ({"attn_mask": torch.randn(7, 7)}, "attn_mask must be a bool mask of keys"),
        ({"attn_mask": torch.ones(7, 7).tril().bool()}, "attn_mask must be a bool mask of keys"),
        ({"is_causal": True}, "is_causal must be False for attention 'taylor', got True"),
    ],
)
def test_what_taylor_cannot_express_is_one_line(call, words):
    layer = attention("taylor")(32, num_heads=2)
    with pytest.raises(ConfigError, match=words) as caught:
        layer(torch.randn(2, 7, 32), **call)
    assert "\n" not in str(caught.value)


def test_bad_arguments_are_one_line():
    with pytest.raises(UnknownNameError, match="did you mean 'taylor'"):
        attention("tayler")
    with pytest.raises(UnknownNameError, match="did you mean 'center_keys'"):
        attention("taylor", centre_keys=True)
    with pytest.raises(ConfigError, match="num_heads must be a divisor of dim=32, got 5"):
        attention("taylor")(32, num_heads=5)
    with pytest.raises(ConfigError, match="attn_drop must be 0"):
        attention("performer")(32, num_heads=2, attn_drop=0.1)
    with pytest.raises(ConfigError, match="head_dim must be at most 128 with backend='triton'"):
        attention("taylor", backend="triton")(512, num_heads=2)


def test_names_work_as_strings_and_models_are_registered():
    register()
    register()
    model = timm.create_model("vit_tiny_patch16_224", attn_layer="taylorshift", **SIZES)
    assert isinstance(model.blocks[0].attn, TimmAttention)
    assert "blocks.1.attn.core.temperature" in model.state_dict()
    torch.manual_seed(0)
    ours = create_model("taylorir_small", num_classes=7, img_size=8).eval()
    torch.manual_seed(0)
    found = timm.create_model("saccade_taylorir_small", num_classes=7, img_size=8).eval()
    x = torch.randn(1, 3, 8, 8)
    torch.testing.assert_close(found(x), ours(x), rtol=0, atol=0)
    assert "saccade_taylorir_base" in timm.list_models("saccade_*")
    with pytest.raises(ConfigError, match="pretrained must be False for 'saccade_taylorir_small'"):
        timm.create_model("saccade_taylorir_small", pretrained=True)


def test_options_reach_the_core():
    layer = attention("taylor", center_keys=True)(32, num_heads=2)
    assert layer.core.center_keys
    built = attention("performer")(32, num_heads=2, device="meta")
    assert built.core.projection.device.type == "meta"
