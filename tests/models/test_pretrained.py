"""Trained weights that ship: their index and checksums, and loading them for other classes."""

from __future__ import annotations

import json
import shutil
from pathlib import Path

import pytest
import torch

import saccade
from saccade.errors import ConfigError, UnknownNameError
from saccade.io import sha256_file
from saccade.models import pretrained
from saccade.models.hub import read_config
from saccade.models.pretrained import default_pretrained, find_pretrained, pretrained_folder

DIGITS = "hybrid_cifar.digits"
NAMES = saccade.list_models(pretrained=True)
MAX_PACKAGED = 12 << 20


def test_the_names_match_a_pattern() -> None:
    assert DIGITS in NAMES
    assert saccade.list_models("*.digits", pretrained=True) == [DIGITS]
    assert default_pretrained() in NAMES
    assert not set(NAMES) & set(saccade.list_models())


@pytest.mark.parametrize("name", NAMES)
def test_every_model_is_whole_and_says_where_it_comes_from(name: str) -> None:
    folder = pretrained_folder(name)
    record, model = read_config(folder), saccade.create_model(name, pretrained=True)
    assert not model.training
    assert record["name"] == find_pretrained(name).variant
    assert all(p.isfinite().all() for p in model.parameters())
    trained = record["trained"]
    assert {"seed", "environment", "config", "result", "unsure"} <= set(trained)
    assert {"saccade", "device"} <= set(trained["environment"])  # git is not on every machine
    accuracy = f"{100 * trained['result']['accuracy']:.2f} %"
    assert accuracy in find_pretrained(name).title
    card = (folder / "README.md").read_text()
    assert f"{accuracy} of {trained['result']['count']:,} test images" in card
    assert f"below {trained['unsure']['below']:.3f} is called unsure" in card


def test_the_package_stays_small() -> None:
    packaged = [p for p in pretrained.PACKAGED.rglob("*") if p.is_file()]
    assert sum(p.stat().st_size for p in packaged) < MAX_PACKAGED


def test_a_variant_stands_for_its_weights() -> None:
    assert find_pretrained("hybrid_cifar").name == DIGITS
    with pytest.raises(UnknownNameError, match=r"did you mean 'hybrid_cifar.digits'"):
        saccade.create_model("hybrid_cifar.digit", pretrained=True)


def test_other_classes_and_sizes() -> None:
    own = saccade.create_model(DIGITS, pretrained=True)
    other = saccade.create_model(DIGITS, pretrained=True, num_classes=3, img_size=16)
    assert other(torch.zeros(2, 1, 16, 16)).shape == (2, 3)
    kept = "blocks.0.mlp.fc1.weight"
    assert torch.equal(own.state_dict()[kept], other.state_dict()[kept])
    assert own.pos_embed.shape[1] != other.pos_embed.shape[1]
    assert other.trained is None  # its record would be untrue
    assert own.trained is not None
    features = saccade.create_model(DIGITS, pretrained=True, features_only=True)
    assert len(features(torch.zeros(1, 1, 8, 8))) == 3


def test_a_changed_architecture_is_refused() -> None:
    with pytest.raises(ConfigError, match=r"overrides must fit .* got 'depth', which change 12 "):
        saccade.create_model(DIGITS, pretrained=True, depth=2)


@pytest.fixture
def copied(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    """A copy of the packaged weights, in a folder that takes the package's place."""
    place = tmp_path / "weights"
    shutil.copytree(pretrained.PACKAGED, place)
    monkeypatch.setattr(pretrained, "PACKAGED", place)
    return place


@pytest.mark.parametrize("file", ["config.json", "model.safetensors"])
def test_a_changed_file_is_refused(copied: Path, file: str) -> None:
    path = copied / DIGITS / file
    content = bytearray(path.read_bytes())
    content[-5] ^= 1
    path.write_bytes(content)
    with pytest.raises(ConfigError, match=rf"checksum mismatch for .*{file}': expected sha256 "):
        saccade.create_model(DIGITS, pretrained=True)
    path.unlink()
    with pytest.raises(ConfigError, match=r"is missing: install saccade again"):
        pretrained_folder(DIGITS)


def test_weights_outside_the_package(
    copied: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    (copied / DIGITS).rename(tmp_path / DIGITS)
    monkeypatch.setattr(pretrained, "REPOSITORY", tmp_path / "none")
    with pytest.raises(
        ConfigError, match=r"not part of the package: copy weights/.*SACCADE_WEIGHT"
    ):
        pretrained_folder(DIGITS)
    monkeypatch.setenv(pretrained.ENVIRONMENT, str(tmp_path))
    assert pretrained_folder(DIGITS) == tmp_path / DIGITS


def test_the_index_has_the_checksums_of_the_files() -> None:
    index = json.loads((pretrained.PACKAGED / "index.json").read_text())
    for name, row in index["weights"].items():
        folder = (pretrained.PACKAGED if row["in_package"] else pretrained.REPOSITORY) / name
        assert row["sha256"] == {file: sha256_file(folder / file) for file in row["sha256"]}
