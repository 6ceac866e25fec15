"""Models of others become a ViT of saccade with the same logits; everything else is one line."""

import json
import pickle

import pytest
import timm
import torch
import transformers
from safetensors.torch import load_file, save_file

from saccade.convert.conversion import inspect
from saccade.convert.source import open_source
from saccade.errors import ConfigError, DataError
from tests.integrations.tiny import enlarged

SIZES = {"img_size": 8, "patch_size": 2, "embed_dim": 24, "depth": 2, "num_heads": 2}


@pytest.fixture
def timm_file(tmp_path):
    """timm's ViT for the digits data set, and a file of its weights."""
    torch.manual_seed(0)
    model = enlarged(timm.create_model("test_vit", num_classes=10))
    path = tmp_path / "weights.safetensors"
    save_file(model.state_dict(), path)
    return model, path


@pytest.fixture
def hf_folder(tmp_path):
    config = transformers.ViTConfig(
        hidden_size=24,
        num_hidden_layers=2,
        num_attention_heads=2,
        intermediate_size=48,
        image_size=8,
        patch_size=2,
        num_channels=1,
        num_labels=10,
        id2label={str(i): str(i) for i in range(10)},
        label2id={str(i): i for i in range(10)},
    )
    model = enlarged(transformers.ViTForImageClassification(config))
    model.save_pretrained(tmp_path / "vit")
    return model, tmp_path / "vit"


def test_a_model_of_timm_with_a_file(timm_file):
    model, path = timm_file
    torch.save(model.state_dict(), path.with_suffix(".pt"))
    for file in (path, path.with_suffix(".pt")):
        source = open_source("timm:test_vit", file)
        x = torch.randn(2, 3, *source.model.config.img_size)
        torch.testing.assert_close(source.model(x), model(x), rtol=1e-4, atol=1e-4)
        assert source.kind == "timm"
        assert source.model.config.mean == tuple(model.pretrained_cfg["mean"])


def test_a_folder_of_timm(tmp_path):
    folder = tmp_path / "hub"
    folder.mkdir()
    model = enlarged(timm.create_model("test_vit", num_classes=10, init_values=0.3))
    save_file(model.state_dict(), folder / "model.safetensors")
    labels = [f"class {i}" for i in range(10)]
    record = {
        "architecture": "test_vit",
        "model_args": {"init_values": 0.3},
        "pretrained_cfg": {"mean": [0.1] * 3, "std": [0.2] * 3, "label_names": labels},
    }
    (folder / "config.json").write_text(json.dumps(record))
    found = open_source(folder).model
    config, x = found.config, torch.randn(2, 3, *found.config.img_size)
    torch.testing.assert_close(found(x), model(x), rtol=1e-4, atol=1e-4)
    assert config.mean == (0.1,) * 3
    assert config.class_names == tuple(labels)


def test_a_folder_of_transformers(hf_folder):
    model, folder = hf_folder
    source = open_source(folder)
    x = torch.randn(2, 1, 8, 8)
    torch.testing.assert_close(source.model(x), model(x).logits, rtol=1e-4, atol=1e-4)
    assert source.model.config.class_names == tuple(str(i) for i in range(10))


def test_it_is_diagnosed_on_data_with_its_classes(hf_folder):
    _, folder = hf_folder
    known, _ = inspect(folder, data="digits")
    assert len(known.diagnosis.layers) == 2
    assert known.teacher.count == 359


def test_a_model_saved_by_saccade(tmp_path):
    from saccade import create_model

    model = create_model("vit_tiny_patch16_224", num_classes=10, in_chans=1, **SIZES).eval()
    model.save_pretrained(tmp_path)
    found = open_source(tmp_path)
    x = torch.randn(2, 1, 8, 8)
    torch.testing.assert_close(found.model(x), model(x), rtol=0, atol=0)
    with pytest.raises(ConfigError, match="--data must name the data of"):
        inspect(tmp_path)


@pytest.mark.parametrize(
    ("classes", "words"),
    [
        ([f"class {i}" for i in range(10)], "got no class 'class 0'"),
        ([str(i) for i in range(9)], "got 10 classes instead of 9"),
    ],
)
def test_data_of_other_classes_is_one_line(hf_folder, classes, words):
    _, folder = hf_folder
    record = json.loads((folder / "config.json").read_text())
    record["id2label"] = dict(enumerate(classes))
    (folder / "config.json").write_text(json.dumps(record))
    if len(classes) == 9:
        state = load_file(folder / "model.safetensors")
        head = {key: state[key][:9].contiguous() for key in state if key.startswith("classifier")}
        save_file(state | head, folder / "model.safetensors")
    with pytest.raises(DataError, match=words) as caught:
        inspect(folder, data="digits")
    assert "\n" not in str(caught.value)


def weights_of(name, folder, **options):
    path = folder / "other.safetensors"
    model = timm.create_model(name, num_classes=10, **options)
    save_file({k: v.contiguous() for k, v in model.state_dict().items()}, path)
    return path


@pytest.mark.parametrize(
    ("name", "words"),
    [
        ("resnet18", "got 'resnet18', a ResNet"),
        ("test_beit", "relative position bias"),
        ("test_vit2", "must be a plain ViT to become a run, got 'test_vit2' with"),
        ("test_vit3", "must be a plain ViT to become a run, got 'test_vit3' with"),
        ("no_such_model", "SOURCE must name a model of timm, got 'no_such_model'"),
    ],
)
def test_other_models_of_timm_are_one_line(name, words, tmp_path):
    if name == "test_beit":
        name = "beit_base_patch16_224"
    known = timm.is_model(name)
    sizes = {"depth": 1, "embed_dim": 24, "num_heads": 2} if name.startswith("beit") else {}
    path = weights_of(name, tmp_path, **sizes) if known else tmp_path / "none"
    with pytest.raises(ConfigError, match=words) as caught:
        open_source(f"timm:{name}", path)
    assert "\n" not in str(caught.value)


class Harmful:
    def __reduce__(self):
        return (print, ("run",))


@pytest.mark.parametrize(
    ("arrange", "words"),
    [
        (lambda d: "timm:test_vit", "--weights must be a file for 'timm:test_vit'"),
        (lambda d: str(d), "SOURCE must be a run folder, a folder with config.json"),
        (lambda d: str(d / "nothing"), "SOURCE must be a run folder"),
        (lambda d: record(d, {"model_type": "swin"}, b"x"), "a relative position bias"),
        (lambda d: record(d, {"model_type": "bert"}, b"x"), "must be of model_type 'vit'"),
        (lambda d: record(d, {"model_type": "vit"}, None), "must have model.safetensors"),
        (lambda d: record(d, {"model_type": "vit"}, pickle.dumps(Harmful())), "can run code"),
    ],
)
def test_bad_sources_are_one_line(arrange, words, tmp_path):
    with pytest.raises(ConfigError, match=words) as caught:
        open_source(arrange(tmp_path))
    assert "\n" not in str(caught.value)


def record(folder, content, weights):
    (folder / "config.json").write_text(json.dumps(content))
    if weights is not None:
        (folder / "pytorch_model.bin").write_bytes(weights)
    return str(folder)


def test_weights_of_another_model_are_one_line(timm_file, tmp_path):
    other = tmp_path / "small.safetensors"
    save_file({"head.weight": torch.zeros(10, 4)}, other)
    with pytest.raises(ConfigError, match="must fit 'test_vit'") as caught:
        open_source("timm:test_vit", other)
    assert "\n" not in str(caught.value)
