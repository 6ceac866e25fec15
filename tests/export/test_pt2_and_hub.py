"""torch.export files and the Hub's folder: the same outputs, and nothing half-written."""

import json
from pathlib import Path

import numpy as np
import pytest
import torch

from saccade.errors import ConfigError, ExportError
from saccade.export import ExportOptions, export_hub, export_pt2
from saccade.export.graph import samples
from saccade.models import load_model
from tests.export.models import forms, image_model, sequence_model, with_every_attention
from tests.export.test_onnx import Planted, exact


def test_pt2_through_every_attention(tmp_path: Path) -> None:
    model = with_every_attention(image_model)
    module = torch.export.load(export_pt2(model, tmp_path / "m.pt2").path).module()
    for batch in (1, 2, 5):
        (x,) = samples(model, batch, seed=batch + 9)
        with torch.no_grad():
            (found,) = module(x)
        np.testing.assert_allclose(found.numpy(), exact(model, x), atol=1e-4)


@pytest.mark.slow
@pytest.mark.parametrize(("attention", "algorithm"), forms())
def test_pt2(attention: str, algorithm: str, tmp_path: Path) -> None:
    model = image_model(attention)
    report = export_pt2(model, tmp_path / "m.pt2", ExportOptions(algorithm=algorithm))
    extra = {"saccade.json": ""}
    module = torch.export.load(report.path, extra_files=extra).module()
    for batch in (1, 2, 5):
        (x,) = samples(model, batch, seed=batch + 9)
        with torch.no_grad():
            (found,) = module(x)
        np.testing.assert_allclose(found.numpy(), exact(model, x), atol=1e-4)
    assert json.loads(extra["saccade.json"])["model"]["attention"] == attention
    assert "is code" in report.notes[0]


def test_pt2_of_other_sizes_of_sequences_and_in_half_precision(tmp_path: Path) -> None:
    images, words = image_model("taylorshift"), sequence_model("taylor")
    export_pt2(images, tmp_path / "dynamic.pt2", ExportOptions(dynamic_size=True))
    export_pt2(images, tmp_path / "half.pt2", ExportOptions(precision="fp16"))
    export_pt2(words, tmp_path / "words.pt2", ExportOptions(dynamic_size=True))
    module = torch.export.load(tmp_path / "dynamic.pt2").module()
    images.patch_embed.strict_img_size = False
    x = torch.randn(3, 3, 20, 32)
    np.testing.assert_allclose(module(x)[0].detach().numpy(), exact(images, x), atol=1e-4)


def test_a_wrong_layer_is_refused(tmp_path: Path) -> None:
    model = image_model(depth=2)
    model.blocks[1].attn.core = Planted(2, 8)
    with pytest.raises(ExportError, match=r"begins in layer 'blocks\.1\.attn'"):
        export_pt2(model, tmp_path / "m.pt2")
    with pytest.raises(ConfigError, match="opset is for ONNX files"):
        export_pt2(model, tmp_path / "m.pt2", ExportOptions(opset=23))
    assert list(tmp_path.iterdir()) == []


def test_hub(tmp_path: Path) -> None:
    model = image_model("performer", class_names=tuple("abcde"))
    report = export_hub(model, tmp_path / "model")
    names = {"config.json", "model.safetensors", "README.md"}
    assert {file.name for file in report.path.iterdir()} == names
    (x,) = samples(model, 2)
    with torch.no_grad():
        torch.testing.assert_close(load_model(report.path)(x), model(x), rtol=0, atol=0)
    with pytest.raises(ConfigError, match="out must be a new folder"):
        export_hub(model, report.path)
    assert list(tmp_path.iterdir()) == [report.path]
