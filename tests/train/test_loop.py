import json
import os
from pathlib import Path

import pytest
import torch
from safetensors.torch import load_file

from saccade.data import load_splits, make_loader
from saccade.errors import ConfigError
from saccade.runs import RunFolder, find_runs
from saccade.train import load_model, train
from saccade.train.inference import Predictor, evaluate_run
from tests.train.tiny_runs import final_state, tiny, unfinish

LEARNER = [
    "model.name=hybrid_cifar",
    "model.overrides={embed_dim: 32, depth: 1, num_heads: 2}",
    "data.num_train=400",
    "optim.lr=0.005",
    "optim.warmup_epochs=0",
    "train.epochs=8",
    "train.batch_size=40",
    "run.checkpoint_every_steps=null",
]


def test_run_folder_has_the_documented_files(finished: Path) -> None:
    run = RunFolder(finished)
    assert run.config() == tiny()
    assert run.status()["state"] == "finished"
    assert run.dataset()["num_classes"] == 10
    assert run.environment()["seed"] == 0
    assert run.environment()["packages"]["torch"]
    summary = run.summary()
    assert 0 <= summary["test_accuracy"] <= 1
    assert summary["epochs"] == 6
    assert summary["steps"] == 6 * 7
    assert summary["attention"] == "softmax"
    assert summary["test_accuracy"] == summary[f"test_accuracy_{summary['selected']}"]
    assert summary["flops"] > 2 * summary["parameters"]
    assert 50 < summary["peak_memory_mib"] < 10_000
    slowest = max(row["seconds"] for row in run.metrics("epoch"))
    assert 0 < summary["seconds_per_epoch"] <= slowest + 0.001
    assert [row["epoch"] for row in run.metrics("epoch")] == [1, 2, 3, 4, 5, 6]
    assert [row["step"] for row in run.metrics("step")] == list(range(5, 43, 5))
    assert len(run.metrics("test")) == 1
    assert [c.step for c in run.checkpoints()] == [40, 42]
    assert find_runs(finished.parent)[0].path == finished


def test_every_file_of_a_run_follows_the_umask(tmp_path: Path) -> None:
    """With umask 027 the group can read the files of a run, and other users cannot."""
    before = os.umask(0o027)
    try:
        train(tiny("train.epochs=1"), tmp_path / "run", quiet=True)
    finally:
        os.umask(before)
    files = [path for path in (tmp_path / "run").rglob("*") if path.is_file()]
    assert {path.suffix for path in files} >= {".safetensors", ".json", ".jsonl", ".npz", ".yaml"}
    assert {path.name: oct(path.stat().st_mode & 0o777) for path in files} == {
        path.name: "0o640" for path in files
    }


def test_predictions_match_the_summary(finished: Path) -> None:
    run = RunFolder(finished)
    found = run.predictions()
    assert found["target"].tolist() == load_splits(tiny().data).test.labels.tolist()
    right = (found["target"] == found["predicted"]).mean()
    assert right == pytest.approx(run.summary()["test_accuracy"], abs=0)
    model, info = load_model(run)
    image = make_loader(
        load_splits(tiny().data).test,
        info,
        batch_size=61,
        augment=None,
        seed=0,
        device="cpu",
        shuffle=False,
    )
    with torch.no_grad():
        confidence, predicted = model(next(image.epoch(0)).images).softmax(1).max(1)
    assert found["predicted"].tolist() == predicted.tolist()
    assert found["confidence"] == pytest.approx(confidence.numpy(), rel=1e-5)
    assert {name: str(array.dtype) for name, array in found.items()} == {
        "target": "int32",
        "predicted": "int32",
        "confidence": "float32",
    }


def test_missing_and_damaged_predictions(finished: Path, tmp_path: Path) -> None:
    assert RunFolder(tmp_path).predictions() == {}
    content = (finished / "predictions.npz").read_bytes()
    (tmp_path / "predictions.npz").write_bytes(content[: len(content) // 2])
    with pytest.raises(ConfigError, match=r"predictions.npz' cannot be read"):
        RunFolder(tmp_path).predictions()


def test_folder_of_a_run_killed_before_its_config_can_be_reused(tmp_path: Path) -> None:
    (tmp_path / ".config.yaml.4711").write_text("model:")
    RunFolder(tmp_path).check_free()
    (tmp_path / "thesis.tex").write_text("precious")
    with pytest.raises(ConfigError, match="not an empty folder"):
        RunFolder(tmp_path).check_free()


def test_same_seed_same_bits_other_seed_other_bits(finished: Path, tmp_path: Path) -> None:
    train(tiny(), tmp_path / "again", quiet=True)
    train(tiny("run.seed=1"), tmp_path / "other", quiet=True)
    assert final_state(tmp_path / "again") == final_state(finished)
    assert final_state(tmp_path / "other")["model"] != final_state(finished)["model"]


@pytest.mark.parametrize("attention", ["softmax", "taylorshift", "performer"])
def test_run_learns(tmp_path: Path, attention: str) -> None:
    summary = train(tiny(*LEARNER, f"model.attention={attention}"), tmp_path / "run", quiet=True)
    assert summary["test_accuracy"] > 0.6
    rows = RunFolder(tmp_path / "run").metrics("epoch")
    assert rows[-1]["train_loss"] < rows[0]["train_loss"] / 1.5


@pytest.mark.parametrize("name", ["adam", "sgd", "lion", "muon"])
def test_every_optimizer_resumes_bit_equal(tmp_path: Path, name: str) -> None:
    overrides = [f"optim.name={name}", "train.epochs=2", "optim.lr=0.001"]
    train(tiny(*overrides), tmp_path / "whole", quiet=True)
    train(tiny(*overrides), tmp_path / "run", quiet=True)
    run = RunFolder(tmp_path / "run")
    unfinish(run)
    run.checkpoints()[-1].discard()
    train(tiny(*overrides), tmp_path / "run", resume=True, quiet=True)
    assert final_state(tmp_path / "run") == final_state(tmp_path / "whole")


def test_accumulation_gives_the_gradient_of_the_whole_batch(tmp_path: Path) -> None:
    still = ["model.overrides.proj_drop_rate=0", "train.epochs=1", "optim.name=sgd"]
    train(tiny(*still), tmp_path / "one", quiet=True)
    train(tiny(*still, "train.accumulation=4"), tmp_path / "four", quiet=True)
    one, four = (
        load_file(RunFolder(tmp_path / name).checkpoints()[-1].path / "model.safetensors")
        for name in ("one", "four")
    )
    for key, tensor in one.items():
        torch.testing.assert_close(four[key], tensor, rtol=1e-4, atol=1e-6)


def test_best_weights_are_those_of_the_best_epoch(finished: Path, tmp_path: Path) -> None:
    run = RunFolder(finished)
    summary, rows = run.summary(), run.metrics("epoch")
    best = max(row["val_accuracy"] for row in rows)
    assert summary["val_accuracy_best"] == best
    assert rows[summary["best_epoch"] - 1]["val_accuracy"] == best
    measured = evaluate_run(run, split="val", weights="best", device="cpu")
    assert measured["accuracy"] == best
    last = evaluate_run(run, split="val", weights="last", device="cpu")
    assert last["accuracy"] == rows[-1]["val_accuracy"]
    assert evaluate_run(run, device="cpu")["accuracy"] == summary["test_accuracy"]


def test_evaluation_adds_up(finished: Path) -> None:
    result = evaluate_run(RunFolder(finished), device="cpu", batch_size=7)
    confusion = torch.tensor(result["confusion"])
    assert confusion.sum() == result["count"] == 61
    assert confusion.diagonal().sum() == result["correct"]
    assert result["correct"] / 61 == result["accuracy"] <= result["accuracy_top5"] <= 1
    assert 0 <= result["calibration_error"] <= 1
    assert json.dumps(result)


def test_predictor_agrees_with_the_model(finished: Path) -> None:
    model, info = load_model(RunFolder(finished))
    image = torch.randn(info.channels, *info.image_size)
    ranked = Predictor(RunFolder(finished), device="cpu").classes(image)
    assert len(ranked) == 10
    assert sum(p for _, p in ranked) == pytest.approx(1)
    assert ranked[0][0] == info.class_names[int(model(image[None]).argmax())]


def test_functions_accept_a_run_by_its_path(finished: Path) -> None:
    model, info = load_model(str(finished))
    same, _ = load_model(RunFolder(finished))
    image = torch.randn(info.channels, *info.image_size)
    assert torch.equal(model(image[None]), same(image[None]))
    ranked = Predictor(finished, device="cpu").classes(image)
    assert ranked == Predictor(RunFolder(finished), device="cpu").classes(image)
    accuracy = evaluate_run(str(finished), device="cpu")["accuracy"]
    assert accuracy == RunFolder(finished).summary()["test_accuracy"]
    with pytest.raises(ConfigError, match=r"/absent' is not a run folder: nothing is there"):
        load_model(finished / "absent")


def test_without_validation_the_last_weights_are_used(tmp_path: Path) -> None:
    summary = train(tiny("data.val_fraction=0", "train.epochs=1"), tmp_path / "run", quiet=True)
    assert summary["selected"] == "last"
    assert summary["val_accuracy_best"] is None
    assert summary["test_accuracy"] == summary["test_accuracy_last"]
    assert RunFolder(tmp_path / "run").metrics("epoch")[0]["val_accuracy"] is None


def test_early_stopping_stops(tmp_path: Path) -> None:
    config = tiny("optim.lr=1e-12", "train.early_stopping_patience=2", "train.epochs=50")
    summary = train(config, tmp_path / "run", quiet=True)
    assert summary["epochs"] == 3


def test_plateau_cuts_the_learning_rate(tmp_path: Path) -> None:
    config = tiny(
        "optim.schedule=plateau", "optim.plateau_patience=1", "optim.lr=1e-12", "train.epochs=4"
    )
    train(config, tmp_path / "run", quiet=True)
    rates = [row["lr"] for row in RunFolder(tmp_path / "run").metrics("epoch")]
    assert rates[1:] == pytest.approx([1e-12, 5e-13, 2.5e-13])


@pytest.mark.slow
def test_compiled_run_has_plain_parameter_names_and_close_weights(tmp_path: Path) -> None:
    still = ["model.overrides.proj_drop_rate=0", "train.epochs=1", "optim.name=sgd"]
    for name, compiled in (("plain", "false"), ("compiled", "true")):
        train(tiny(*still, f"train.compile={compiled}"), tmp_path / name, quiet=True)
    plain, compiled_weights = (
        load_file(RunFolder(tmp_path / name).checkpoints()[-1].path / "model.safetensors")
        for name in ("plain", "compiled")
    )
    assert plain.keys() == compiled_weights.keys()
    for key, tensor in plain.items():
        torch.testing.assert_close(compiled_weights[key], tensor, rtol=1e-4, atol=1e-5)


def test_bf16_and_checkpointing_train_on_cpu(tmp_path: Path) -> None:
    config = tiny("train.precision=bf16", "train.grad_checkpointing=true", "train.epochs=1")
    assert train(config, tmp_path / "run", quiet=True)["epochs"] == 1


def test_deterministic_mode_trains(tmp_path: Path) -> None:
    config = tiny("train.deterministic=true", "train.epochs=1")
    try:
        assert train(config, tmp_path / "run", quiet=True)["epochs"] == 1
    finally:
        torch.use_deterministic_algorithms(False)


def test_unfit_batch_is_refused(tmp_path: Path) -> None:
    with pytest.raises(ConfigError, match=r"fp16.*needs a GPU"):
        train(tiny("train.precision=fp16", "train.device=cpu"), tmp_path / "run", quiet=True)


def test_load_model_without_checkpoint_says_so(tmp_path: Path) -> None:
    with pytest.raises(ConfigError, match="not a run folder"):
        RunFolder.open(tmp_path)
    run = RunFolder.create(tmp_path / "run", tiny())
    with pytest.raises(ConfigError, match="never started"):
        load_model(run)
