"""The command `saccade compare`: its output and its error messages."""

import json
import os
import shutil
import signal
import threading
from pathlib import Path

import pytest

from saccade.study.comparison import ComparisonFolder, Job, Plan
from saccade.study.launchers import only_launcher
from tests.cli.conftest import Saccade
from tests.train.tiny_runs import forget_manifest
from tests.waiting import wait_until


@pytest.fixture
def copied(finished: Path, tmp_path: Path) -> Path:
    return Path(shutil.copytree(finished, tmp_path / "study"))


def test_compare_prints_table_page_and_folder(saccade: Saccade, copied: Path) -> None:
    code, out, err = saccade("compare", "--resume", "--out", copied)
    assert code == 0, err
    assert "6 of 6 runs are done already" in err
    lines = out.splitlines()
    for name in ("softmax", "taylorshift", "performer"):
        assert [line for line in lines if line.split()[:1] == [name]]
    assert lines[-1] == f"run folders: {copied}"
    page = Path(lines[-2].removeprefix("page:").strip())
    assert page.read_text().lstrip().lower().startswith("<!doctype html")


def test_json_option_prints_the_results(saccade: Saccade, copied: Path) -> None:
    code, out, _ = saccade("compare", "--resume", "--out", copied, "--json")
    assert code == 0
    shown = json.loads(out)
    results = json.loads((copied / "results.json").read_text())
    assert {key: shown[key] for key in results} == results
    assert shown["page"].endswith(".html")


def test_run_with_another_configuration_is_refused(
    saccade: Saccade, copied: Path, plan: Plan
) -> None:
    run = ComparisonFolder.open(copied).run(Job("performer", 1))
    forget_manifest(run)
    config = run.path / "config.yaml"
    config.write_text(config.read_text().replace("\n  epochs: 2\n", "\n  epochs: 9\n"))
    code, out, err = saccade("compare", "--resume", "--out", copied)
    assert (code, out) == (2, "")
    assert "unfair: performer/seed-1 was not run with" in err
    assert "train.epochs (2 -> 9)" in err


@pytest.mark.parametrize(
    ("name", "kept"),
    [
        ("measures.json", 40),
        ("initial/seed-0.safetensors", 0),
        ("initial/seed-0.safetensors", -40),
    ],
)
def test_damaged_file_is_reported_and_written_again_after_deletion(
    saccade: Saccade, copied: Path, name: str, kept: int
) -> None:
    before = json.loads((copied / "results.json").read_text())
    shutil.rmtree(copied / "runs" / "performer" / "seed-0")
    file = copied / name
    file.write_bytes(file.read_bytes()[:kept])
    code, out, err = saccade("compare", "--resume", "--out", copied)
    assert (code, out) == (2, "")
    assert len(err.strip().splitlines()) == 1
    assert f"{str(file)!r} cannot be read" in err
    assert "; delete it to " in err
    file.unlink()
    code, out, err = saccade("compare", "--resume", "--out", copied, "--json")
    assert code == 0, err
    accuracies = [[row["accuracies"] for row in r["rows"]] for r in (before, json.loads(out))]
    assert accuracies[0] == accuracies[1]


def test_second_launcher_is_refused(saccade: Saccade, copied: Path) -> None:
    with only_launcher(copied):
        code, out, err = saccade("compare", "--resume", "--out", copied)
    assert (code, out) == (2, "")
    assert err.strip().endswith("another process works on this study; wait until it has ended")


def test_failed_runs_print_the_reason_and_exit_with_code_4(
    saccade: Saccade, tmp_path: Path
) -> None:
    words = ["optim.lr=1e30", "optim.clip_norm=null", "train.epochs=1", "data.num_train=100"]
    code, out, err = saccade(
        *("compare", "digits-quick", *words, "--attention", "softmax,taylor"),
        *("--seeds", 1, "--out", tmp_path / "study"),
    )
    assert code == 4
    assert "2 run(s) failed; softmax/seed-0: " in err.splitlines()[-1]
    assert "not finite" in err.splitlines()[-1]
    assert "softmax" in out


def interrupt_the_first_run(out: Path) -> None:
    """Send Ctrl-C to this process when the comparison has begun to train."""
    wait_until(lambda: list(out.glob("runs/*/seed-0/status.json")))
    os.kill(os.getpid(), signal.SIGINT)


def test_interrupt_before_the_first_result_prints_one_line(
    saccade: Saccade, tmp_path: Path
) -> None:
    out = tmp_path / "study"
    user = threading.Thread(target=interrupt_the_first_run, args=[out])
    user.start()
    words = ["digits-quick", "train.epochs=400", "--attention", "softmax,taylor", "--seeds", 1]
    code, printed, err = saccade("compare", *words, "--out", out)
    user.join()
    assert (code, printed) == (130, "")
    assert err.splitlines()[-1] == "saccade: stopped with 0 of 2 runs done; go on with --resume"


@pytest.mark.parametrize(
    ("words", "message"),
    [
        (["digits-quick"], "--out DIR is needed"),
        (["--out", "OUT"], "RECIPE is needed"),
        (["digit-quick", "--out", "OUT"], "did you mean 'digits-quick'"),
        (["digits-quick", "--attention", "softmax,tayler", "--out", "OUT"], "'taylor'"),
        (["digits-quick", "--attention", "softmax", "--out", "OUT"], "only 'softmax' to compare"),
        (
            ["digits-quick", "--attention", ",", "--out", "OUT"],
            "--attention must be values separated by commas",
        ),
        (["digits-quick", "--seeds", "0", "--out", "OUT"], "seeds must be at least 1, got 0"),
        (["digits-quick", "--jobs", "0", "--out", "OUT"], "jobs must be at least 1, got 0"),
        (["digits-quick", "--folds", "1", "--out", "OUT"], "folds must be at least 2, got 1"),
        (["digits-quick", "--baseline", "tailor", "--out", "OUT"], "baseline must be one of"),
        (["digits-quick", "train.epoch=1", "--out", "OUT"], "did you mean 'train.epochs'"),
        (["digits-quick", "run.seed=4", "--out", "OUT"], "use --seeds to set run.seed"),
        (["digits-quick", "optim.schedule=plateau", "--out", "OUT"], "unfair: "),
        (["digits-quick", "--out", "FULL"], "--out must be a new folder or a comparison"),
        (["--resume", "--out", "OUT"], "is not a comparison: it has no study.json"),
        (["--resume", "--seeds", "4", "--out", "OUT"], "takes no changes"),
    ],
)
def test_invalid_arguments_print_one_line_and_exit_with_code_2(
    saccade: Saccade, tmp_path: Path, words: list[str], message: str
) -> None:
    (tmp_path / "full").mkdir()
    (tmp_path / "full" / "thesis.tex").write_text("precious")
    places = {"OUT": tmp_path / "out", "FULL": tmp_path / "full"}
    code, out, err = saccade("compare", *(places.get(word, word) for word in words))
    assert (code, out) == (2, ""), err
    assert message in err
    assert len(err.strip().splitlines()) == 1
    assert not (tmp_path / "out").exists()


def test_missing_data_exits_with_code_3(saccade: Saccade, tmp_path: Path) -> None:
    words = ["vit-cifar10", "data.root=/absent", "--out", str(tmp_path / "out")]
    code, _, err = saccade("compare", *words)
    assert code == 3
    assert "/absent" in err
    assert not (tmp_path / "out").exists()


def test_make_run_makes_a_comparison(saccade: Saccade, tmp_path: Path) -> None:
    makefile = (Path(__file__).parents[2] / "Makefile").read_text()
    recipe = makefile.split("\nrun: ")[1].split("\n\n")[0].replace("\\\n", " ")
    words = recipe.split("/saccade ")[1].split()
    words[words.index("--jobs") + 1] = words[words.index("--seeds") + 1] = "1"
    words[words.index("--out") + 1 :] = [str(tmp_path / "run")]
    small = ["train.epochs=1", "data.num_train=100", "data.num_test=30"]
    code, out, err = saccade(*words, *small)
    assert code == 0, err
    lines = out.splitlines()
    assert {"softmax", "taylorshift", "performer"} <= {
        line.split()[0] for line in lines if line.strip()
    }
    assert "report.html" in lines[-2]
    assert lines[-1] == f"run folders: {tmp_path / 'run'}"
