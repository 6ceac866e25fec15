import json
import os
import re
import shutil
import subprocess
import sys
from pathlib import Path

import pytest
from PIL import Image

from saccade.cli import COMMANDS
from saccade.cli.list_names import KINDS
from saccade.config import list_recipes, load_config
from saccade.runs import RunFolder
from saccade.train import train
from tests.cli.conftest import Saccade, fresh
from tests.train.test_resume import stopped_early
from tests.train.tiny_runs import forget_manifest, spoil, tiny, unfinish


@pytest.mark.parametrize("command", [None, *COMMANDS])
def test_help_is_cheap_and_there(command: str | None) -> None:
    """No torch and no configuration behind `--help`: that is what keeps it under 0.3 seconds."""
    words = [command, "--help"] if command else ["--help"]
    code = (
        "import sys\nfrom saccade.cli import main\n"
        f"try: main({words!r})\n"
        "except SystemExit as end: assert not end.code, end.code\n"
        "heavy = {'torch', 'numpy', 'accelerate', 'PIL', 'yaml'} & set(sys.modules)\n"
        "assert not heavy, heavy\n"
    )
    done = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, check=False)
    assert done.returncode == 0, done.stderr
    assert done.stdout.startswith(f"Usage: saccade{' ' + command if command else ''}")
    assert "--help" in done.stdout


@pytest.mark.parametrize("kind", KINDS)
def test_lists_are_cheap(kind: str) -> None:
    """Names are tables: torch and the Hub's client, which take seconds to load, have no part."""
    code = (
        "import sys\nfrom saccade.cli import main\n"
        f"try: main(['list', {kind!r}])\n"
        "except SystemExit as end: assert not end.code, end.code\n"
        "heavy = {'torch', 'numpy', 'sklearn', 'huggingface_hub', 'PIL'} & set(sys.modules)\n"
        "assert not heavy, heavy\n"
    )
    done = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, check=False)
    assert done.returncode == 0, done.stderr
    assert len(done.stdout.split()) >= (2 if kind == "weights" else 4)


def test_what_is_loaded_late_or_never() -> None:
    """The compiler takes longer to load than torch, and scikit-learn as long as a short run."""
    code = (
        "import sys\nimport saccade.bench.attention, saccade.explain.maps, saccade.train.run\n"
        "from saccade.config import DataConfig\nfrom saccade.data import load_splits\n"
        "from saccade.models import create_model\n"
        "create_model('vit_micro_patch4_32', 'taylorshift')\n"
        "load_splits(DataConfig(name='digits'))\n"
        "loaded = {'torch._dynamo', 'torch._inductor', 'sympy', 'sklearn'} & set(sys.modules)\n"
        "assert not loaded, loaded\n"
    )
    done = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, check=False)
    assert done.returncode == 0, done.stderr


def test_every_command_is_listed(saccade: Saccade) -> None:
    code, out, _ = saccade("--help")
    assert code == 0
    for command, line in COMMANDS.items():
        assert f"{command} " in out
        assert line in out


@pytest.mark.parametrize(
    ("words", "line"),
    [
        ("trian", "no such command 'trian'. Did you mean 'train'? (see `saccade --help`)"),
        ("--zzz", "unknown option '--zzz' (see `saccade --help`)"),
        ("bench modle", "no such command 'modle'. Did you mean 'model'? (see `saccade bench"),
        ("train --foo", "unknown option '--foo' (see `saccade train --help`)"),
        ("train --hepl", "unknown option '--hepl': did you mean '--help'? (see `saccade train --"),
        ("bench attention --pass x", "unknown option '--pass': did you mean '--passes'? (see `"),
        ("train --ouf x", "unknown option '--ouf': did you mean '--out'? (see `saccade train"),
        ("train --output_dir x", "unknown option '--output_dir': did you mean '--out'? (see `sacc"),
        ("train --lr 1", "unknown option '--lr': did you mean 'optim.lr=VALUE'? (see `saccade tra"),
        ("tune --batch-size 8", "unknown option '--batch-size': did you mean 'train.batch_size=V"),
        ("compare --hidden-size 8", "did you mean 'model.overrides.embed_dim=VALUE'? (see `sacc"),
        ("train --recipe x", "unknown option '--recipe' (see `saccade train --help`)"),
        ("bench model --z", "unknown option '--z' (see `saccade bench model --help`)"),
        ("evaluate", "RUN is needed: a run folder, a folder of save_pretrained"),
        ("evaluate x y z", "got unexpected extra argument(s) (y z) (see `saccade evaluate --help`"),
        ("evaluate x --split", "option '--split' requires an argument: train, val or test (see `"),
        (
            "bench attention --n",
            "requires an argument: numbers of tokens N, separated by commas (see `saccad",
        ),
        ("train --quiet=3", "option '--quiet' does not take a value (see `saccade train --help`)"),
        ("evaluate x --batch-size many", "--batch-size 'many': should be a valid integer (see `"),
        ("predict x y --top 0", "--top '0': should be greater than or equal to 1 (see `saccade p"),
        ("compare x --jobs 1.5", "--jobs '1.5': should be a valid integer (see `saccade compare"),
    ],
)
def test_the_option_parser_complains_in_one_line(saccade: Saccade, words: str, line: str) -> None:
    code, out, err = saccade(*words.split())
    assert (code, out) == (2, "")
    (told,) = err.splitlines()
    assert told.startswith("saccade: ")
    assert line in told
    assert told.endswith(" --help`)")


def test_a_command_of_commands_shows_its_help_where_none_is_named(saccade: Saccade) -> None:
    code, out, err = saccade("bench")
    assert code == 2
    assert (out + err).startswith("Usage: saccade bench")


def test_list_names(saccade: Saccade) -> None:
    assert saccade("list", "recipes", "--json")[1].strip() == json.dumps(list_recipes())
    header, *rows = saccade("list", "attentions", "taylor*")[1].splitlines()
    assert header.split() == ["attention", "kind", "length", "rows"]
    assert [row.split() for row in rows] == [
        ["taylor", "pure", "any", "convex"],
        ["taylorshift", "pure", "any", "convex"],
    ]
    assert "vit_cifar" in saccade("list", "models")[1].split()
    assert "digits" in saccade("list", "datasets")[1].split()
    code, out, err = saccade("list", "models", "zzz*")
    assert (code, out, err) == (0, "", "no models match 'zzz*'\n")
    code, _, err = saccade("list", "model")
    assert code == 2
    assert "did you mean 'models'" in err


def test_print_config_is_the_resolved_config(saccade: Saccade, tmp_path: Path) -> None:
    code, out, _ = saccade("train", "digits-quick", "optim.lr=0.5", "--print-config")
    assert code == 0
    (tmp_path / "printed.yaml").write_text(out)
    assert load_config(tmp_path / "printed.yaml") == load_config("digits-quick", ["optim.lr=0.5"])


def test_dry_run_writes_nothing(saccade: Saccade, recipe: Path, tmp_path: Path) -> None:
    out = tmp_path / "run"
    code, words, _ = saccade("train", recipe, "--dry-run", "--json", "--out", out)
    assert code == 0
    assert json.loads(words)["steps"] == 14
    assert not out.exists()


def test_dry_run_stops_where_the_run_would(saccade: Saccade, recipe: Path, run: Path) -> None:
    code, _, told = saccade("train", recipe, "--dry-run", "--out", run)
    assert code == 2
    assert "a run is there already" in told
    code, words, told = saccade("train", recipe, "--dry-run", "--resume", "--json", "--out", run)
    assert (code, told) == (0, f"'{run}' is finished already: nothing to do\n")
    assert json.loads(words) == RunFolder(run).summary()


def contents(folder: Path) -> dict[Path, object]:
    """Everything below a folder: what is in it, and when it was changed."""
    return {
        path: (path.stat().st_mtime_ns, path.read_bytes() if path.is_file() else None)
        for path in [folder, *folder.rglob("*")]
    }


@pytest.mark.parametrize(
    ("words", "told"),
    [
        (["optim.name=sgd", "--resume", "--out", "run"], r"optim.name \('adamw' -> 'sgd'\)"),
        (["--resume", "--out", "held"], "another process is training here"),
        (["--out", "file/run"], "'.*file/run': cannot write there: Not a directory"),
        (["--out", "full"], "exists and is not an empty folder"),
    ],
)
def test_dry_run_says_what_the_run_would(
    saccade: Saccade, recipe: Path, tmp_path: Path, words: list[str], told: str
) -> None:
    (tmp_path / "file").touch()
    (tmp_path / "full").mkdir()
    (tmp_path / "full" / "thesis.tex").touch()
    for name in ("run", "held"):
        stopped_early(tmp_path / name, "train.epochs=2")
    *others, out = words
    with RunFolder(tmp_path / "held").locked():
        before = contents(tmp_path)
        found = saccade("train", recipe, *others, tmp_path / out, "--dry-run")
        assert contents(tmp_path) == before
        assert found == saccade("train", recipe, *others, tmp_path / out)
    assert found[0] == 2
    assert re.search(told, found[2])


def test_dry_run_of_a_stopped_run_changes_nothing(
    saccade: Saccade, recipe: Path, tmp_path: Path
) -> None:
    stopped_early(tmp_path / "run", "train.epochs=2")
    before = contents(tmp_path)
    words = ["--dry-run", "--resume", "--json", "--out", tmp_path / "run"]
    code, found, _ = saccade("train", recipe, *words)
    assert code == 0
    assert 0 < json.loads(found)["first_loss"] < 5
    assert contents(tmp_path) == before


def test_train_in_a_fresh_process(recipe: Path, run: Path, tmp_path: Path) -> None:
    done = fresh("train", str(recipe), "--out", str(tmp_path / "run"), "--json")
    assert done.returncode == 0, done.stderr
    summary = json.loads(done.stdout)
    assert summary["epochs"] == 2
    assert b"epoch   2" in done.stderr
    first, second = (
        sorted((folder / "checkpoints").iterdir())[-1] / "model.safetensors"
        for folder in (run, tmp_path / "run")
    )
    assert first.read_bytes() == second.read_bytes()


@pytest.mark.parametrize(
    ("words", "code", "told"),
    [
        (["train"], 2, "RECIPE is needed"),
        (["train", "digits-quick"], 2, "--out DIR is needed"),
        (["train", "digit-quick"], 2, "did you mean 'digits-quick'"),
        (["train", "absent.yaml"], 2, "no such config file: 'absent.yaml'"),
        (["train", "digits-quick", "optim.lrr=1"], 2, "did you mean 'optim.lr'"),
        (["train", "digits-quick", "model.name=vit_cifra", "--dry-run"], 2, "'vit_cifar'"),
        (["train", "digits-quick", "model.attention=tayler", "--dry-run"], 2, "'taylor'"),
        (["train", "digits-quick", "data.name=digit", "--dry-run"], 2, "'digits'"),
        (["train", "digits-quick", "model.overrides.dept=3", "--dry-run"], 2, "depth"),
        (["train", "digits-quick", "model.overrides.num_classes=5", "--dry-run"], 2, "data set"),
        (["train", "digits-quick", "model.name=taylorshift_imdb", "--dry-run"], 2, "sequences"),
        (["train", "digits-quick", "train.precision=fp16", "train.device=cpu", "--dry-run"], 2, ""),
        (["train", "digits-quick", f"run.seed={2**80}", "--dry-run"], 2, "run.seed"),
        (["train", "taylorshift-vit-ti", "data.root=/absent", "--dry-run"], 3, "/absent"),
        (["train", "digits-quick", "--out", "/proc/nowhere/run"], 2, "cannot write"),
        (["train", "--resume", "--out", "/absent/run"], 2, "not a run folder"),
        (["evaluate", "/absent"], 2, "not a run folder"),
        (["predict", "/absent", "x.png"], 2, "not a run folder"),
        (["train", "--frobnicate"], 2, "unknown option '--frobnicate'"),
        (["bench", "attention", "--seconds", "inf"], 2, "--seconds 'inf'"),
        (["analyze", "crossover", "--seconds", "inf"], 2, "--seconds 'inf'"),
        (["bench", "attention", "--n", ""], 2, "--n must be values separated by commas, got ''"),
        (
            ["bench", "attention", "--d", " , "],
            2,
            "--d must be values separated by commas, got ' , '",
        ),
        (
            ["bench", "attention", "--mechanisms", ""],
            2,
            "--mechanisms must be values separated by commas, got ''",
        ),
        (
            ["bench", "attention", "--passes", ""],
            2,
            "--passes must be values separated by commas, got ''",
        ),
        (["bench", "attention", "--dtype", ""], 2, "unknown dtype ''"),
        (
            ["bench", "model", "--model", ""],
            2,
            "--model must be values separated by commas, got ''",
        ),
        (
            ["bench", "model", "--attention", ","],
            2,
            "--attention must be values separated by commas, got ','",
        ),
        (
            ["bench", "model", "--image-size", ""],
            2,
            "--image-size must be values separated by commas, got ''",
        ),
        (
            ["bench", "model", "--patch-size", ""],
            2,
            "--patch-size must be values separated by commas, got ''",
        ),
        (
            ["bench", "model", "--passes", ""],
            2,
            "--passes must be values separated by commas, got ''",
        ),
        (["analyze", "crossover", "--d", ""], 2, "--d must be values separated by commas, got ''"),
        (
            ["compare", "digits-quick", "--attention", "", "--out", "x"],
            2,
            "--attention must be values separated by commas, got ''",
        ),
        (["train", "--resume", "--out", "absent"], 2, "'absent' is not a run folder"),
        (["compare", "--resume", "--out", "absent"], 2, "'absent' is not a comparison"),
        (["compare", "digits-quick", "--out", "/proc/nowhere"], 2, "cannot write there"),
        (["tune", "--resume", "--out", "absent"], 2, "no search in 'absent' (no study.json)"),
    ],
)
def test_mistakes_get_one_line_and_a_code(
    saccade: Saccade, words: list[str], code: int, told: str
) -> None:
    got, out, err = saccade(*words)
    assert got == code, err
    assert told in err
    assert not out
    assert "Traceback" not in err
    assert len(err.splitlines()) == 1


def test_a_full_disk_behind_stdout_is_told_by_its_code() -> None:
    command = [sys.executable, "-m", "saccade", "list", "recipes"]
    with Path("/dev/full").open("w") as full:
        done = subprocess.run(command, stdout=full, stderr=subprocess.PIPE, text=True, check=False)
    assert done.returncode == 4
    assert done.stderr == "saccade: cannot read or write a file: No space left on device\n"


def test_debug_shows_the_traceback() -> None:
    done = fresh("train", "digit-quick", "--debug")
    assert done.returncode == 2
    assert b"Traceback" in done.stderr
    assert b"UnknownNameError" in done.stderr


def test_existing_run_newer_config_and_other_config(saccade: Saccade, run: Path) -> None:
    code, _, err = saccade("train", "digits-quick", "--out", run)
    assert code == 2
    assert "add --resume" in err
    code, _, err = saccade("train", "--resume", "--out", run, "optim.lr=9")
    assert code == 2
    assert "optim.lr (0.01 -> 9.0)" in err


def test_broken_files_are_named(
    saccade: Saccade, run: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    (tmp_path / "bytes.yaml").write_bytes(b"\xff\xfe")
    code, _, err = saccade("train", tmp_path / "bytes.yaml", "--print-config")
    assert code == 2
    assert "bytes.yaml" in err
    (tmp_path / "empty.yaml").touch()
    code, _, err = saccade("train", tmp_path / "empty.yaml", "--print-config")
    assert code == 2
    assert "empty.yaml is empty: it must have sections" in err
    code, _, err = saccade("train", tmp_path, "--print-config")
    assert code == 3
    assert "must have at least two classes, one sub-folder each, got no sub-folder" in err
    Image.new("L", (8, 8)).save(tmp_path / "bad.png")
    for command in ("train", "compare", "tune"):
        code, _, err = saccade(command, tmp_path / "bad.png", "--out", tmp_path / "out")
        assert code == 2
        assert "RECIPE must be a recipe's name or a file that ends in .yaml" in err
        assert f"got the file {str(tmp_path / 'bad.png')!r}" in err
    (tmp_path / "digits-quick").mkdir()
    monkeypatch.chdir(tmp_path)
    assert saccade("train", "digits-quick", "--print-config")[0] == 0
    shutil.copytree(run, tmp_path / "run")
    (tmp_path / "run" / "dataset.json").write_text('{"color": 1}')
    code, _, err = saccade("evaluate", tmp_path / "run")
    assert code == 2
    assert "dataset.json" in err


def test_newer_run_folder_is_refused(saccade: Saccade, tmp_path: Path) -> None:
    (tmp_path / "config.yaml").write_text("version: 99\nnovel: {thing: 1}\n")
    for words in (["evaluate", tmp_path], ["train", "--resume", "--out", tmp_path]):
        code, _, err = saccade(*words)
        assert code == 2
        assert "newer saccade" in err


def test_results_of_an_unfinished_run_come_with_a_note(saccade: Saccade, tmp_path: Path) -> None:
    out = tmp_path / "run"
    stopped_early(out)
    Image.new("L", (8, 8), 90).save(tmp_path / "gray.png")
    status, newest = RunFolder(out).status(), RunFolder(out).checkpoints()[-1]
    note = (
        f"saccade: '{out}' is not finished (preempted; {status['epoch']} of 6 epochs done): "
        f"its checkpoint of step {newest.step} is used\n"
    )
    figures = tmp_path / "figures"
    for words in (
        ["evaluate", out],
        ["predict", out, tmp_path / "gray.png"],
        ["explain", out, "test:0", "--out", figures],
    ):
        code, printed, told = saccade(*words, "--json")
        assert (code, told) == (0, note)
        assert json.loads(printed)
    _, _, told = saccade("explain", out, "test:0", "--compare", out, "--out", figures)
    assert told == 2 * note


def test_a_killed_run_is_noted_with_the_checkpoint_that_is_whole(
    saccade: Saccade, run: Path, tmp_path: Path
) -> None:
    """A run that is killed is told of as the last write had it, and damage is passed over."""
    out = Path(shutil.copytree(run, tmp_path / "run"))
    folder = RunFolder(out)
    unfinish(folder)
    folder.write("status.json", folder.status() | {"state": "running", "epoch": 1})
    before, last = folder.checkpoints()[-2:]
    (last.path / "manifest.json").unlink()
    code, _, told = saccade("evaluate", out)
    assert code == 0
    assert f"passed over a damaged checkpoint: {last.path.name}" in told
    assert "is not finished (running, or killed; 1 of 2 epochs done)" in told
    assert f"its checkpoint of step {before.step} is used" in told


def test_a_finished_run_says_that_its_last_checkpoint_is_damaged(
    saccade: Saccade, run: Path, tmp_path: Path
) -> None:
    out = Path(shutil.copytree(run, tmp_path / "run"))
    before, last = RunFolder(out).checkpoints()[-2:]
    (last.path / "model.safetensors").write_bytes(b"cut short")
    code, _, told = saccade("evaluate", out)
    assert code == 0
    assert told.splitlines() == [
        f"saccade: passed over a damaged checkpoint: {last.path.name}: model.safetensors is not "
        "what was written",
        f"saccade: its checkpoint of step {before.step} is used, not that of its last step "
        f"{last.step}",
    ]
    shutil.rmtree(last.path)
    told = saccade("evaluate", out)[2]
    assert f"{before.step} is used, not that of its last step {last.step}" in told


@pytest.mark.parametrize("content", ["5", "null", '"x"', "[1, 2]"])
@pytest.mark.parametrize("name", ["status.json", "dataset.json", "summary.json"])
def test_files_of_a_run_that_hold_something_else(
    saccade: Saccade, run: Path, tmp_path: Path, name: str, content: str
) -> None:
    out = Path(shutil.copytree(run, tmp_path / "run"))
    forget_manifest(RunFolder(out))
    (out / name).write_text(content)
    code, _, told = saccade("evaluate", out)
    assert code == 2
    assert told.splitlines()[-1] == f"saccade: '{out / name}' is not a JSON object"


def test_without_validation_no_weights_are_called_the_best(
    saccade: Saccade, tmp_path: Path
) -> None:
    out = tmp_path / "run"
    train(tiny("train.epochs=1", "data.val_fraction=0"), out, quiet=True)
    for more in ([], ["--weights", "best"]):
        code, printed, _ = saccade("evaluate", out, "--json", *more)
        assert code == 0
        assert json.loads(printed)["weights"] == "last"
    code, _, told = saccade("evaluate", out, "--split", "val")
    assert (code, told) == (2, "saccade: split='val' is empty: data.val_fraction=0.0\n")


def test_a_run_finds_its_folder_of_images_from_elsewhere(
    saccade: Saccade, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    for part in ("train", "test"):
        for place, name in enumerate(("cat", "dog")):
            folder = tmp_path / "images" / part / name
            folder.mkdir(parents=True)
            for shade in range(8):
                Image.new("L", (8, 8), 100 * place + shade + 10 * (part == "test")).save(
                    folder / f"{shade}.png"
                )
    monkeypatch.chdir(tmp_path)
    folder = ["data.name=folder", "data.root=images", "data.image_size=8", "train.batch_size=4"]
    train(tiny(*folder, "data.num_train=null", "data.num_test=null", "train.epochs=1"), "run")
    (tmp_path / "elsewhere").mkdir()
    monkeypatch.chdir(tmp_path / "elsewhere")
    assert saccade("evaluate", "../run", "--json")[0] == 0
    (tmp_path / "images").rename(tmp_path / "moved")
    code, _, told = saccade("evaluate", "../run")
    assert (code, told) == (3, f"saccade: '{tmp_path / 'images'}': no such folder\n")
    code, printed, _ = saccade("evaluate", "../run", "--data-root", "../moved", "--json")
    assert code == 0
    assert json.loads(printed)["count"] == 16
    unfinish(RunFolder(tmp_path / "run"))
    assert saccade("train", "--resume", "--out", "../run", "data.root=../moved", "--quiet")[0] == 0
    monkeypatch.chdir(tmp_path)
    assert saccade("evaluate", "run", "--json")[0] == 0


def test_names_that_cannot_be_encoded_are_written_as_escapes(run: Path, tmp_path: Path) -> None:
    name = os.fsdecode(b"caf\xe9.png")
    Image.new("L", (8, 8), 90).save(tmp_path / name)
    environment = os.environ | {"PYTHONIOENCODING": "utf-8:strict"}
    command = [sys.executable, "-m", "saccade", "predict", str(run), str(tmp_path)]
    done = subprocess.run(command, capture_output=True, env=environment, check=False)
    assert done.returncode == 0, done.stderr
    assert b"caf\\udce9.png" in done.stdout


def test_evaluate(saccade: Saccade, run: Path) -> None:
    code, out, told = saccade("evaluate", run, "--json", "--device", "cpu")
    assert (code, told) == (0, "")
    result = json.loads(out)
    summary = json.loads((run / "summary.json").read_text())
    assert result["accuracy"] == summary["test_accuracy"]
    code, table, _ = saccade("evaluate", run, "--split", "val")
    assert code == 0
    assert "accuracy by class" in table
    assert saccade("evaluate", run, "--split", "dev")[0] == 2
    assert saccade("evaluate", run, "--weights", "worst")[0] == 2


@pytest.mark.parametrize(
    ("value", "where"),
    [(float("nan"), "weights of blocks.0.mlp.fc1.weight"), (3e38, "output of blocks.0.mlp.fc1")],
)
def test_outputs_that_are_not_finite_are_a_failure(
    saccade: Saccade, run: Path, tmp_path: Path, value: float, where: str
) -> None:
    out = Path(shutil.copytree(run, tmp_path / "run"))
    spoil(out, "blocks.0.mlp.fc1.weight", value)
    Image.new("L", (8, 8), 90).save(tmp_path / "gray.png")
    for words in (
        ["evaluate", out, "--json"],
        ["predict", out, tmp_path / "gray.png"],
        ["explain", out, "test:0", "--out", tmp_path / "figures"],
        ["explain", out, "test:0", "--method", "gradient", "--out", tmp_path / "figures"],
        ["explain", out, "--data", "--weights", "last", "--out", tmp_path / "data"],
    ):
        code, printed, told = saccade(*words)
        assert (code, told) == (
            4,
            f"saccade: the model's outputs are not finite, first in the {where}\n",
        )
        assert "nan" not in printed.lower()


def test_what_is_no_run_folder_is_told_from_what_is_none_at_all(
    saccade: Saccade, run: Path, tmp_path: Path
) -> None:
    (tmp_path / "file").touch()
    (tmp_path / "empty").mkdir()
    for name in ("linear", "softmax"):
        shutil.copytree(run, tmp_path / "study" / "runs" / name / "seed-0")
    inside = tmp_path / "study" / "runs" / "linear" / "seed-0"
    for name, reason in (
        ("absent", "nothing is there"),
        ("file", "it is a file"),
        ("empty", "it has no config.yaml"),
        ("study", f"it has no config.yaml; there are runs below it, such as '{inside}'"),
    ):
        code, out, told = saccade("evaluate", tmp_path / name)
        assert (code, out) == (2, "")
        assert told == f"saccade: '{tmp_path / name}' is not a run folder: {reason}\n"


def test_predict(saccade: Saccade, run: Path, tmp_path: Path) -> None:
    folder = tmp_path / "images"
    folder.mkdir()
    for shade in (0, 255):
        Image.new("L", (20, 30), shade).save(folder / f"{shade}.png")
    code, out, err = saccade("predict", run, folder, folder / "0.png", "--json", "--top", "2")
    assert code == 0, err
    rows = [json.loads(line) for line in out.splitlines()]
    assert [Path(row["image"]).name for row in rows] == ["0.png", "255.png", "0.png"]
    assert rows[0]["classes"] == rows[2]["classes"]
    assert len(rows[0]["classes"]) == 2
    (folder / "broken.png").write_bytes(b"not a picture")
    code, out, err = saccade("predict", run, tmp_path / "absent.png", folder)
    assert code == 3
    assert ["absent.png" in line for line in err.splitlines()] == [True, False]
    assert "broken.png" in err.splitlines()[1]
    assert [Path(line.split()[0]).name for line in out.splitlines()] == ["0.png", "255.png"]
    assert saccade("predict", run, tmp_path / "absent.png")[0] == 3
    code, _, err = saccade("predict", run, "https://example.org/cat.png")
    assert code == 2
    assert "URLs are not fetched" in err


def test_predict_from_stdin(
    saccade: Saccade, run: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    Image.new("L", (8, 8), 90).save(tmp_path / "gray.png")
    with (tmp_path / "gray.png").open(encoding="latin1") as stdin:
        monkeypatch.setattr(sys, "stdin", stdin)
        code, out, err = saccade("predict", run, "-")
    assert code == 0, err
    assert out.startswith("-  ")


def test_doctor(saccade: Saccade) -> None:
    code, out, _ = saccade("doctor", "--json")
    assert code == 0
    facts = json.loads(out)
    assert facts["torch"]
    assert facts["extra timm"]


def test_doctor_says_that_the_cache_is_no_folder(
    saccade: Saccade, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    (tmp_path / "file").touch()
    monkeypatch.setenv("SACCADE_DATA", str(tmp_path / "file"))
    code, out, _ = saccade("doctor", "--json")
    assert code == 0
    assert json.loads(out)["cached"] == "cannot be read: Not a directory"
    monkeypatch.setenv("SACCADE_DATA", str(tmp_path / "absent"))
    assert json.loads(saccade("doctor", "--json")[1])["cached"] == "nothing yet"


def test_doctor_goes_on_where_the_cache_cannot_be_looked_for(
    saccade: Saccade, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("SACCADE_DATA", str(tmp_path / ("x" * 300)))
    facts = json.loads(saccade("doctor", "--json")[1])
    assert facts["cached"] == "cannot be read: File name too long"
    assert facts["disk free GiB"] > 0
    monkeypatch.setenv("SACCADE_DATA", "~nobody-of-this-name/x")
    code, out, _ = saccade("doctor", "--json")
    assert code == 0
    assert "set SACCADE_DATA" in json.loads(out)["data cache"]


def test_doctor_lists_data_sets_alone(
    saccade: Saccade, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    for name in ("mnist.safetensors", ".mnist.safetensors.0a", ".mnist.safetensors.lock"):
        (tmp_path / name).touch()
    (tmp_path / "downloads").mkdir()
    monkeypatch.setenv("SACCADE_DATA", str(tmp_path))
    assert json.loads(saccade("doctor", "--json")[1])["cached"] == "mnist.safetensors"


def test_a_closed_stderr_stops_nothing_and_gets_no_file(recipe: Path, tmp_path: Path) -> None:
    """What is printed there goes nowhere: not to stdout, nor into a file with the free number."""
    words = f"train {recipe} --out {tmp_path / 'run'} --json"
    command = f"exec {sys.executable} -m saccade {words} 2>&-"
    done = subprocess.run(["sh", "-c", command], stdout=subprocess.PIPE, check=False)
    assert done.returncode == 0
    assert json.loads(done.stdout)["epochs"] == 2
    look = "import os; os.write(2, b'x'); print(os.readlink('/proc/self/fd/2'))"
    code = (
        "import subprocess, sys\nfrom saccade.cli.terminal import open_closed_streams\n"
        "open_closed_streams()\nsys.stderr.write('unseen')\n"
        f"subprocess.run([sys.executable, '-c', {look!r}], check=True)\n"
    )
    (tmp_path / "look.py").write_text(code)
    command = f"exec {sys.executable} {tmp_path / 'look.py'} 2>&-"
    done = subprocess.run(["sh", "-c", command], stdout=subprocess.PIPE, check=False)
    assert (done.returncode, done.stdout) == (0, b"/dev/null\n")


def test_resume_without_recipe(saccade: Saccade, run: Path) -> None:
    code, out, err = saccade("train", "--resume", "--out", run, "--json")
    assert code == 0
    assert "finished already" in err
    assert json.loads(out)["epochs"] == tiny("train.epochs=2").train.epochs


FAILING = """
import torch
from saccade.cli import main
from saccade.train import run_data
def fail(*arguments, **options): {body}
run_data.load_splits = fail
main()
"""


@pytest.mark.parametrize(
    ("body", "told"),
    [
        ("torch.empty(1 << 60)", "saccade: out of memory: "),
        ("raise MemoryError", "saccade: out of memory: MemoryError"),
    ],
)
def test_memory_that_runs_out_anywhere_is_told_by_its_code(run: Path, body: str, told: str) -> None:
    command = [sys.executable, "-c", FAILING.format(body=body), "evaluate", str(run)]
    done = subprocess.run(command, capture_output=True, text=True, check=False)
    assert done.returncode == 4, done.stderr
    assert done.stderr.startswith(told)
    assert len(done.stderr.splitlines()) == 1


OSC = "\x1b]0;owned\x07"
HOSTILE = f"cat{OSC}\u202ewhite\nforged 1.0"


def test_names_of_classes_and_files_cannot_steer_the_terminal(
    saccade: Saccade, run: Path, tmp_path: Path
) -> None:
    hostile = tmp_path / "run"
    shutil.copytree(run, hostile)
    facts = json.loads((hostile / "dataset.json").read_text())
    facts["class_names"][:] = [f"{HOSTILE}{number}" for number in range(10)]
    (hostile / "dataset.json").write_text(json.dumps(facts))
    forget_manifest(RunFolder(hostile))
    image = tmp_path / f"x{OSC}\x9b2J.png"
    Image.new("L", (8, 8)).save(image)
    broken = tmp_path / f"y{OSC}.png"
    broken.touch()
    said = [
        saccade("predict", hostile, image, broken),
        saccade("explain", hostile, image, "--out", tmp_path / "out"),
        saccade("evaluate", hostile),
        saccade("evaluate", tmp_path / f"no{OSC}run"),
    ]
    for _, out, err in said:
        assert not set(out + err) & set("\x1b\x07\x9b\u202e")
        assert "forged" not in [line[:6] for line in out.splitlines()]
    assert [code for code, _, _ in said] == [3, 0, 3, 2]
    assert "x\\x1b]0;owned\\x07\\x9b2J.png  cat\\x1b]0;owned\\x07" in said[0][1]
