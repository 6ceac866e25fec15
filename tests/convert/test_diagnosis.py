"""The diagnosis against its definitions, written as loops."""

import math

import pytest
import torch

from saccade import create_model
from saccade.convert.diagnosis import VERDICTS, diagnose
from saccade.convert.student import build_student, default_options, student_config
from saccade.errors import ConfigError, UnknownNameError

SIZES = {"img_size": 8, "patch_size": 2, "embed_dim": 24, "depth": 2, "num_heads": 3}


@pytest.fixture
def teacher():
    torch.manual_seed(0)
    model = create_model("vit_tiny_patch16_224", num_classes=4, **SIZES).eval()
    with torch.no_grad():
        for block in model.blocks:
            block.attn.qkv.weight.mul_(25)
            block.attn.qkv.bias.normal_()
    return model


def images(count=5):
    return torch.randn(count, 3, 8, 8, generator=torch.Generator().manual_seed(1))


def student_of(teacher, name="taylor", keep=(), **options):
    config = student_config(teacher.config, name, default_options(name, options), keep=keep)
    return build_student(teacher, config, images())


def scores_of_head(block, x, sample, head):
    q, k, _ = block.attn.heads(block.norm1(x))
    return q[sample, head].double(), k[sample, head].double()


def test_every_number_is_its_definition(teacher):
    student = student_of(teacher, center_keys=False)
    teacher.requires_grad_(False)
    student.requires_grad_(False)
    x = teacher.embed(images())
    layer, block = diagnose(teacher, student, images()).layers[0], teacher.blocks[0]
    for head in range(3):
        lows, highs, spreads, below, shifts, distances = [], [], [], [], [], []
        for sample in range(5):
            q, k = scores_of_head(block, x, sample, head)
            s = q @ k.T / math.sqrt(8)
            taylor = 1 + s + s**2 / 2
            lows.append(s.min())
            highs.append(s.max())
            spreads.append(torch.stack([row.std() for row in s]).mean())
            below.append((s < -1).double().mean())
            shifts.append(k.mean(0).norm() / k.norm(dim=1).mean())
            rows = [
                (t / t.sum() - r.softmax(0)).abs().sum() / 2 for t, r in zip(taylor, s, strict=True)
            ]
            distances.append(torch.stack(rows).mean())
        expected = {
            "low": min(lows),
            "high": max(highs),
            "spread": sum(spreads) / 5,
            "below": sum(below) / 5,
            "key_shift": sum(shifts) / 5,
            "distance": sum(distances) / 5,
        }
        for name, value in expected.items():
            assert getattr(layer, name)[head] == pytest.approx(float(value), rel=1e-4), name
    y, z = block(x, grid=(4, 4)), student.blocks[0](x, grid=(4, 4))
    assert layer.output_error == pytest.approx(float((z - y).norm() / (y - x).norm()), rel=1e-4)


def test_chunks_do_not_matter(teacher, monkeypatch):
    student = student_of(teacher)
    whole = diagnose(teacher, student, images())
    monkeypatch.setattr("saccade.convert.diagnosis.CHUNK", 2)
    for one, other in zip(diagnose(teacher, student, images()).layers, whole.layers, strict=True):
        assert one.low == pytest.approx(other.low)
        assert one.distance == pytest.approx(other.distance, rel=1e-4)
        assert one.output_error == pytest.approx(other.output_error, rel=1e-4)


def test_softmax_differs_nowhere_from_itself(teacher):
    for layer in diagnose(teacher, teacher, images()).layers:
        assert max(layer.distance) < 1e-6
        assert layer.output_error < 1e-6
        assert layer.verdict == VERDICTS["close"]


def test_centered_keys_come_nearer_and_stay_on(teacher):
    with torch.no_grad():
        for block in teacher.blocks:
            block.attn.qkv.bias[24:48] += 3
    student = student_of(teacher)
    for layer in diagnose(teacher, student, images()).layers:
        assert layer.mean("distance") < layer.mean("plain_distance")
    assert all(block.attn.core.center_keys for block in student.blocks)


def test_the_hardest_layers_are_those_with_the_largest_error(teacher):
    with torch.no_grad():
        teacher.blocks[1].attn.qkv.weight.mul_(2)
    diagnosis = diagnose(teacher, student_of(teacher), images())
    assert diagnosis.hardest(1) == [1]
    assert diagnosis.hardest(2) == [0, 1]
    levels = {layer.index: layer.output_error for layer in diagnosis.layers}
    assert levels[1] > levels[0]


def test_temperatures_give_the_scores_of_the_teacher(teacher):
    """tau |q| |k| / sqrt(D): taylorshift starts with scores of softmax's size."""
    student = student_of(teacher, "taylorshift", center_keys=False)
    x = teacher.embed(images())
    q, k, _ = teacher.blocks[0].attn.heads(teacher.blocks[0].norm1(x))
    exact = q @ k.mT / math.sqrt(8)
    tau = student.blocks[0].attn.core.temperature
    found = (q / q.norm(dim=-1, keepdim=True)) @ (k / k.norm(dim=-1, keepdim=True)).mT * tau
    ratio = found.std(dim=(0, 2, 3)) / exact.std(dim=(0, 2, 3))
    torch.testing.assert_close(ratio, torch.ones(3), rtol=0.2, atol=0)
    assert not student.config.attention_options["output_normalized"]


def test_kept_blocks_are_the_teachers(teacher):
    student = student_of(teacher, keep=(0,))
    x = teacher.embed(images())
    first, second = (teacher.blocks[i](x, grid=(4, 4)) for i in (0, 1))
    torch.testing.assert_close(student.blocks[0](x, grid=(4, 4)), first, rtol=0, atol=0)
    assert (student.blocks[1](x, grid=(4, 4)) - second).norm() > 1e-3


def test_bad_options_are_one_line():
    with pytest.raises(ConfigError, match="--attention must be another attention than softmax"):
        default_options("softmax")
    with pytest.raises(UnknownNameError, match="did you mean 'center_keys'"):
        default_options("taylor", {"centre_keys": True})
    assert default_options("taylor", {"center_keys": False}) == {"center_keys": False}
