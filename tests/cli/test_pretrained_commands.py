"""`predict`, `explain` and `evaluate` without a run folder, and fine-tuning of shipped weights."""

from __future__ import annotations

import json
from collections.abc import Callable
from pathlib import Path

import numpy as np
import pytest
import torch
from benchmarks.ship_weights import ship_run
from PIL import Image
from sklearn.datasets import load_digits

from saccade.config import make_config
from saccade.data.cache import cache_path, is_cached
from saccade.errors import ConfigError
from saccade.models.pretrained import default_pretrained, list_pretrained
from saccade.runs import RunFolder
from saccade.train import load_model, train
from saccade.train.initialize import with_pretrained_model
from tests.train.tiny_runs import tiny

DIGITS = "hybrid_cifar.digits"
Saccade = Callable[..., tuple[int, str, str]]


@pytest.fixture
def zero(tmp_path: Path) -> Path:
    """The picture of a handwritten zero."""
    path = tmp_path / "zero.png"
    pixels = (load_digits().images[0] * 15).astype(np.uint8)
    Image.fromarray(pixels).resize((64, 64)).save(path)
    return path


def test_predict_without_a_run(saccade: Saccade, zero: Path) -> None:
    code, out, err = saccade("predict", zero)
    assert code == 0, err
    assert default_pretrained() in err
    assert out.startswith(str(zero))
    lone = saccade("predict", zero.parent)
    assert lone[0] == 0
    assert lone[1] == out
    code, out, err = saccade("predict", "--pretrained", DIGITS, zero, "--json")
    found = json.loads(out)
    assert (code, found["classes"][0]["class"], found["unsure"], err) == (0, "0", False, "")


def test_noise_is_unsure(saccade: Saccade, tmp_path: Path) -> None:
    noise = np.random.default_rng(0).integers(0, 255, (64, 64, 3), dtype=np.uint8)
    Image.fromarray(noise).save(tmp_path / "noise.png")
    code, out, _ = saccade("predict", "--pretrained", DIGITS, tmp_path / "noise.png")
    assert code == 0
    assert "  unsure: " in out


def test_predict_needs_an_image_and_a_known_name(saccade: Saccade, zero: Path) -> None:
    assert (
        "unknown pretrained weights 'digitz'"
        in saccade("predict", "--pretrained", "digitz", zero)[2]
    )
    code, _, err = saccade("predict", zero.parent / "missing", zero)
    assert code == 2
    assert "missing" in err


@pytest.mark.parametrize("command", ["predict", "explain"])
def test_a_missing_image_is_named(saccade: Saccade, tmp_path: Path, command: str) -> None:
    code, out, err = saccade(command, tmp_path / "missing.jpg")
    assert (code, out) == (3, "")
    assert f"IMAGE '{tmp_path / 'missing.jpg'}': no such file or folder" in err


def test_a_url_is_refused_as_an_image(saccade: Saccade) -> None:
    code, _, err = saccade("predict", "https://example.org/zero.jpg")
    assert code == 2
    assert "URLs are not fetched" in err


def test_run_may_be_the_name_of_weights(saccade: Saccade, zero: Path) -> None:
    by_option = saccade("predict", "--pretrained", DIGITS, zero)
    assert saccade("predict", DIGITS, zero) == by_option
    code, _, err = saccade("export", DIGITS, "--out", zero.parent / "hub", "--format", "hub")
    assert code == 0, err
    assert saccade("predict", zero.parent / "hub", zero)[1] == by_option[1]
    assert "not a run folder" in saccade("predict", "hybrid_cifar", zero)[2]


def test_explain_without_a_run(saccade: Saccade, zero: Path) -> None:
    out = zero.parent / "figures"
    code, told, err = saccade("explain", "--pretrained", DIGITS, zero, "test:0", "--out", out)
    assert code == 0, err
    assert {path.name for path in out.iterdir()} >= {"zero.png", "zero.svg", "test-0.png"}
    assert "0 0.9" in told
    code, _, err = saccade("explain", "--pretrained", DIGITS, "--data", "test:0", "--out", out)
    assert code == 2
    assert "--data and --foreground need a run folder" in err


def test_evaluate_reaches_the_claimed_accuracy(saccade: Saccade) -> None:
    code, out, err = saccade("evaluate", "--pretrained", DIGITS, "--json")
    assert code == 0, err
    assert json.loads(out)["correct"] == 356
    assert saccade("evaluate")[0] == 2
    assert saccade("evaluate", "run", "--pretrained", DIGITS)[0] == 2


@pytest.mark.slow
@pytest.mark.parametrize("name", [name for name in list_pretrained() if name != DIGITS])
def test_other_weights_reach_theirs_where_the_data_is(saccade: Saccade, name: str) -> None:
    from saccade.models.hub import read_config
    from saccade.models.pretrained import pretrained_folder

    trained = read_config(pretrained_folder(name))["trained"]
    if not is_cached(cache_path(trained["data"]["name"])):
        pytest.skip(f"no {trained['data']['name']} on this machine")
    code, out, err = saccade("evaluate", "--pretrained", name, "--json")
    assert code == 0, err
    assert json.loads(out)["accuracy"] == pytest.approx(trained["result"]["accuracy"], abs=3e-4)


def test_fine_tuning_starts_from_the_weights(tmp_path: Path) -> None:
    config = make_config(
        {
            "model": {"pretrained": DIGITS},
            "data": {"name": "digits", "num_train": 200, "num_test": 50, "workers": 0},
            "optim": {"lr": 1e-4, "layer_decay": 0.5},
            "train": {"epochs": 1, "batch_size": 32},
        }
    )
    summary = train(config, tmp_path / "run", quiet=True)
    assert summary["test_accuracy"] > 0.9
    record = RunFolder(tmp_path / "run").initial()
    assert (record["file"], record["reset"], record["own"]) == (DIGITS, [], [])
    saved = RunFolder(tmp_path / "run").config().model
    assert (saved.name, saved.attention) == ("hybrid_cifar", "taylor")
    assert saved.overrides["embed_dim"] == 64  # the folder describes its model whole
    model, _ = load_model(tmp_path / "run")
    assert sum(p.numel() for p in model.parameters()) == 125_866


def test_another_size_and_other_classes(tmp_path: Path) -> None:
    values = {"pretrained": DIGITS, "overrides": {"drop_path_rate": 0.1}}
    config = with_pretrained_model(make_config({"model": values, "data": {"name": "shapes"}}))
    assert config.data.image_size == 8
    assert config.model.overrides["drop_path_rate"] == 0.1
    assert with_pretrained_model(config) == config
    with pytest.raises(ConfigError, match=r"init.from must be null with model.pretrained="):
        with_pretrained_model(
            make_config({"model": {"pretrained": DIGITS}, "init": {"from": str(tmp_path)}})
        )


def test_weights_for_other_channels_are_refused_by_name(tmp_path: Path) -> None:
    data = {"name": "shapes", "num_train": 20, "num_test": 5, "workers": 0}
    config = make_config({"model": {"pretrained": DIGITS}, "data": data})
    needed = rf"model.pretrained='{DIGITS}' must have the input channels of the data, 3, got 1"
    with pytest.raises(ConfigError, match=needed):
        train(config, tmp_path / "run", quiet=True)


def test_a_run_becomes_a_model_that_ships(tmp_path: Path) -> None:
    config = tiny("train.epochs=3", "data.num_test=null", "run.checkpoint_every_steps=null")
    train(config, tmp_path / "run", quiet=True)
    record = ship_run(RunFolder(tmp_path / "run"), tmp_path / "model", max_error=0.99)
    from safetensors.torch import load_file

    halves = load_file(tmp_path / "model" / "model.safetensors")
    assert {t.dtype for t in halves.values() if t.is_floating_point()} == {torch.float16}
    card = (tmp_path / "model" / "README.md").read_text()
    assert f"{100 * record['result']['accuracy']:.2f} % of 359 test images" in card
    assert "is called unsure" in card
    assert str(tmp_path) not in card
    again = load_model(tmp_path / "run")[0]
    assert torch.equal(halves["head.weight"], again.state_dict()["head.weight"].half())
    with pytest.raises(ConfigError, match=r"max_error must be reachable with \d+ images"):
        ship_run(RunFolder(tmp_path / "run"), tmp_path / "other", max_error=0.001)
