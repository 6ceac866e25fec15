"""Folders of `save_pretrained`: their model card, and commands that accept them like a run."""

import json
import re
from collections.abc import Callable
from pathlib import Path

import numpy as np
import pytest
import torch
import yaml
from huggingface_hub import ModelCard
from PIL import Image

from saccade import create_model
from saccade.config import make_config
from saccade.errors import ConfigError, DataError
from saccade.models import VisionTransformer
from saccade.models import load_model as load_saved
from saccade.runs import RunFolder
from saccade.train import load_model, train
from saccade.train.inference import Predictor, evaluate_run
from tests.cli.conftest import saccade  # noqa: F401 - a fixture
from tests.saved_configs import change_config
from tests.train.tiny_runs import tiny


@pytest.fixture(scope="module")
def saved(finished: Path, tmp_path_factory: pytest.TempPathFactory) -> Path:
    """The finished run's model, saved."""
    out = tmp_path_factory.mktemp("saved") / "model"
    load_model(finished)[0].save_pretrained(out)
    return out


def card_of(model: object, folder: Path) -> ModelCard:
    model.save_pretrained(folder)
    return ModelCard.load(folder / "README.md")


def test_the_card_describes_the_run(finished: Path, saved: Path) -> None:
    card, summary = ModelCard.load(saved / "README.md"), RunFolder(finished).summary()
    assert card.data.library_name == "saccade"
    assert card.data.pipeline_tag == "image-classification"
    assert {"saccade", "image-classification", "vision-transformer", "softmax"} <= set(
        card.data.tags
    )
    [result] = card.data.eval_results
    assert (result.dataset_name, result.dataset_split) == ("digits", "test")
    assert (result.metric_type, result.metric_value) == ("accuracy", summary["test_accuracy"])
    assert f"{100 * summary['test_accuracy']:.2f} % of {summary['test_count']} test" in card.text
    for section in ("Use", "Training data", "Recipe", "Accuracy", "Limits"):
        assert f"\n## {section}\n" in card.text
    assert '`"digits"`: 10 classes, images of 1 x 8 x 8, val_fraction 0.1' in card.text
    assert "6 of 6 epochs" in card.text
    recipe = yaml.safe_load(re.search(r"```yaml\n(.*?)```", card.text, flags=re.DOTALL)[1])
    assert make_config(recipe) == RunFolder(finished).config()
    assert "Not known" not in card.text


def test_saved_files_contain_no_local_path(tmp_path: Path) -> None:
    for label in ("cat", "dog"):
        (tmp_path / "my-data" / "train" / label).mkdir(parents=True)
        for index in range(10):
            pixels = np.random.default_rng(index).integers(0, 255, (8, 8, 3), dtype=np.uint8)
            Image.fromarray(pixels).save(tmp_path / "my-data" / "train" / label / f"{index}.png")
    chosen = ["data.name=folder", f"data.root={tmp_path / 'my-data'}", "data.image_size=8"]
    config = tiny(*chosen, "data.num_train=null", "data.num_test=null", "train.epochs=1")
    train(config, tmp_path / "run", quiet=True)
    load_model(tmp_path / "run")[0].save_pretrained(tmp_path / "model")
    for name in ("config.json", "README.md"):
        text = (tmp_path / "model" / name).read_text()
        assert str(tmp_path) not in text
        assert "folder" in text
    assert "\nsaccade evaluate FOLDER --data-root DIR\n" in text
    assert "- name: vit_micro_patch4_32, softmax\n" in text  # metadata is not Markdown
    with pytest.raises(ConfigError, match=r"trained on a folder of images.* --data-root DIR$"):
        evaluate_run(tmp_path / "model")
    again = evaluate_run(
        tmp_path / "model", split="train", data=config.data.model_copy(update={"workers": 0})
    )
    assert again["count"] == evaluate_run(tmp_path / "run", split="train")["count"]


def test_a_card_marks_unknown_facts(tmp_path: Path) -> None:
    card = card_of(create_model("light_vit", "taylor"), tmp_path)
    assert card.data.pipeline_tag == "image-classification"
    assert card.data.eval_results is None
    assert card.text.count("Not known: the model was not loaded from a run") == 3
    assert "`taylor`: 1 + s + s^2/2" in card.text


@pytest.mark.parametrize(
    ("make", "pipeline", "tag"),
    [
        (lambda: create_model("taylorshift_pathfinder"), None, "sequence-classification"),
        (lambda: create_model("light_vit", num_classes=0), "image-feature-extraction", "softmax"),
        (lambda: create_model("light_vit", global_pool=""), "image-feature-extraction", "softmax"),
    ],
    ids=["sequence", "no classes", "no pooling"],
)
def test_only_image_classifiers_have_the_image_classification_tag(
    tmp_path: Path, make: Callable[[], object], pipeline: str | None, tag: str
) -> None:
    card = card_of(make(), tmp_path)
    assert card.data.pipeline_tag == pipeline
    assert tag in card.data.tags
    assert "image-classification" not in (tmp_path / "README.md").read_text()


def test_no_accuracy_is_claimed_for_other_weights(saved: Path, tmp_path: Path) -> None:
    same = VisionTransformer.from_pretrained(saved)
    assert card_of(same, tmp_path / "same").data.eval_results
    changed = VisionTransformer.from_pretrained(saved)
    with torch.no_grad():
        changed.head.bias[0] += 1e-3
    card = card_of(changed, tmp_path / "changed")
    assert card.data.eval_results is None
    assert "Not known: the weights changed after the run, which classified" in card.text
    again = card_of(load_saved(tmp_path / "changed"), tmp_path / "again")
    assert again.data.eval_results is None


def test_other_weights_of_a_run_have_their_own_accuracy(finished: Path, tmp_path: Path) -> None:
    summary = RunFolder(finished).summary()
    for which in ("best", "last"):
        card = card_of(load_model(finished, which)[0], tmp_path / which)
        measured = [result.metric_value for result in card.data.eval_results or []]
        assert measured == [summary[f"test_accuracy_{which}"]]


def test_evaluate_and_predict_give_the_same_results_as_for_the_run(
    saccade: Callable[..., tuple[int, str, str]],  # noqa: F811
    finished: Path,
    saved: Path,
    tmp_path: Path,
) -> None:
    Image.fromarray(np.arange(144, dtype=np.uint8).reshape(12, 12)).save(tmp_path / "gray.png")
    results, answers = [], []
    for folder in (finished, saved):
        code, out, err = saccade("evaluate", folder, "--json")
        assert (code, err) == (0, "")
        results.append(json.loads(out))
        code, out, err = saccade("predict", folder, tmp_path / "gray.png", "--json")
        assert (code, err) == (0, "")
        answers.append(json.loads(out))
    varying = {"run", "weights", "seconds", "img_per_s"}
    assert results[1]["weights"] == "saved"
    assert [{k: v for k, v in r.items() if k not in varying} for r in results[:1]] == [
        {k: v for k, v in r.items() if k not in varying} for r in results[1:]
    ]
    assert answers[0] == answers[1]
    code, _, err = saccade("evaluate", saved, "--weights", "best")
    assert (code, err) == (2, "saccade: weights must be None for a saved model, got 'best'\n")


def test_data_must_be_named_for_a_model_without_a_training_record(
    saccade: Callable[..., tuple[int, str, str]],  # noqa: F811
    saved: Path,
    tmp_path: Path,
) -> None:
    model = VisionTransformer.from_pretrained(saved)
    model.trained = None
    model.save_pretrained(tmp_path / "model")
    code, _, err = saccade("evaluate", tmp_path / "model")
    assert code == 2
    assert "does not say what it was trained on: name the data, as in --data cifar10" in err
    code, out, err = saccade("evaluate", tmp_path / "model", "--data", "digits", "--json")
    assert code == 0, err
    assert json.loads(out)["count"] > 100
    code, _, err = saccade("evaluate", saved, "--data", "shapes")
    assert code == 3
    assert "'shapes' does not fit the model" in err
    assert "8 classes instead of 10" in err


@pytest.mark.parametrize("gray", [True, False], ids=["gray", "colors"])
def test_classes_takes_an_image_in_any_form(finished: Path, tmp_path: Path, gray: bool) -> None:
    predictor = Predictor(finished, device="cpu")
    shape = (20, 14) if gray else (20, 14, 3)
    pixels = np.random.default_rng(0).integers(0, 255, shape, dtype=np.uint8)
    image, path = Image.fromarray(pixels), tmp_path / "image.png"
    image.save(path)
    tensor = torch.from_numpy(pixels)
    tensor = tensor[None] if gray else tensor.permute(2, 0, 1)
    expected = predictor.classes(path)
    assert predictor.classes(str(path)) == expected
    assert predictor.classes(image) == expected
    assert predictor.classes(tensor) == expected
    assert predictor.classes(Image.open(path)) == expected


def test_classes_turns_an_image_upright_and_leaves_it_as_it_was(
    finished: Path, tmp_path: Path
) -> None:
    predictor = Predictor(finished, device="cpu")
    pixels = np.random.default_rng(0).integers(0, 255, (9, 12, 3), dtype=np.uint8)
    exif = Image.Exif()
    exif[0x0112] = 6  # turned by a quarter
    Image.fromarray(pixels).save(tmp_path / "turned.png", exif=exif)
    image = Image.open(tmp_path / "turned.png")
    upright = predictor.classes(Image.fromarray(np.rot90(pixels, -1)))
    assert predictor.classes(image) == upright == predictor.classes(tmp_path / "turned.png")
    assert image.size == (12, 9)
    assert predictor.classes(Image.fromarray(pixels)) != upright


@pytest.mark.parametrize(
    ("image", "kind", "message"),
    [
        (3, ConfigError, "image must be a PIL image, the path of a file, or a tensor .* got int"),
        (torch.zeros(2, 1, 8, 8), ConfigError, r"got Tensor \(2, 1, 8, 8\) of torch.float32"),
        (torch.zeros(4, 8, 8, dtype=torch.uint8), ConfigError, r"got Tensor \(4, 8, 8\) of"),
        (torch.zeros(1, 9, 8), ConfigError, r"image size of x must be \(8, 8\), got \(9, 8\)"),
        ("nowhere.png", DataError, "no such file"),
    ],
    ids=str,
)
def test_classes_refuses_other_arguments(
    finished: Path, image: object, kind: type[Exception], message: str
) -> None:
    with pytest.raises(kind, match=message):
        Predictor(finished, device="cpu").classes(image)


def test_a_model_that_is_not_square_gets_the_middle_of_the_image(tmp_path: Path) -> None:
    options = {"img_size": (8, 12), "in_chans": 3, "num_classes": 3}
    create_model("light_vit", class_names=("a", "b", "c"), **options).save_pretrained(tmp_path)
    predictor = Predictor(tmp_path, device="cpu")
    pixels = np.random.default_rng(0).integers(0, 255, (12, 12, 3), dtype=np.uint8)
    other = pixels.copy()
    other[:2] = other[-2:] = 0  # the rows above and below the middle eight
    assert predictor.classes(Image.fromarray(pixels)) == predictor.classes(Image.fromarray(other))
    other[2] = 0
    assert predictor.classes(Image.fromarray(pixels)) != predictor.classes(Image.fromarray(other))
    assert {name for name, _ in predictor.classes(Image.fromarray(pixels))} == {"a", "b", "c"}


@pytest.mark.parametrize(
    ("part", "value"),
    [
        ("data", 3),
        ("config", None),
        ("epochs", "6"),
        ("result", {"accuracy": "high", "count": 3}),
        ("data", {"name": "digits"}),
        ("fingerprint", None),
        (None, [1, 2]),
    ],
    ids=str,
)
def test_a_broken_record_is_named(
    saved: Path, tmp_path: Path, part: str | None, value: object
) -> None:
    load_saved(saved).save_pretrained(tmp_path)
    trained = json.loads((tmp_path / "config.json").read_text())["trained"]
    change_config(tmp_path, trained=value if part is None else trained | {part: value})
    with pytest.raises(ConfigError, match=rf"config\.json: trained(\.{part})?"):
        load_saved(tmp_path)
    with pytest.raises(ConfigError, match=r"config\.json: trained"):
        evaluate_run(tmp_path)


@pytest.mark.parametrize(
    ("make", "message"),
    [
        (lambda: create_model("taylorshift_pathfinder"), "must record what its sequences are"),
        (lambda: create_model("light_vit", num_classes=0), "must hold a classifier"),
    ],
    ids=["sequence", "no classes"],
)
def test_a_model_that_classifies_no_images_is_refused(
    tmp_path: Path, make: Callable[[], object], message: str
) -> None:
    make().save_pretrained(tmp_path)
    with pytest.raises(ConfigError, match=message):
        Predictor(tmp_path)


def test_names_cannot_write_markup_into_the_card(tmp_path: Path) -> None:
    names = ("<script>alert(1)</script>", "a|b\n## Accuracy\n100 %")
    card = card_of(create_model("light_vit", num_classes=2, class_names=names), tmp_path)
    assert "<script>" not in card.text
    assert card.text.count("\n## Accuracy\n") == 1
