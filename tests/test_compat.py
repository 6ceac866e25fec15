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


PLACES = {
    "patch_size": lambda made: made.model.config.patch_size,
    "hidden_size": lambda made: made.model.config.embed_dim,
    "num_hidden_layers": lambda made: made.model.config.depth,
    "num_attention_heads": lambda made: made.model.config.num_heads,
    "intermediate_size": lambda made: made.model.config.mlp_hidden_dim,
    "attention_probs_dropout_prob": lambda made: made.model.config.attn_drop_rate,
    "initializer_range": lambda made: made.model.config.init_std,
    "image_size": lambda made: made.model.config.img_size[0],
    "num_classes": lambda made: made.model.config.num_classes,
    "num_channels": lambda made: made.model.config.in_chans,
    "qkv_bias": lambda made: made.model.config.qkv_bias,
    "exp_name": lambda made: made.out.name,
    "batch_size": lambda made: made.recipe.train.batch_size,
    "epochs": lambda made: made.recipe.train.epochs,
    "lr": lambda made: made.recipe.optim.lr,
    "save_model_every": lambda made: made.recipe.run.checkpoint_every_epochs,
}
"""Where the value of a key is found, by the table of the documentation."""


@pytest.mark.parametrize("key", PLACES)
def test_a_value_is_where_the_table_says(key):
    assert PLACES[key](from_scratch_config({key: CHANGED[key]})) == CHANGED[key]


def test_dropout_of_hidden_features_is_everywhere_but_inside_the_mlp():
    config = from_scratch_config({"hidden_dropout_prob": 0.1}).model.config
    assert (config.pos_drop_rate, config.proj_drop_rate, config.act_drop_rate) == (0.1, 0.1, 0.0)


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
