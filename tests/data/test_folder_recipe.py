"""A folder of images given instead of a recipe: the chosen recipe, and the commands."""

import shutil
from pathlib import Path

import pytest
from PIL import Image

from saccade.config import load_config, make_config, with_overrides
from saccade.data import load_splits
from saccade.data.folder_recipe import FolderFacts, choose_recipe, inspect_folder, resolve_recipe
from saccade.errors import ConfigError, DataError
from saccade.models import VisionTransformer
from saccade.runs import RunFolder
from saccade.study.comparison import make_plan
from saccade.train.build import build_model
from saccade.train.cost import _steps_and_images, describe_cost
from saccade.train.distributed import connect
from tests.cli.conftest import Saccade
from tests.data.pictures import digits_folder, good_folder, save


@pytest.fixture(scope="module")
def digits(tmp_path_factory: pytest.TempPathFactory) -> Path:
    return digits_folder(tmp_path_factory.mktemp("digits") / "my-images", 0, 10)


def test_train_takes_a_folder_and_says_what_it_chose(
    saccade: Saccade, digits: Path, tmp_path: Path
) -> None:
    code, out, err = saccade(
        "train", digits, "--out", tmp_path / "run", "train.epochs=1", "data.workers=0"
    )
    assert code == 0, err
    assert "100 images in 10 classes, about 8 pixels" in err
    assert "image size 8, patch 1: 64 tokens; batch 8, 100 epochs" in err
    assert f"`saccade init {digits}` writes this recipe" in err
    assert "images of 8 x 8 make 64 tokens with a patch of 1; an epoch of" in err
    assert RunFolder(tmp_path / "run").config().data.root == digits
    assert "test accuracy" in out


def test_a_dry_run_reports_tokens_and_time(saccade: Saccade, digits: Path, tmp_path: Path) -> None:
    words = ["--out", tmp_path / "run", "--dry-run", "data.workers=0"]
    code, _, err = saccade("train", digits, *words, "train.batch_size=512")
    assert code == 0, err
    assert "images of 8 x 8 make 64 tokens with a patch of 1; an epoch of" in err
    assert "train.batch_size=512 is more than the 73 training" in err
    code, _, err = saccade("train", digits, *words, "--quiet")
    assert code == 0, err
    assert "tokens with a patch" not in err


def test_init_writes_the_recipe_that_train_takes(
    saccade: Saccade, digits: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.chdir(tmp_path)
    code, out, err = saccade("init", digits)
    assert code == 0, err
    assert "recipe       my-images.yaml" in out
    text = (tmp_path / "my-images.yaml").read_text()
    assert text.startswith("# 100 images in 10 classes, about 8 pixels\n")
    assert load_config("my-images.yaml") == resolve_recipe(digits)
    code, _, err = saccade("init", digits)
    assert code == 2
    assert "'my-images.yaml' exists" in err
    assert saccade("init", digits, "--force", "--out", "sub/x.yaml")[0] == 0
    assert (tmp_path / "sub" / "x.yaml").read_text() == text


def test_compare_and_tune_take_a_folder(saccade: Saccade, digits: Path, tmp_path: Path) -> None:
    told: list[str] = []
    plan = make_plan(
        str(digits), ["train.epochs=1"], attentions=["softmax", "taylor"], tell=told.append
    )
    assert plan.base.data.root == digits
    assert plan.base.train.epochs == 1
    assert len(told) == 4
    pytest.importorskip("optuna", reason="optuna is not installed")
    short = ["train.epochs=1", "data.workers=0", "model.overrides.depth=1"]
    code, out, err = saccade("tune", digits, *short, "--trials", 1, "--out", tmp_path / "tune")
    assert code == 0, err
    assert "best         trial 0" in out
    assert "100 images in 10 classes" in err


@pytest.mark.parametrize("side", [5, 8, 13, 28, 32, 50, 96, 128, 224, 3000])
@pytest.mark.parametrize("count", [8, 300, 5_000, 1_000_000])
def test_a_chosen_recipe_builds_a_model_of_at_most_257_tokens(side: int, count: int) -> None:
    recipe, text = choose_recipe(FolderFacts(Path("x"), count, 3, count // 3, side, False))
    size = recipe.data.image_size
    assert size is not None
    assert size <= max(side, 4)
    patch = recipe.model.overrides["patch_size"]
    assert (size // patch) ** 2 <= 256
    assert 8 <= recipe.train.batch_size <= 128
    assert 10 <= recipe.train.epochs <= 100
    assert len(recipe.search) == 3
    assert text.count("\n# ") >= 2


def test_the_model_of_a_chosen_recipe_can_be_built(tmp_path: Path) -> None:
    save(Image.new("RGB", (300, 260)), good_folder(tmp_path) / "cat" / "x.png")
    for side in (24, 230):
        for path in tmp_path.rglob("*.*"):
            save(Image.new("RGB", (side + 9, side)), path.with_suffix(".png"))
        recipe = resolve_recipe(tmp_path, ["data.val_fraction=0", "data.workers=0"])
        model = build_model(recipe, load_splits(recipe.data).info)
        assert isinstance(model, VisionTransformer)
        assert model.patch_embed.num_patches == (36 if side == 24 else 196)


def test_a_folder_without_images_is_refused(saccade: Saccade, digits: Path, tmp_path: Path) -> None:
    (tmp_path / "empty").mkdir()
    code, _, err = saccade("train", tmp_path / "empty", "--out", tmp_path / "run")
    assert code == 3
    assert "must have at least two classes, one sub-folder each, got no sub-folder" in err
    (tmp_path / "empty" / "config.yaml").touch()
    code, _, err = saccade("train", tmp_path / "empty", "--out", tmp_path / "run")
    assert code == 2
    assert "RECIPE must be a recipe's name, a YAML file or a folder of images" in err
    root = shutil.copytree(digits, tmp_path / "broken")
    for path in root.rglob("*.png"):
        path.write_bytes(b"")
    with pytest.raises(DataError, match="none can be read"):
        inspect_folder(root)


def test_a_recipe_name_takes_precedence_over_a_folder(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    good_folder(tmp_path / "digits-quick")
    monkeypatch.chdir(tmp_path)
    assert resolve_recipe("digits-quick").data.name == "digits"
    with pytest.raises(
        ConfigError, match="unknown recipe, file or folder 'digits_quick': did you mean"
    ):
        resolve_recipe("digits_quick")


@pytest.mark.parametrize(
    ("num_images", "batch", "expected"), [(72, 4, (18, 72)), (75, 4, (18, 72)), (72, 512, (1, 72))]
)
def test_an_estimate_counts_the_images_of_an_epoch(
    num_images: int, batch: int, expected: tuple[int, int]
) -> None:
    assert _steps_and_images(num_images, batch) == expected


def test_the_default_image_size_is_reported_with_tokens_and_time(digits: Path) -> None:
    narrow = [
        "model.overrides.embed_dim=16",
        "model.overrides.depth=1",
        "model.overrides.num_heads=2",
    ]
    data = ["data.name=folder", f"data.root={digits}", "data.workers=0", "train.batch_size=4"]
    config = with_overrides(make_config({"model": {"name": "vit_cifar"}}), [*narrow, *data])
    splits = load_splits(config.data)
    device = connect("cpu").device
    told = describe_cost(config, splits, device)
    assert told.startswith(
        "data.image_size is not set, so it is 224: images of 224 x 224 make 3,137"
    )
    assert "tokens with a patch of 4; an epoch of 18 steps takes about" in told
    assert told.endswith("; data.image_size=32 makes 64 patches")
    small = with_overrides(config, ["data.image_size=8"])
    assert "is not set" not in describe_cost(small, load_splits(small.data), device)
    resident = with_overrides(config, ["data.name=digits", "data.root=null"])
    assert describe_cost(resident, load_splits(resident.data), device) == ""
