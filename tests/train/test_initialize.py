"""`init.from`: weights of another training, with a new head and resampled positions."""

import json
import shutil
from pathlib import Path

import pytest
import torch
from safetensors.torch import load_file, save_file

from saccade.errors import ConfigError
from saccade.layers.positions import resample_grid_positions, resample_line_positions
from saccade.models import create_model
from saccade.runs import RunFolder
from saccade.train import load_model, train
from saccade.train.initialize import read_pretrained
from tests.train.tiny_runs import final_state, tiny, unfinish

STILL = ["optim.lr=1e-30", "train.epochs=1", "train.ema_decay=null"]
"""A learning rate of nearly 0: the final weights are the initial ones."""
SIZES = {"embed_dim": 16, "depth": 1, "num_heads": 2, "mlp_hidden_dim": 32}


@pytest.fixture(scope="module")
def donor(tmp_path_factory: pytest.TempPathFactory) -> Path:
    out = tmp_path_factory.mktemp("donor") / "run"
    train(tiny("train.epochs=1", "run.seed=5"), out, quiet=True)
    return out


def image_model(**overrides):
    return create_model("vit_micro_patch4_32", **{**SIZES, **overrides})


def sequence_model(**overrides):
    sizes = {**SIZES, "embedding": "token", "input_dim": 12, "pos_embed": "learned"}
    return create_model("taylorshift_listops", **{**sizes, "max_seq_len": 20, **overrides})


def saved(model, path: Path) -> Path:
    save_file({k: v.contiguous() for k, v in model.state_dict().items()}, path)
    return path


def weights_of(out: Path) -> dict[str, torch.Tensor]:
    return load_file(RunFolder(out).newest_intact()[0].weights("last"))


def test_a_run_starts_from_all_weights_of_a_run_with_the_same_classes(
    donor: Path, tmp_path: Path
) -> None:
    out = tmp_path / "run"
    train(tiny(*STILL, f"init.from={donor}"), out, quiet=True)
    run, before = RunFolder(out), load_model(donor)[0].state_dict()
    after = weights_of(out)
    assert before.keys() == after.keys()
    for name, tensor in before.items():
        torch.testing.assert_close(after[name], tensor, rtol=0, atol=1e-20)
    assert run.initial()["reset"] == []
    assert run.environment()["init"] == {"file": str(donor), "sha256": run.initial()["sha256"]}
    assert run.config().init.source == str(donor)


def test_other_classes_and_another_resolution(donor: Path, tmp_path: Path) -> None:
    out = tmp_path / "run"
    data = ["data.name=shapes", "data.image_size=16", "model.overrides.in_chans=1"]
    with pytest.raises(ConfigError, match="in_chans"):
        train(tiny(*STILL, f"init.from={donor}", *data), out, quiet=True)
    big = image_model(img_size=16, in_chans=1, num_classes=8)
    before = load_model(donor)[0]
    record = read_pretrained(donor).fill(big)
    assert record["reset"] == ["head.weight", "head.bias"]
    assert record["resampled"] == {"pos_embed": [[1, 5, 16], [1, 17, 16]]}
    expected = resample_grid_positions(before.pos_embed, (2, 2), (4, 4), 1)
    torch.testing.assert_close(big.pos_embed, expected, rtol=0, atol=0)
    own = before.state_dict()
    assert len(record["taken"]) == len(own) - 2
    assert all(
        torch.equal(big.state_dict()[k], own[k])
        for k in record["taken"]
        if k in own and k != "pos_embed"
    )


def test_the_classifier_is_reset_for_other_names_and_on_request(donor: Path) -> None:
    names = tuple("abcdefghij")
    other = image_model(img_size=8, in_chans=1, num_classes=10, class_names=names)
    assert read_pretrained(donor).fill(other)["reset"]
    same = image_model(img_size=8, in_chans=1, num_classes=10)
    assert not read_pretrained(donor).fill(same)["reset"]
    assert read_pretrained(donor).fill(same, reset_head=True)["reset"]


def test_positions_of_a_sequence_are_resampled_linearly(tmp_path: Path) -> None:
    old = sequence_model()
    new = sequence_model(max_seq_len=33)
    record = read_pretrained(saved(old, tmp_path / "w.safetensors")).fill(new)
    table = resample_line_positions(old.pos_embed, 33, old.num_prefix_positions)
    assert record["resampled"]
    torch.testing.assert_close(new.pos_embed, table, rtol=0, atol=0)
    assert torch.equal(new.token_embed.proj.weight, old.token_embed.proj.weight)


def test_sinusoids_of_another_length_are_not_touched(tmp_path: Path) -> None:
    old = sequence_model(pos_embed="sinusoidal_1d")
    new = sequence_model(pos_embed="sinusoidal_1d", max_seq_len=50)
    before = new.pos_embed.clone()
    record = read_pretrained(saved(old, tmp_path / "w.safetensors")).fill(new)
    assert not record["resampled"]
    assert torch.equal(new.pos_embed, before)


def test_an_attention_keeps_the_parameters_that_the_source_lacks(donor: Path) -> None:
    model = image_model(img_size=8, in_chans=1, attention="taylorshift", num_classes=10)
    record = read_pretrained(donor).fill(model)
    assert record["own"] == ["blocks.0.attn.core.temperature"]


def test_a_saved_model_and_a_file_give_the_same_weights(donor: Path, tmp_path: Path) -> None:
    model, _ = load_model(donor)
    model.save_pretrained(tmp_path / "hub")
    for source in (tmp_path / "hub", tmp_path / "hub" / "model.safetensors"):
        new = image_model(img_size=8, in_chans=1, num_classes=10)
        record = read_pretrained(source).fill(new)
        assert not record["reset"]
        assert all(torch.equal(t, model.state_dict()[k]) for k, t in new.state_dict().items())


@pytest.mark.parametrize(
    ("rename", "told"),
    [
        (("norm.weight", "norms.weight"), r"2 differences: no 'norm.weight' \(it has 'norms.w"),
        (("blocks.0.mlp.fc1.bias", "blocks.0.mlp.fc1.bais"), "it has 'blocks.0.mlp.fc1.bais'"),
        (("cls_token", None), "1 difference: no 'cls_token'"),
        ((None, "blocks.1.norm1.weight"), "'blocks.1.norm1.weight', which has no place"),
    ],
)
def test_names_that_do_not_fit_are_refused_in_one_line(rename, told, tmp_path: Path) -> None:
    old, new = rename
    tensors = dict(image_model().state_dict())
    moved = tensors.pop(old) if old else torch.zeros(16)
    tensors |= {new: moved} if new else {}
    save_file(tensors, tmp_path / "w.safetensors")
    with pytest.raises(ConfigError, match=told) as raised:
        read_pretrained(tmp_path / "w.safetensors").fill(image_model())
    assert "\n" not in str(raised.value)


def test_another_shape_is_refused_with_both_shapes(tmp_path: Path) -> None:
    path = saved(image_model(mlp_hidden_dim=48), tmp_path / "w.safetensors")
    with pytest.raises(ConfigError, match=r"fc1.weight' of shape \(48, 16\) instead of \(32, 16\)"):
        read_pretrained(path).fill(image_model())


@pytest.mark.parametrize(
    ("source", "told"),
    [
        ("missing/run/x", "init.from must exist"),
        ("nothing.safetensors", "init.from must exist"),
        (".", "init.from must be a run folder"),
        ("junk.safetensors", "weights"),
    ],
)
def test_a_source_that_is_none_is_refused(
    source: str, told: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.chdir(tmp_path)
    Path("junk.safetensors").write_bytes(b"nothing")
    with pytest.raises(ConfigError, match=told):
        read_pretrained(source)


def test_a_resumed_run_needs_no_source_and_ends_with_the_same_bits(
    donor: Path, tmp_path: Path
) -> None:
    source = tmp_path / "source"
    shutil.copytree(donor, source)
    config = tiny(f"init.from={source}", "train.epochs=2")
    train(config, tmp_path / "whole", quiet=True)
    train(config, tmp_path / "again", quiet=True)
    run = RunFolder(tmp_path / "again")
    unfinish(run)
    run.checkpoints()[-1].discard()
    shutil.rmtree(source)
    train(config, run.path, resume=True, quiet=True)
    assert final_state(tmp_path / "whole") == final_state(run.path)


def test_a_run_without_checkpoint_resumes_only_from_the_same_weights(
    donor: Path, tmp_path: Path
) -> None:
    source = tmp_path / "source"
    shutil.copytree(donor, source)
    config = tiny(f"init.from={source}", "train.epochs=1")
    train(config, tmp_path / "run", quiet=True)
    run = RunFolder(tmp_path / "run")
    unfinish(run)
    for checkpoint in run.checkpoints():
        checkpoint.discard()
    shutil.rmtree(source)
    train(tiny("train.epochs=1", "run.seed=9"), source, quiet=True)
    with pytest.raises(ConfigError, match="started from other weights"):
        train(config, run.path, resume=True, quiet=True)


def saved_folder(donor: Path, folder: Path) -> Path:
    load_model(donor)[0].save_pretrained(folder)
    return folder


def test_changed_weights_of_a_saved_model_are_refused(donor: Path, tmp_path: Path) -> None:
    weights = saved_folder(donor, tmp_path / "saved") / "model.safetensors"
    content = bytearray(weights.read_bytes())
    content[-100] ^= 64
    weights.write_bytes(content)
    with pytest.raises(ConfigError, match=r"is not what was saved with config\.json; restore it"):
        read_pretrained(tmp_path / "saved")


def test_weights_that_are_not_finite_are_refused(donor: Path, tmp_path: Path) -> None:
    tensors = dict(read_pretrained(donor).tensors)
    tensors["head.weight"] = torch.full_like(tensors["head.weight"], torch.nan)
    save_file(tensors, tmp_path / "nan.safetensors")
    with pytest.raises(ConfigError, match=r"must have finite weights, got NaN .* 'head\.weight'"):
        train(tiny(f"init.from={tmp_path / 'nan.safetensors'}"), tmp_path / "run")
    assert not (tmp_path / "run").exists()


@pytest.mark.parametrize("change", [{"patch_size": 0}, {"img_size": ["a", {}]}, {"img_size": 3}])
def test_a_saved_model_without_sizes_has_no_grid(change, donor: Path, tmp_path: Path) -> None:
    path = saved_folder(donor, tmp_path / "saved") / "config.json"
    record = {k: v for k, v in json.loads(path.read_text()).items() if k != "sha256"}
    path.write_text(json.dumps(record | change))
    assert read_pretrained(tmp_path / "saved").grid is None
