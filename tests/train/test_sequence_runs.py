"""Runs on sequences: train, resume, evaluate, predict, save, compare, report."""

import json
from pathlib import Path

import pytest
import torch

from saccade.cli import main
from saccade.config import Config, dump_config, make_config, with_overrides
from saccade.errors import ConfigError, DataError
from saccade.models import create_model, load_model
from saccade.runs import RunFolder
from saccade.study.comparison import compare, make_plan
from saccade.train import load_model as load_run_model
from saccade.train import train
from saccade.train.inference import Predictor, evaluate_run
from saccade.train.run import dry_run
from tests.data.test_text_folder import write_texts
from tests.train.tiny_runs import final_state, unfinish

MODEL = {"embed_dim": 16, "depth": 1, "num_heads": 2, "mlp_hidden_dim": 32, "proj_drop_rate": 0.1}
BASE = {
    "model": {"name": "lra_small", "overrides": MODEL},
    "data": {"name": "text_folder", "workers": 0, "options": {"max_length": 200}},
    "optim": {"lr": 0.01},
    "train": {"epochs": 2, "batch_size": 8, "ema_decay": 0.9, "device": "cpu"},
    "run": {"checkpoint_every_steps": 2, "log_every_steps": 5},
}
RECALL = ["data.name=recall", "data.num_train=200", "data.num_test=40"]
RECALL += ["data.options={num_pairs: 3, num_keys: 24, num_values: 8}"]


def command(capsys: pytest.CaptureFixture[str], *words: object) -> tuple[int, str, str]:
    """Exit code, stdout and stderr of a command."""
    capsys.readouterr()
    code = 0
    try:
        main([str(word) for word in words])
    except SystemExit as end:
        code = int(end.code or 0)
    return (code, *capsys.readouterr())


@pytest.fixture(autouse=True)
def cache(tmp_path_factory: pytest.TempPathFactory, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("SACCADE_DATA", str(tmp_path_factory.getbasetemp() / "generated"))


@pytest.fixture
def texts(tmp_path: Path) -> Path:
    return write_texts(tmp_path / "texts", count=30)


def config(*overrides: str) -> Config:
    return with_overrides(make_config(BASE), overrides)


def test_a_run_on_texts_learns_resumes_and_is_evaluated(texts: Path, tmp_path: Path) -> None:
    asked = config(f"data.root={texts}", "train.epochs=6")
    summary = train(asked, tmp_path / "whole", quiet=True)
    assert summary["test_accuracy"] > 0.9
    train(asked, tmp_path / "again", quiet=True)
    run = RunFolder(tmp_path / "again")
    unfinish(run)
    for checkpoint in run.checkpoints()[-1:]:
        checkpoint.discard()
    train(asked, run.path, resume=True, quiet=True)
    assert final_state(tmp_path / "whole") == final_state(run.path)
    found = evaluate_run(tmp_path / "whole", batch_size=3)
    assert found["accuracy"] == summary["test_accuracy"]
    assert found["count"] == summary["test_count"]


def test_padding_does_not_change_the_logits(texts: Path, tmp_path: Path) -> None:
    train(config(f"data.root={texts}", "train.epochs=1"), tmp_path / "run", quiet=True)
    model, info = load_run_model(tmp_path / "run")
    symbols = torch.randint(1, 256, (3, 40))
    padded = torch.nn.functional.pad(symbols, (0, 25), value=info.pad_symbol)
    torch.testing.assert_close(model(padded), model(symbols), rtol=1e-5, atol=1e-5)
    model.config = type(model.config)(**{**vars(model.config), "pad_symbol": None})
    with pytest.raises(AssertionError):  # without the mask, padding counts
        torch.testing.assert_close(model(padded), model(symbols), rtol=1e-5, atol=1e-5)


def test_predict_reads_files_of_the_kind_of_the_data(
    texts: Path, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    train(config(f"data.root={texts}", "train.epochs=6"), tmp_path / "run", quiet=True)
    files = [texts / "good" / "3.txt", texts / "bad" / "3.txt"]
    code, out, told = command(capsys, "predict", tmp_path / "run", *files, "--json")
    assert code == 0, told
    rows = [json.loads(line) for line in out.splitlines()]
    assert [row["classes"][0]["class"] for row in rows] == ["good", "bad"]
    _, out, _ = command(capsys, "predict", tmp_path / "run", texts / "good", "--json")
    assert len(out.splitlines()) == 30
    (tmp_path / "empty.txt").write_text("")
    code, _, told = command(capsys, "predict", tmp_path / "run", tmp_path / "empty.txt")
    assert code == 3
    assert "empty.txt is empty" in told
    code, _, told = command(capsys, "predict", tmp_path / "run", "-")
    assert code == 3
    assert "IMAGES must be text files or folders for this model, got '-'" in told
    load_run_model(tmp_path / "run")[0].save_pretrained(tmp_path / "saved")
    code, out, told = command(capsys, "predict", tmp_path / "saved", texts / "good", "--json")
    assert (code, len(out.splitlines())) == (0, 30), told


def test_predict_takes_symbols_and_names_the_wrong_one(tmp_path: Path) -> None:
    train(config(*RECALL), tmp_path / "run", quiet=True)
    predictor = Predictor(tmp_path / "run")
    (tmp_path / "good.txt").write_text("k0 v1 k3 v2 k5 v0 k3")
    (tmp_path / "bad.txt").write_text("k0 v1 k3 v9 k5 v0 k3")
    (tmp_path / "short.txt").write_text("k0 v1 k3")
    by_file = predictor.classes(tmp_path / "good.txt")
    assert by_file == predictor.classes(torch.tensor([0, 25, 3, 26, 5, 24, 3]))
    with pytest.raises(DataError, match=r"bad.txt must have symbols of recall, got 'v9'"):
        predictor.classes(tmp_path / "bad.txt")
    with pytest.raises(DataError, match=r"short.txt: a sequence must have 7 symbols, got 3"):
        predictor.classes(tmp_path / "short.txt")
    with pytest.raises(ConfigError, match="symbols from 0 to 31, got 32"):
        predictor.classes(torch.tensor([0, 25, 3, 26, 5, 24, 32]))


def test_a_saved_sequence_model_is_evaluated_and_started_from(texts: Path, tmp_path: Path) -> None:
    asked = config(f"data.root={texts}", "train.epochs=3")
    summary = train(asked, tmp_path / "run", quiet=True)
    model, _ = load_run_model(tmp_path / "run")
    model.save_pretrained(tmp_path / "saved")
    assert load_model(tmp_path / "saved").config.pad_symbol == 0
    from saccade.train.inference import data_to_evaluate

    data = data_to_evaluate(tmp_path / "saved", name="text_folder", root=texts)
    data = data.model_copy(update={"options": {"max_length": 200}})
    found = evaluate_run(tmp_path / "saved", data=data)
    assert found["accuracy"] == summary["test_accuracy"]
    longer = config(
        f"data.root={texts}",
        "data.options.max_length=350",
        f"init.from={tmp_path / 'saved'}",
        "model.overrides.pos_embed=learned",
        "train.epochs=1",
    )
    train(longer, tmp_path / "longer", quiet=True)
    assert RunFolder(tmp_path / "longer").initial()["resampled"]


def test_compare_and_report_on_sequences(
    tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    (tmp_path / "recall.yaml").write_text(dump_config(config(*RECALL, "train.epochs=1")))
    names = ["softmax", "taylorshift", "performer"]
    plan = make_plan(str(tmp_path / "recall.yaml"), attentions=names, seeds=1)
    found = compare(plan, tmp_path / "study", quiet=True)
    assert {row["attention"] for row in found["rows"]} == {
        "softmax",
        "taylorshift",
        "performer",
    }
    code, _, told = command(capsys, "report", tmp_path / "study")
    assert code == 0, told
    assert list((tmp_path / "study").rglob("report.html"))


def test_a_generated_set_is_fetched_into_the_cache(
    tmp_path: Path, capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("SACCADE_DATA", str(tmp_path))
    code, out, told = command(capsys, "data", "fetch", "recall", "--json")
    assert code == 0, told
    assert json.loads(out)["train"] == 20_000
    assert len(list(tmp_path.glob("recall-*.safetensors"))) == 2


def test_a_dry_run_writes_nothing(tmp_path: Path) -> None:
    found = dry_run(config(*RECALL), tmp_path / "run")
    assert found["train_images"] == 180
    assert not (tmp_path / "run").exists()


@pytest.mark.parametrize(
    ("overrides", "told"),
    [
        (["model.name=vit_cifar", "model.overrides={}"], "must be a sequence model for recall"),
        (["data.name=digits", "data.options={}"], "must be an image model for digits"),
        (["model.overrides.max_seq_len=9"], "must not contain 'max_seq_len'"),
        (["augment.flip=true"], "augment must be off for recall"),
    ],
)
def test_settings_that_do_not_fit_are_refused(overrides, told, tmp_path: Path) -> None:
    names = RECALL[:1] if "digits" in overrides[0] else RECALL
    with pytest.raises(ConfigError, match=told):
        train(config(*names, *overrides), tmp_path / "run", quiet=True)
    assert not (tmp_path / "run").exists()


def test_explain_says_that_it_needs_images(
    tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    train(config(*RECALL, "train.epochs=1"), tmp_path / "run", quiet=True)
    words = ("explain", tmp_path / "run", "test:0", "--out", tmp_path / "figures")
    code, _, told = command(capsys, *words)
    assert code == 2
    assert "RUN must have an image model to be explained" in told
    assert "sequences of up to 7 of 32 symbols" in told


def test_pad_symbol_is_a_symbol_of_the_vocabulary() -> None:
    with pytest.raises(ConfigError, match="pad_symbol must be a symbol below input_dim=18"):
        create_model("lra_small", input_dim=18, pad_symbol=18)
    with pytest.raises(ConfigError, match="pad_symbol must be None"):
        create_model("lra_small", embedding="linear", pad_symbol=0)
