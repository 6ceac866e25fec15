"""transformers: softmax through the interface is its own; masks, maps, saving."""

import pytest
import torch
import transformers

from saccade.errors import ConfigError, UnknownNameError
from saccade.integrations.transformers import register
from saccade.layers import ATTENTIONS, list_attentions
from tests.integrations.tiny import (
    HF_SIZES,
    VOCABULARY,
    assert_same,
    bert,
    gradients,
    images,
    sentences,
    vision_model,
)

ROUNDING = 2e-6
KINDS = ("ViT", "DeiT", "Dinov2")
SUMMING = [name for name in list_attentions() if ATTENTIONS[name].rows != "free"]


@pytest.fixture(autouse=True)
def registered():
    register()


def logits(model, **inputs):
    return lambda: model(**(inputs or {"pixel_values": images()})).logits


@pytest.mark.parametrize("kind", KINDS)
def test_softmax_is_theirs(kind):
    model = vision_model(kind)
    keys, expected = list(model.state_dict()), gradients(model, logits(model))
    model.set_attn_implementation("saccade_softmax")
    assert list(model.state_dict()) == keys
    assert_same(gradients(model, logits(model)), expected, ROUNDING)


@pytest.mark.parametrize("kind", ["ViT", "Bert"])
def test_softmax_is_theirs_under_autocast(kind):
    model = bert() if kind == "Bert" else vision_model(kind)
    call = logits(model, **(sentences() if kind == "Bert" else {}))
    with torch.autocast("cpu", torch.bfloat16):
        expected = gradients(model, call)
        model.set_attn_implementation("saccade_softmax")
        assert_same(gradients(model, call), expected, 1e-2)


def test_softmax_of_a_padded_batch_is_theirs():
    model = bert()
    expected = gradients(model, logits(model, **sentences()))
    model.set_attn_implementation("saccade_softmax")
    assert_same(gradients(model, logits(model, **sentences())), expected, ROUNDING)


@pytest.mark.parametrize(
    ("kind", "name"),
    [("ViT", "softmax"), ("ViT", "taylor"), ("Bert", "softmax"), ("Bert", "performer")],
)
def test_compiled_is_eager(kind, name):
    model = bert() if kind == "Bert" else vision_model(kind)
    model.set_attn_implementation(f"saccade_{name}")
    inputs = sentences() if kind == "Bert" else {"pixel_values": images()}
    expected = gradients(model, lambda: model(**inputs).logits)
    compiled = torch.compile(model, backend="aot_eager", fullgraph=True)
    assert_same(gradients(model, lambda: compiled(**inputs).logits), expected, 1e-5)


@pytest.mark.parametrize("name", list_attentions())
def test_padding_is_truncation(name):
    model = bert()
    model.set_attn_implementation(f"saccade_{name}")
    inputs = sentences()
    padded = model.bert(**inputs, output_attentions=True)
    short = model.bert(inputs["input_ids"][1:, :4]).last_hidden_state
    torch.testing.assert_close(padded.last_hidden_state[1:, :4], short, rtol=1e-4, atol=1e-4)
    weights = padded.attentions[0]
    assert weights.shape == (2, 2, 7, 7)
    assert weights[1, :, :, 4:].eq(0).all()


@pytest.mark.parametrize("name", SUMMING)
def test_rows_sum_to_one_beside_padding(name):
    model = bert()
    model.set_attn_implementation(f"saccade_{name}")
    weights = model.bert(**sentences(), output_attentions=True).attentions[0]
    torch.testing.assert_close(weights.sum(-1), torch.ones(2, 2, 7))


def test_without_the_mask_interface_masks_would_be_lost():
    """Planted error: the interface for attention alone, as a naive registration does."""
    model = bert()
    model.set_attn_implementation("saccade_taylor")
    inputs = sentences()
    padded = model.bert(**inputs).last_hidden_state
    unmasked = model.bert(inputs["input_ids"]).last_hidden_state
    assert (padded[1] - unmasked[1]).norm() > 1e-2 * padded[1].norm()


@pytest.mark.parametrize("name", list_attentions())
def test_maps_of_every_attention_are_those_used(name):
    """The output of a layer is its map times its values."""
    model = vision_model("ViT")
    model.set_attn_implementation(f"saccade_{name}")
    layer, seen = model.vit.layers[0].attention, {}
    layer.v_proj.register_forward_hook(lambda m, i, o: seen.update(v=o))
    layer.o_proj.register_forward_pre_hook(lambda m, i: seen.update(out=i[0]))
    maps = model(images(), output_attentions=True).attentions
    assert len(maps) == 2
    v = seen["v"].view(2, 17, 2, 16).transpose(1, 2)
    expected = (maps[0] @ v).transpose(1, 2).flatten(2)
    if name == "taylorshift":
        expected = expected * (17 / 16) ** 0.5
    torch.testing.assert_close(seen["out"], expected, rtol=1e-3, atol=1e-4)


@pytest.mark.parametrize("name", ["taylorshift", "performer", "performer_ftheta"])
@pytest.mark.parametrize("kind", KINDS)
def test_learned_parameters_are_saved_and_loaded(kind, name, tmp_path):
    model = vision_model(kind)
    model.set_attn_implementation(f"saccade_{name}")
    own = [key for key in model.state_dict() if ".saccade_core." in key]
    assert own
    with torch.no_grad():
        for key, parameter in model.named_parameters():
            if key in own:
                parameter.add_(torch.rand(parameter.shape))
    expected = model(images()).logits
    model.save_pretrained(tmp_path)
    loaded = type(model).from_pretrained(tmp_path, attn_implementation=f"saccade_{name}").eval()
    torch.testing.assert_close(loaded(images()).logits, expected, rtol=0, atol=0)


def test_a_softmax_checkpoint_starts_with_fresh_parameters(tmp_path):
    model = vision_model("ViT")
    model.save_pretrained(tmp_path)
    load = type(model).from_pretrained
    shift = load(tmp_path, attn_implementation="saccade_taylorshift").state_dict()
    assert shift["vit.layers.1.attention.saccade_core.temperature"].eq(1).all()
    drawn = [load(tmp_path, attn_implementation="saccade_performer").state_dict() for _ in range(2)]
    seeds = [drawn[0][f"vit.layers.{i}.attention.saccade_core.feature_seed"] for i in (0, 1)]
    assert seeds == [0, 1]
    for key, tensor in drawn[0].items():
        assert tensor.isfinite().all()
        assert torch.equal(tensor, drawn[1][key])


def test_another_implementation_removes_the_core():
    model = vision_model("ViT")
    keys = list(model.state_dict())
    model.set_attn_implementation("saccade_taylorshift")
    assert len(model.state_dict()) == len(keys) + 2
    model.set_attn_implementation("sdpa")
    assert list(model.state_dict()) == keys


def test_options_reach_the_core():
    register({"taylor": {"center_keys": True}})
    model = vision_model("ViT")
    model.set_attn_implementation("saccade_taylor")
    assert all(layer.attention.saccade_core.center_keys for layer in model.vit.layers)
    with pytest.raises(UnknownNameError, match="did you mean 'center_keys'"):
        register({"taylor": {"centre_keys": True}})


def test_attention_dropout_drops_weights_or_raises():
    dropped = bert()
    for layer in dropped.bert.encoder.layer:
        layer.attention.self.dropout.p = 0.5
    dropped.set_attn_implementation("saccade_taylor")
    plain = dropped(**sentences()).logits
    dropped.train()
    assert (dropped(**sentences()).logits - plain).norm() > 1e-3
    dropped.set_attn_implementation("saccade_performer")
    with pytest.raises(ConfigError, match="the dropout of attention weights must be 0"):
        dropped(**sentences())


@pytest.mark.parametrize("name", ["taylor", "taylorshift"])
def test_dropout_of_a_padded_batch_keeps_its_scale(name):
    """With almost no dropout, training gives what evaluation gives."""
    model = bert()
    model.set_attn_implementation(f"saccade_{name}")
    expected = model(**sentences()).logits
    for layer in model.bert.encoder.layer:
        layer.attention.self.dropout.p = 1e-9
    found = model.train()(**sentences()).logits
    torch.testing.assert_close(found, expected, rtol=1e-4, atol=1e-4)


def test_what_taylor_cannot_express_is_one_line():
    config = transformers.BertConfig(vocab_size=VOCABULARY, is_decoder=True, **HF_SIZES)
    decoder = transformers.BertModel(config).eval()
    decoder.set_attn_implementation("saccade_taylor")
    with pytest.raises(ConfigError, match="is_causal must be False for attention 'taylor'"):
        decoder(sentences()["input_ids"])
    model = bert()
    model.set_attn_implementation("saccade_taylor")
    with pytest.raises(ConfigError, match="attn_mask must be a bool mask of keys"):
        model(sentences()["input_ids"], attention_mask=torch.randn(2, 1, 7, 7))
    additive = torch.zeros(2, 1, 7, 7)
    additive[1, :, :, 4:] = torch.finfo(torch.float32).min
    found = model.bert(sentences()["input_ids"], attention_mask=additive).last_hidden_state
    expected = model.bert(**sentences()).last_hidden_state
    torch.testing.assert_close(found, expected)


def test_the_scale_of_the_model_is_used():
    model = vision_model("ViT")
    model.set_attn_implementation("saccade_taylor")
    layer = model.vit.layers[0].attention
    plain = model(images()).logits
    layer.scaling /= 2
    with torch.no_grad():
        layer.q_proj.weight.mul_(2)
        layer.q_proj.bias.mul_(2)
    torch.testing.assert_close(model(images()).logits, plain, rtol=1e-4, atol=1e-5)
