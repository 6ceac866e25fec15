"""`swap_attention`: in place, everything kept, and what was left is told."""

import pytest
import timm
import torch
import transformers
from timm.layers import AttentionRope
from timm.models.eva import EvaAttention
from torch import nn

from saccade import create_model
from saccade.errors import ConfigError, UnknownNameError
from saccade.integrations import swap_attention
from saccade.integrations.timm import RopeAttention
from saccade.models import VisionTransformer, load_model
from tests.integrations.tiny import (
    HF_SIZES,
    assert_same,
    bert,
    enlarged,
    gradients,
    images,
    sentences,
    timm_model,
    vision_model,
)

ROPE = {
    "eva02, one projection": "eva02_tiny_patch14_224",
    "eva02, three projections, norm": "eva02_base_patch14_224",
    "rope": "vit_small_patch16_rope_224",
    "rope of each layer": "vit_small_patch16_rope_mixed_224",
    "dinov3": "vit_small_patch16_dinov3",
}


def rope_model(name):
    torch.manual_seed(0)
    sizes = {"img_size": 32, "patch_size": 8, "embed_dim": 32, "depth": 2, "num_heads": 2}
    return enlarged(timm.create_model(name, num_classes=5, **sizes))


@pytest.mark.parametrize("name", ROPE.values(), ids=ROPE)
def test_rotary_embeddings_are_kept(name):
    model = rope_model(name)
    keys, expected = list(model.state_dict()), gradients(model, lambda: model(images()))
    done = swap_attention(model, "softmax")
    assert len(done.swapped) == 2
    assert not done.left
    assert isinstance(model.blocks[0].attn, RopeAttention)
    assert list(model.state_dict()) == keys
    assert_same(gradients(model, lambda: model(images())), expected, 5e-6)
    swap_attention(model, "taylor")
    assert list(model.state_dict()) == keys
    assert (model(images()) - expected["output"]).norm() > 1e-3 * expected["output"].norm()


@pytest.mark.parametrize(
    ("kind", "options"),
    [
        (AttentionRope, {"qkv_fused": False, "num_kv_heads": 2}),
        (AttentionRope, {"gated": True, "scale_norm": True, "qk_norm": True}),
        (EvaAttention, {"qkv_bias_separate": True, "scale_norm": False}),
        (EvaAttention, {"qkv_fused": False, "gated": True}),
    ],
)
def test_layers_with_other_parts_are_kept(kind, options):
    """Grouped queries, gates, norms and separate biases, without a rotary embedding."""
    layer = enlarged(nn.Sequential(kind(32, num_heads=4, norm_layer=nn.LayerNorm, **options)))
    x = torch.randn(2, 9, 32)
    expected = gradients(layer, lambda: layer(x))
    swap_attention(layer, "softmax")
    assert isinstance(layer[0], RopeAttention)
    assert_same(gradients(layer, lambda: layer(x)), expected, 5e-6)


def test_a_lost_rotary_embedding_is_caught():
    model = rope_model("vit_small_patch16_rope_224")
    expected = gradients(model, lambda: model(images()))
    swap_attention(model, "softmax")
    for block in model.blocks:
        block.attn._turned = lambda x, rope: x
    with pytest.raises(AssertionError):
        assert_same(gradients(model, lambda: model(images())), expected, 5e-6)


def test_parameters_stay_the_same_objects():
    model = timm_model()
    before = {id(p) for p in model.parameters()}
    swap_attention(model, "taylor", center_keys=True)
    assert {id(p) for p in model.parameters()} == before
    swap_attention(model, "taylorshift")
    assert {id(p) for p in model.parameters()} - before == {
        id(block.attn.core.temperature) for block in model.blocks
    }


def test_chosen_layers_of_timm():
    model = timm_model()
    done = swap_attention(model, "taylor", layers=[-1])
    assert done.swapped == ("blocks.1.attn",)
    assert dict(done.left) == {"blocks.0.attn": "not among the chosen layers"}
    assert str(done).startswith("taylor in 1 layers, 1 left; blocks.0.attn: not among")


@pytest.mark.parametrize("kind", ["ViT", "Dinov2", "Bert"])
def test_chosen_layers_of_transformers(kind):
    model = bert() if kind == "Bert" else vision_model(kind)
    inputs = sentences() if kind == "Bert" else {"pixel_values": images()}
    exact = model(**inputs).logits
    swap_attention(model, "softmax")
    torch.testing.assert_close(model(**inputs).logits, exact, rtol=1e-5, atol=1e-5)
    one = swap_attention(model, "taylorshift", layers=[1])
    assert len(one.swapped) == 1
    assert len([key for key in model.state_dict() if "temperature" in key]) == 1
    first = model(**inputs).logits
    every = swap_attention(model, "taylorshift", center_keys=True)
    assert len(every.swapped) == 2
    assert (model(**inputs).logits - first).norm() > 1e-4
    assert model.config._attn_implementation == "saccade_taylorshift"


def test_models_of_saccade_are_as_if_built_so(tmp_path):
    sizes = {"img_size": 8, "patch_size": 2, "embed_dim": 32, "depth": 3, "num_heads": 2}
    model = create_model("vit_tiny_patch16_224", num_classes=5, **sizes).eval()
    x = torch.randn(2, 3, 8, 8)
    done = swap_attention(model, "taylor", layers=[0, 2], center_keys=True)
    assert done.swapped == ("blocks.0.attn", "blocks.2.attn")
    assert model.config.softmax_blocks == (1,)
    built = VisionTransformer(model.config).eval()
    built.load_state_dict(model.state_dict())
    torch.testing.assert_close(built(x), model(x), rtol=0, atol=0)
    model.save_pretrained(tmp_path)
    torch.testing.assert_close(load_model(tmp_path)(x), model(x), rtol=0, atol=0)
    with pytest.raises(ConfigError, match="layers must include all blocks whose attention is not"):
        swap_attention(model, "taylorshift", layers=[0])


def test_dropout_is_kept_where_the_attention_has_weights():
    sizes = {"img_size": 8, "patch_size": 2, "embed_dim": 32, "depth": 2, "num_heads": 2}
    model = create_model("vit_tiny_patch16_224", attn_drop_rate=0.1, **sizes)
    swap_attention(model, "taylor")
    assert model.blocks[0].attn.core.attn_drop == 0.1
    swap_attention(model, "performer")
    assert model.blocks[0].attn.core.attn_drop == 0
    assert model.config.attn_drop_rate == 0


def test_causal_and_biased_layers_are_left_with_the_reason():
    pair = nn.ModuleDict(
        {
            "plain": timm_model(),
            "biased": timm.create_model("vit_relpos_small_patch16_224", depth=1),
            "decoder": transformers.BertModel(
                transformers.BertConfig(vocab_size=9, is_decoder=True, **HF_SIZES)
            ),
        }
    )
    done = swap_attention(pair["biased"].blocks.append(pair["plain"].blocks[0]), "taylor")
    assert done.left["0.attn"].startswith("a relative position bias")
    with pytest.raises(ConfigError, match="a causal mask; only softmax can express it"):
        swap_attention(pair["decoder"], "taylor")


@pytest.mark.parametrize(
    ("make", "words"),
    [
        (lambda: timm.create_model("resnet18"), "got ResNet with no attention layer"),
        (
            lambda: timm.create_model("beit_base_patch16_224", depth=2),
            r"got Beit with a relative position bias.*\(2 layers\)",
        ),
        (
            lambda: timm.create_model("swin_tiny_patch4_window7_224"),
            "SwinTransformer with a relative position bias",
        ),
        (
            lambda: timm.create_model("vit_medium_patch16_gap_240", attn_layer="diff", depth=1),
            "unknown attention layer, DiffAttention",
        ),
        (
            lambda: transformers.SwinModel(
                transformers.SwinConfig(embed_dim=8, depths=[1], num_heads=[2], image_size=32)
            ),
            "a relative position bias",
        ),
    ],
)
def test_models_without_attention_we_know_are_one_line(make, words):
    with pytest.raises(ConfigError, match=words) as caught:
        swap_attention(make(), "taylor")
    assert "\n" not in str(caught.value)


def test_bad_arguments_change_nothing():
    model = timm_model()
    before = [type(block.attn) for block in model.blocks]
    with pytest.raises(UnknownNameError, match="unknown attention 'tailor'"):
        swap_attention(model, "tailor")
    with pytest.raises(ConfigError, match=r"layers must be indices from 0 to 1, got \[2\]"):
        swap_attention(model, "taylor", layers=[2])
    with pytest.raises(ConfigError, match=r"coefficients must .*, got \(-1, 1, 1\)"):
        swap_attention(model, "taylor", coefficients=(-1, 1, 1))
    wide = timm.create_model("vit_tiny_patch16_224", embed_dim=320, num_heads=2, depth=1)
    with pytest.raises(ConfigError, match="head_dim must be at most 128 with backend='triton'"):
        swap_attention(wide, "taylor", backend="triton")
    assert [type(block.attn) for block in model.blocks] == before
