"""What was saved by an earlier version loads and gives the numbers that it gave then."""

import json
import math
from pathlib import Path

import pytest
import torch
from published import wave
from tests.archives import RESULTS, unpacked
from tests.saved_configs import change_config
from torch import Tensor, nn

from saccade.config import CONFIG_VERSION, differences, load_config, make_config, with_values
from saccade.errors import ConfigError
from saccade.models import MODELS, create_model, load_model
from saccade.models.weight_files import write_tensors
from saccade.runs import RunFolder, find_runs
from saccade.train.build import build_model, read_data_description

# First logits of the networks of committed runs, as the version that trained them computed them,
# for weights and an image by `wave`.
LOGITS_OF_1 = {
    "taylorir-small-cifar10": [-2.20217761807, -2.25065983137, 3.3480284325, -5.28165591497],
    "taylorshift-vit-mu-cifar10": [5.04554102888, 4.89073857611, 4.31703289724, 3.12848687451],
    "vit-micro-cifar10": [-3.02927999029, 3.62970065464, -0.697720680389, -0.779116522294],
}


def fill(model: nn.Module) -> None:
    """Set every parameter and statistic by the formula."""
    for name, value in model.state_dict().items():
        if value.is_floating_point():
            waves = wave(name, tuple(value.shape))
            is_variance = name.endswith("running_var")
            value.copy_(waves.exp() if is_variance else waves / math.sqrt(_fan_in(value)))


def _fan_in(value: Tensor) -> int:
    return max(1, math.prod(value.shape[1:]))


def committed_run(recipe: str) -> RunFolder:
    return RunFolder(unpacked("cifar10/runs.tar.gz") / f"{recipe}_0_h200_202611")


@pytest.mark.parametrize("recipe", list(LOGITS_OF_1))
@torch.no_grad()
def test_committed_runs_build_the_networks_that_were_trained(recipe: str) -> None:
    run = committed_run(recipe)
    model = build_model(run.config(), read_data_description(run)).double().eval()
    fill(model)
    found = model(wave("input", (1, 3, 32, 32)))[0, :4]
    expected = torch.tensor(LOGITS_OF_1[recipe], dtype=torch.float64)
    torch.testing.assert_close(found, expected, rtol=1e-10, atol=0)
    dropouts = ("pos_drop_rate", "proj_drop_rate", "attn_drop_rate")
    assert [getattr(model.config, rate) for rate in dropouts] == [0, 0, 0]
    assert model.config.act_drop_rate is None


@torch.no_grad()
def test_the_variant_itself_gives_other_numbers_now() -> None:
    model = create_model("vit_micro_patch4_32").double().eval()
    fill(model)
    expected = torch.tensor(LOGITS_OF_1["vit-micro-cifar10"], dtype=torch.float64)
    assert not torch.allclose(model(wave("input", (1, 3, 32, 32)))[0, :4], expected, rtol=1e-10)


def test_every_committed_run_builds_with_as_many_weights_as_it_had() -> None:
    archives = [str(path.relative_to(RESULTS)) for path in sorted(RESULTS.glob("*/*.tar.gz"))]
    runs = [run for archive in archives for run in find_runs(unpacked(archive))]
    assert len(runs) > 70
    for run in runs:
        if not (summary := run.summary()):
            continue
        with torch.device("meta"):
            model = build_model(run.config(), read_data_description(run))
        assert sum(p.numel() for p in model.parameters()) == summary["parameters"], run.path
        assert model.config.norm_eps == 1e-6
        assert not model.config.no_embed_class


@pytest.mark.parametrize("name", list(MODELS))
def test_version_1_writes_out_what_variants_were_then(name: str) -> None:
    """Present values but for the fields that changed; what the file sets itself stands."""
    values = {"version": 1, "model": {"name": name, "overrides": {"proj_drop_rate": 0.25}}}
    config = make_config(values)
    assert config.version == CONFIG_VERSION
    assert config.model.overrides["proj_drop_rate"] == 0.25
    model = create_model(name, **{**config.model.overrides, "depth": 1})
    assert (model.config.norm_eps, model.config.no_embed_class) == (1e-6, False)
    assert (model.config.act, model.config.attn_drop_rate) == ("gelu", 0.0)
    assert make_config({"model": values["model"]}).model.overrides == {"proj_drop_rate": 0.25}


def test_a_variant_that_did_not_change_is_not_touched() -> None:
    former = make_config({"version": 1, "model": {"name": "vit_cifar"}})
    assert former == make_config({"model": {"name": "vit_cifar"}})


def test_a_new_recipe_does_not_go_on_with_an_old_run() -> None:
    former = make_config({"version": 1, "model": {"name": "light_vit"}})
    changed = differences(former, with_values(former, {"model.overrides": {}}))
    assert changed == ["model.overrides ({'norm_eps': 1e-06} -> {})"]


@pytest.mark.parametrize("model", [None, 3, {"overrides": 3}, {"attention_options": "x"}], ids=str)
def test_what_is_no_model_section_is_refused_as_before(model: object) -> None:
    with pytest.raises(ConfigError, match="model"):
        make_config({"version": 1, "model": model})


def test_version_1_keeps_the_temperature_without_normalization(tmp_path: Path) -> None:
    section = {"attention": "taylorshift", "attention_options": {"normalize_input": False}}
    former = make_config({"version": 1, "model": section}).model.attention_options
    assert former == {"normalize_input": False, "temperature": True}
    section["attention_options"] = {"normalize_input": True}
    former = make_config({"version": 1, "model": section}).model.attention_options
    assert former == {"normalize_input": True}


# A model saved by version 1, and its logits then.
SAVED_BY_1 = {
    "architecture": "SequenceTransformer",
    "name": None,
    "saccade_version": "0.1.0",
    "attention": "taylorshift",
    "attention_options": {"N0": 21, "normalize_input": False},
    "num_classes": 3,
    "embed_dim": 8,
    "depth": 1,
    "num_heads": 2,
    "pos_embed": "sinusoidal_1d",
    "max_seq_len": 9,
    "input_dim": 4,
    "embedding": "conv",
}
LOGITS_OF_SAVED = [-1.58435028447, -1.37137578406, -0.546443639867]


@torch.no_grad()
def test_a_model_saved_by_version_1_is_what_it_was(tmp_path: Path) -> None:
    options = {"N0": 21, "normalize_input": False, "temperature": True}
    sizes = {key: SAVED_BY_1[key] for key in ("num_classes", "embed_dim", "depth", "num_heads")}
    model = create_model(
        "taylorshift_imdb",
        **sizes,
        mlp_ratio=4.0,
        max_seq_len=9,
        input_dim=4,
        embedding="conv",
        attention_options=options,
    )
    fill(model)
    write_tensors(dict(model.state_dict()), tmp_path / "model.safetensors")
    (tmp_path / "config.json").write_text(json.dumps(SAVED_BY_1))
    again = load_model(tmp_path).double()
    found = again(wave("input", (1, 9, 4)))[0]
    expected = torch.tensor(LOGITS_OF_SAVED, dtype=torch.float64)
    torch.testing.assert_close(found, expected, rtol=1e-5, atol=1e-6)  # weights kept in float32
    again.save_pretrained(tmp_path / "again")
    assert torch.equal(load_model(tmp_path / "again").double()(wave("input", (1, 9, 4)))[0], found)


@pytest.mark.parametrize("version", [0, CONFIG_VERSION + 1, "1", None])
def test_a_config_of_another_version_is_refused(tmp_path: Path, version: object) -> None:
    create_model("light_vit").save_pretrained(tmp_path)
    record = json.loads((tmp_path / "config.json").read_text())
    assert record["config_version"] == CONFIG_VERSION
    change_config(tmp_path, config_version=version)
    with pytest.raises(ConfigError, match="config_version must be an integer from 1 to"):
        load_model(tmp_path)


def test_shipped_recipes_pin_what_was_measured() -> None:
    for recipe in LOGITS_OF_1:
        assert (
            differences(committed_run(recipe).config(), load_config(recipe), ignored=IGNORED) == []
        )


IGNORED = {"run.seed", "train.device", "data.root"}
