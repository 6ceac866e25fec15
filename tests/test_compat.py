"""The configuration of ViT from scratch builds the guide's model and a recipe that trains."""

import pytest
import torch

from saccade import create_model
from saccade.compat import FROM_SCRATCH_KEYS, from_scratch_config
from saccade.errors import ConfigError, UnknownNameError
from saccade.train import train

GUIDE = {
    "patch_size": 4,
    "hidden_size": 48,
    "num_hidden_layers": 4,
    "num_attention_heads": 4,
    "intermediate_size": 4 * 48,
    "hidden_dropout_prob": 0.0,
    "attention_probs_dropout_prob": 0.0,
    "initializer_range": 0.02,
    "image_size": 32,
    "num_classes": 10,
    "num_channels": 3,
    "qkv_bias": True,
    "use_faster_attention": True,
    "exp_name": "vit-with-100-epochs",
    "batch_size": 32,
    "epochs": 100,
    "lr": 1e-4,
    "save_model_every": 0,
}


def test_the_guide_is_accepted_as_it_is():
    model, recipe, out = from_scratch_config(GUIDE)
    published = create_model("vit_micro_patch4_32", final_norm=False)
    assert model.config == published.config  # test_published.py compares its outputs
    assert sum(p.numel() for p in model.parameters()) == 119_098
    assert (recipe.train.epochs, recipe.train.batch_size, recipe.optim.lr) == (100, 32, 1e-4)
    assert (recipe.data.name, recipe.run.checkpoint_every_epochs) == ("cifar10", 100)
    assert str(out) == "runs/vit-with-100-epochs"


def test_missing_keys_have_the_guides_values():
    assert set(GUIDE) == set(FROM_SCRATCH_KEYS)
    short, whole = from_scratch_config({}), from_scratch_config(GUIDE)
    assert (short.model.config, short.recipe, short.out) == (
        whole.model.config,
        whole.recipe,
        whole.out,
    )


CHANGED = {
    "patch_size": 8,
    "hidden_size": 96,
    "num_hidden_layers": 2,
    "num_attention_heads": 2,
    "intermediate_size": 100,
    "hidden_dropout_prob": 0.1,
    "attention_probs_dropout_prob": 0.2,
    "initializer_range": 0.5,
    "image_size": 64,
    "num_classes": 3,
    "num_channels": 1,
    "qkv_bias": False,
    "exp_name": "other",
    "batch_size": 16,
    "epochs": 7,
    "lr": 0.1,
    "save_model_every": 3,
}


@pytest.mark.parametrize("key", CHANGED)
def test_every_key_has_its_effect(key):
    plain, changed = from_scratch_config({}), from_scratch_config({key: CHANGED[key]})
    assert (plain.model.config, plain.recipe, plain.out) != (
        changed.model.config,
        changed.recipe,
        changed.out,
    )


def test_faster_attention_is_the_same_function():
    slow, fast = (from_scratch_config({"use_faster_attention": it}).model for it in (False, True))
    slow.load_state_dict(fast.state_dict())
    x = torch.randn(2, 3, 32, 32)
    assert torch.equal(slow(x), fast(x))


@pytest.mark.parametrize(
    ("key", "value", "message"),
    [
        ("patch_size", 5, "patch_size must be a divisor of image_size=32, got 5"),
        (
            "num_attention_heads",
            5,
            "num_attention_heads must be a divisor of hidden_size=48, got 5",
        ),
        ("epochs", 0, "epochs must be an integer of at least 1, got 0"),
        ("lr", "fast", "lr must be a positive number, got 'fast'"),
        ("hidden_dropout_prob", 1.0, r"hidden_dropout_prob must be a number in \[0, 1\), got 1.0"),
        ("qkv_bias", 1, "qkv_bias must be True or False, got 1"),
        ("exp_name", "../x", "exp_name must be a name that can be a folder, got '../x'"),
    ],
)
def test_a_wrong_value_is_named_as_in_the_guide(key, value, message):
    with pytest.raises(ConfigError, match=message):
        from_scratch_config({key: value})


def test_an_unknown_key_gets_a_suggestion():
    with pytest.raises(UnknownNameError, match="intermediate_size"):
        from_scratch_config({"intermediate_sise": 4})


def test_the_recipe_trains(tmp_path):
    small = {"patch_size": 2, "image_size": 8, "num_channels": 1, "epochs": 2, "batch_size": 64}
    small |= {"hidden_size": 16, "num_hidden_layers": 1, "lr": 1e-2, "save_model_every": 1}
    model, recipe, out = from_scratch_config(small, data="digits")
    summary = train(recipe, tmp_path / out, quiet=True)
    assert summary["parameters"] == sum(p.numel() for p in model.parameters())
    assert summary["test_accuracy"] > 0.1
    assert len(list((tmp_path / out / "checkpoints").glob("step-*"))) == 2
