"""Whole conversions of a tiny digits ViT: the run folder, the page, resuming, the command."""

import json
import re
import shutil
from functools import partial
from pathlib import Path

import pytest
import torch
from safetensors.torch import load_file

from saccade.cli.explain import explain
from saccade.convert.conversion import convert, inspect
from saccade.convert.distil import DistillingTrainer
from saccade.convert.plan import fit_to_budget, run_config
from saccade.errors import ConfigError
from saccade.models import load_model as load_saved
from saccade.report import write_report
from saccade.runs import RunFolder
from saccade.train.build import load_model
from saccade.train.distributed import Ranks
from saccade.train.inference import Predictor, evaluate_run
from saccade.train.initialize import InitialWeights
from saccade.train.progress import SilentReporter
from saccade.train.signals import StopRequest

EPOCHS = ["train.epochs=1"]


def record_of(run):
    return json.loads((run / "conversion.json").read_text())


def test_the_result_is_an_ordinary_run(converted, tmp_path):
    run = RunFolder.open(converted.run)
    assert run.is_finished()
    assert run.damage() == {}
    assert "conversion.json" in json.loads((converted.run / "manifest.json").read_text())["files"]
    model, _ = load_model(run)
    kept = converted.record["softmax_blocks"]
    names = [block.attn.attention for block in model.blocks]
    assert names == ["softmax" if i in kept else "taylor" for i in range(3)]
    assert [block.attn.local_conv is None for block in model.blocks] == [
        i in kept for i in range(3)
    ]
    assert len(kept) == 1
    assert model.config.attention_options == {"center_keys": True}
    found = evaluate_run(converted.run)
    assert found["accuracy"] == converted.record["recovered_accuracy"]
    report = write_report(converted.run, tmp_path / "report")
    assert "taylor" in report.headline
    model.save_pretrained(tmp_path / "saved")
    saved = load_saved(tmp_path / "saved")
    assert saved.config.softmax_blocks == tuple(kept)
    x = torch.randn(2, 1, 8, 8)
    torch.testing.assert_close(saved(x), model(x), rtol=0, atol=0)


def test_maps_of_the_result_can_be_drawn(converted, tmp_path):
    explain([str(converted.run), "test:0"], out=tmp_path / "maps")
    assert list((tmp_path / "maps").rglob("*.png"))


def test_it_starts_from_the_teacher(converted, teacher):
    """The teacher's accuracy is the run's; zero-shot is the swapped teacher; most is recovered."""
    record = converted.record
    assert record["teacher_accuracy"] == evaluate_run(teacher)["accuracy"]
    known, _ = inspect(teacher, "taylor", keep_softmax=1, local=True)
    assert record["zero_shot_accuracy"] == known.zero_shot.accuracy
    assert known.diagnosis.hardest(1) == record["softmax_blocks"]
    started = RunFolder(converted.run).initial()
    assert started["own"] == []
    assert record["recovered_accuracy"] >= record["teacher_accuracy"] - 0.1
    assert record["scratch_accuracy"] < record["recovered_accuracy"]


def test_the_page_shows_every_figure(converted):
    page, record = converted.page.read_text(), converted.record
    for key in ("teacher", "zero_shot", "recovered", "scratch"):
        assert f"{100 * record[f'{key}_accuracy']:.2f} %" in page
    for layer in record["diagnosis"]["layers"]:
        assert f"block {layer['index']}" in page
        assert layer["verdict"] in page
    for row in record["speed"]:
        assert f"{row['softmax_ms']:,.2f}" in page
    assert "Made by <code>saccade convert</code>" in page
    assert page.count("<svg") == 3
    assert not re.search(r"\bnan\b|\binf\b", page)
    assert "http://" not in page.replace("http://www.w3.org", "")


def test_a_killed_conversion_resumes_to_the_same_bits(converted, teacher, tmp_path):
    """As after a kill in the last epoch: its checkpoint, summary and predictions are missing."""
    out = tmp_path / "run"
    shutil.copytree(converted.run, out)
    newest = RunFolder(out).checkpoints()[-1].path
    expected = load_file(newest / "model.safetensors")
    shutil.rmtree(newest)
    for name in ("summary.json", "predictions.npz", "manifest.json", "conversion.html"):
        (out / name).unlink()
    status = json.loads((out / "status.json").read_text())
    del status["manifest"]
    (out / "status.json").write_text(json.dumps({**status, "state": "running"}))
    done = convert(teacher, "taylor", out=out, keep_softmax=1, local=True, resume=True, quiet=True)
    found = load_file(RunFolder(out).checkpoints()[-1].path / "model.safetensors")
    assert found.keys() == expected.keys()
    assert all(torch.equal(found[key], expected[key]) for key in expected)
    assert done.record["recovered_accuracy"] == converted.record["recovered_accuracy"]
    assert done.page.exists()


@pytest.mark.parametrize("name", ["taylorshift", "performer_relu"])
def test_other_attentions(name, teacher, few_tokens, tmp_path):
    done = convert(teacher, name, out=tmp_path / "run", overrides=EPOCHS, quiet=True)
    assert done.record["recovered_accuracy"] > done.record["teacher_accuracy"] - 0.1
    assert Predictor(done.run).model.config.attention == name


def test_a_short_budget_takes_part_of_the_images(teacher, few_tokens, tmp_path):
    done = convert(teacher, "taylor", out=tmp_path / "run", minutes=1e-4, quiet=True)
    config = RunFolder(done.run).config()
    assert (config.train.epochs, config.data.num_train) == (1, config.train.batch_size)


def test_the_length_follows_from_the_budget(teacher):
    known, data = inspect(teacher)
    plan = partial(
        fit_to_budget,
        run_config(known.source, known.student.config, data, seed=0, device="cpu", minutes=1),
        known.splits,
        known.source,
        InitialWeights("teacher", "", known.student.state_dict()),
        ranks=Ranks(torch.device("cpu")),
    )
    shorter, longer = (plan(minutes=minutes).train.epochs for minutes in (5, 500))
    assert 1 < shorter < longer
    assert 20 < longer / shorter < 500


def test_bad_arguments_write_nothing(teacher, tmp_path):
    out = tmp_path / "run"
    for words, settings in {
        "--keep-softmax must be from 0 to 2, got 3": {"keep_softmax": 3},
        "--minutes must be above 0, got 0": {"minutes": 0},
        "overrides must be of optim, train, augment": {"overrides": ["model.name=vit_cifar"]},
        "config: unknown key 'optim.learning_rat'": {"overrides": ["optim.learning_rat=1"]},
    }.items():
        with pytest.raises(ConfigError, match=words.split(" got ")[0]):
            convert(teacher, "taylor", out=out, quiet=True, **settings)
    assert not out.exists()


def test_a_model_that_is_not_softmax_is_refused(converted):
    with pytest.raises(ConfigError, match="SOURCE must have softmax attention, got 'taylor'"):
        inspect(converted.run)


def test_several_processes_are_refused(teacher):
    known, data = inspect(teacher)
    config = run_config(known.source, known.student.config, data, seed=0, device="cpu", minutes=1)
    ranks = Ranks(torch.device("cpu"))
    ranks.world_size = 2
    with pytest.raises(ConfigError, match="a conversion must run in one process, got 2"):
        DistillingTrainer(config, known.splits, teacher=known.source.model, ranks=ranks)


@pytest.mark.slow
@pytest.mark.parametrize("blocks", [True, False], ids=["blocks", "logits"])
def test_compiled_stages_take_the_steps_of_eager_ones(teacher, blocks):
    known, data = inspect(teacher)
    state = {key: value.clone() for key, value in known.student.state_dict().items()}
    losses = []
    for compiled in (False, True):
        config = run_config(
            known.source, known.student.config, data, seed=0, device="cpu", minutes=1,
            overrides=[f"train.compile={str(compiled).lower()}", "train.batch_size=16"],
        )  # fmt: skip
        trainer = DistillingTrainer(
            config,
            known.splits,
            teacher=known.source.model,
            initial=InitialWeights("teacher", "", state),
            run=RunFolder(Path("unused")),
            ranks=Ranks(torch.device("cpu")),
            reporter=SilentReporter(),
            stop=StopRequest(),
        )
        trainer.stepper.network.train()
        trainer.stepper.block_steps = 3 if blocks else 0
        batches = [batch for _, batch in zip(range(3), trainer.train_loader.epoch(0), strict=False)]
        losses.append(
            [float(trainer.stepper.run(batch, step, 1.0)) for step, batch in enumerate(batches)]
        )
        assert trainer.stepper.teacher.is_compiled == compiled
        assert not trainer.stepper.teacher.training
    assert abs(losses[0][2] - losses[0][0]) > 0.1 * losses[0][0] > 0  # weights were updated
    assert losses[1] == pytest.approx(losses[0], rel=1e-3)
