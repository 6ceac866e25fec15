from pathlib import Path

import pytest

from saccade.config import (
    CONFIG_VERSION,
    dump_config,
    list_recipes,
    load_config,
    make_config,
    recipe_text,
    with_overrides,
)
from saccade.errors import ConfigError


def test_dumped_config_reads_back_equal(tmp_path: Path) -> None:
    config = load_config("digits-quick", ["optim.lr=1e-3", "model.overrides.depth=2"])
    path = tmp_path / "config.yaml"
    path.write_text(dump_config(config))
    assert load_config(path) == config
    assert config.optim.lr == 1e-3
    assert config.model.overrides["depth"] == 2


@pytest.mark.parametrize(
    ("override", "words"),
    [
        ("optim.lrr=1", ["'optim.lrr'", "did you mean 'optim.lr'"]),
        ("lr=1", ["did you mean 'optim.lr'"]),
        ("optm.lr=1", ["'optm'", "did you mean 'optim'"]),
        ("train.lr=1", ["'train.lr'", "did you mean 'optim.lr'"]),
        ("optim.lr=-1", ["optim.lr=-1", "greater than 0"]),
        ("optim.lr=.nan", ["optim.lr=nan", "finite"]),
        ("optim.lr=fast", ["optim.lr='fast'", "valid number"]),
        ("data.val_fraction=1", ["data.val_fraction=1", "less than 1"]),
        ("train.precision=fp8", ["'fp8'", "'fp32', 'bf16' or 'fp16'"]),
        ("train.epochs=0", ["train.epochs=0"]),
        ("augment.resized_crop=[0.9, 0.1]", ["resized_crop", "smallest <= largest"]),
        ("train.accumulation=7", ["batch_size must be", "accumulation=7, got 64"]),
        ("optim.lr", ["section.key=value"]),
        ("optim.betas=[0.9", ["'[0.9' is not a YAML value"]),
        ("train={epochs: 1, epochs: 2}", ["not a YAML value"]),
    ],
)
def test_bad_override_is_named(override: str, words: list[str]) -> None:
    with pytest.raises(ConfigError) as caught:
        load_config("digits-quick", [override])
    message = str(caught.value)
    assert "\n" not in message
    for word in words:
        assert word in message


def test_newer_config_is_refused_before_its_keys(tmp_path: Path) -> None:
    path = tmp_path / "new.yaml"
    path.write_text(f"version: {CONFIG_VERSION + 1}\nbrain: {{size: 3}}\n")
    with pytest.raises(ConfigError, match=r"newer saccade.*Upgrade"):
        load_config(path)


@pytest.mark.parametrize("version", ["2.0", '"2"', "1.0", "0", "-3", "true", "null"])
def test_invalid_version_is_refused(tmp_path: Path, version: str) -> None:
    path = tmp_path / "odd.yaml"
    path.write_text(f"version: {version}\nrun: {{}}\n")
    with pytest.raises(ConfigError, match=r"version=.*(valid integer|greater than or equal to 1)"):
        load_config(path)


@pytest.mark.parametrize(
    ("text", "reason"),
    [("a: [", "not valid YAML"), ("- 1", "mapping"), ("run: {}\nrun: {}", "twice")],
)
def test_unreadable_file_is_refused(tmp_path: Path, text: str, reason: str) -> None:
    path = tmp_path / "bad.yaml"
    path.write_text(text)
    with pytest.raises(ConfigError, match=reason):
        load_config(path)


def test_unknown_recipe_suggests() -> None:
    with pytest.raises(ConfigError, match="did you mean 'digits-quick'"):
        load_config("digit-quick")


def test_settings_that_use_validation_need_validation_images() -> None:
    for override in ("optim.schedule=plateau", "train.early_stopping_patience=3"):
        with pytest.raises(ConfigError, match=r"val_fraction must be above 0, got 0"):
            load_config("digits-quick", [override, "data.val_fraction=0"])
        # A folder may have its own validation split, which is only known once it is loaded.
        load_config("digits-quick", [override, "data.val_fraction=0", "data.name=folder"])


def test_settings_that_do_not_support_sharding_are_refused() -> None:
    refused = {
        "optim.name=muon": "needs whole matrices: use",
        "train.precision=fp16": "train.precision must be 'fp32' or 'bf16'",
    }
    for override, message in refused.items():
        with pytest.raises(ConfigError, match=message):
            load_config("digits-quick", [override, "train.strategy=fsdp"])


def test_override_does_not_touch_the_original() -> None:
    config = make_config({"model": {"overrides": {"depth": 2}}})
    changed = with_overrides(config, ["model.overrides.depth=3"])
    assert config.model.overrides == {"depth": 2}
    assert changed.model.overrides == {"depth": 3}


@pytest.mark.parametrize("name", list_recipes())
def test_recipe_has_a_complete_header_and_builds(name: str) -> None:
    import torch

    from saccade.models import create_model

    header = [line for line in recipe_text(name).splitlines() if line.startswith("#")]
    for field in ("command:", "hardware:", "time:", "accuracy:"):
        assert any(field in line for line in header)
    assert f"train {name}" in " ".join(header)
    config = load_config(name)
    with torch.device("meta"):
        create_model(config.model.name, config.model.attention, 10, **config.model.overrides)


def test_performer_recipes_differ_only_in_attention_class_token_and_a_shorter_budget() -> None:
    swapped = {"model": {"name": True, "overrides": {"class_token", "global_pool"}}}
    shorter = [
        "train.epochs=48",
        "optim.warmup_epochs=3",
        "augment.policy=none",
        "augment.mixup=0",
        "augment.mix_probability=0.5",
        "model.overrides.drop_path_rate=0.0",
    ]
    baseline = load_config("vit-cifar10", shorter).model_dump(exclude=swapped)
    performers = [name for name in list_recipes() if name.startswith("performer-")]
    assert len(performers) == 6
    for name in performers:
        assert load_config(name).model_dump(exclude=swapped) == baseline
