"""`saccade explain` as a user runs it."""

import json
import os
import pty
import subprocess
import sys
from pathlib import Path
from xml.etree import ElementTree

import pytest
from PIL import Image

from saccade.config import load_config
from saccade.data import load_splits
from saccade.plotting import PIXELS_PER_INCH
from tests.cli.conftest import Saccade
from tests.waiting import PATIENCE_S


def lines(out: str) -> list[dict[str, object]]:
    return [json.loads(line) for line in out.splitlines()]


def test_each_image_gets_a_figure_and_its_numbers(
    saccade: Saccade, digits_run: Path, tmp_path: Path
) -> None:
    words = ("explain", digits_run, "test:3-4", "--out", tmp_path, "--device", "cpu", "--json")
    code, out, err = saccade(*words)
    assert (code, err) == (0, "")
    assert sorted(path.name for path in tmp_path.iterdir()) == [
        "test-3.png",
        "test-3.svg",
        "test-4.png",
        "test-4.svg",
    ]
    width, height = Image.open(tmp_path / "test-3.png").size
    drawing = ElementTree.parse(tmp_path / "test-3.svg").getroot()
    assert float(drawing.attrib["width"][:-2]) == pytest.approx(72 * width / PIXELS_PER_INCH, abs=1)
    assert height > 3 * PIXELS_PER_INCH
    first, second = lines(out)
    assert (first["image"], second["image"]) == ("test:3", "test:4")
    assert [layer["layer"] for layer in first["layers"]] == [0]
    for measured in (first["summary"], *first["layers"], *first["layers"][0]["heads"]):
        assert 0 < measured["relative_entropy"] <= 1
        assert 0 < measured["class_token"] < 1


def test_an_image_of_the_data_equals_a_file_with_its_pixels(
    saccade: Saccade, digits_run: Path, tmp_path: Path
) -> None:
    splits = load_splits(load_config(digits_run / "config.yaml").data)
    Image.fromarray(splits.test.images[5, 0].numpy()).save(tmp_path / "five.png")
    figures = tmp_path / "figures"
    _, out, _ = saccade(
        "explain", digits_run, "test:5", tmp_path / "five.png", "--out", figures, "--json"
    )
    place, file = lines(out)
    assert place["truth"] == splits.info.class_names[int(splits.test.labels[5])]
    assert file["truth"] is None
    _, predicted, _ = saccade("predict", digits_run, tmp_path / "five.png", "--top", 5, "--json")
    expected = [pair["probability"] for pair in lines(predicted)[0]["classes"]]
    for explained in (place, file):
        found = [pair["probability"] for pair in explained["classes"]]
        assert found == pytest.approx(expected, abs=1e-5)


def test_input_images_are_not_overwritten(
    saccade: Saccade, digits_run: Path, tmp_path: Path
) -> None:
    images = [tmp_path / "one" / "photo.png", tmp_path / "photo.png"]
    for image in images:
        image.parent.mkdir(exist_ok=True)
        Image.new("L", (8, 8), 200).save(image)
    before = [image.read_bytes() for image in images]
    code, _, _ = saccade("explain", digits_run, *images, "--out", tmp_path)
    assert code == 0
    assert [image.read_bytes() for image in images] == before
    assert sorted(path.name for path in tmp_path.glob("photo-*.png")) == [
        "photo-2.png",
        "photo-3.png",
    ]


@pytest.mark.parametrize("method", ["attention", "gradient"])
def test_compare_puts_two_runs_side_by_side(
    saccade: Saccade, digits_run: Path, other_run: Path, tmp_path: Path, method: str
) -> None:
    words = ("--out", tmp_path, "--method", method, "--layers", "-1", "--heads", "0-1", "--json")
    code, out, err = saccade("explain", digits_run, "test:0", "--compare", other_run, *words)
    assert code == 0, err
    first, second = lines(out)
    assert (first["attention"], second["attention"]) == ("softmax", "performer")
    assert [layer["layer"] for layer in second["layers"]] == [2]
    assert [head["head"] for head in second["layers"][0]["heads"]] == [0, 1]
    assert first["figures"] == second["figures"]
    assert saccade("explain", digits_run, "test:0", "--out", tmp_path / "one")[0] == 0
    both, one = (Image.open(path / "test-0.png").width for path in (tmp_path, tmp_path / "one"))
    assert both > 1.8 * one


def test_user_errors_give_one_line_and_an_exit_code(
    saccade: Saccade, digits_run: Path, other_run: Path, shapes_run: Path, tmp_path: Path
) -> None:
    out = ("--out", tmp_path / "out")
    cases = [
        (("explain", tmp_path, "test:0", *out), 2, "is not a run folder"),
        (("explain", digits_run, *out), 2, "nothing to explain"),
        (("explain", digits_run, "test:0"), 2, "--out DIR is needed"),
        (("explain", digits_run, "--data"), 2, "--out DIR is needed"),
        (("explain", digits_run, "--data", "--compare", other_run, *out), 2, "--compare needs"),
        (("explain", digits_run, tmp_path / "no.png", *out), 3, "no such file"),
        (("explain", digits_run, "test:61", *out), 3, "has images 0 to 60"),
        (("explain", digits_run, "test:4-2", *out), 3, "range in ascending order, got 'test:4-2'"),
        (("explain", digits_run, "test:-1", *out), 3, "such as train:0, val:0 or test:0-4, got"),
        (("explain", digits_run, "tset:1", *out), 3, "such as train:0, val:0 or test:0-4, got"),
        (("explain", digits_run, "http://x/y.png", *out), 2, "URLs are not fetched"),
        (
            ("explain", digits_run, "test:0", "--layers", "1", *out),
            2,
            "layers must be one or more of the model's layers 0 to 0",
        ),
        (("explain", digits_run, "test:0", "--heads", "0-2", *out), 2, "heads 0 to 1"),
        (("explain", digits_run, "test:0", "--heads", "a", *out), 2, "--heads must be numbers"),
        (
            ("explain", digits_run, "test:0", "--heads", "0,5-2", *out),
            2,
            "ascending ranges, got '5-2'",
        ),
        (("explain", digits_run, "test:0", "--method", "rolout", *out), 2, "mean 'rollout'"),
        (("explain", digits_run, "test:0", "--weights", "worst", *out), 2, "weights"),
        (("explain", digits_run, "test:0", "--compare", shapes_run, *out), 2, "give image files"),
        (("explain", digits_run, "--foreground"), 2, "data.name must be 'shapes'"),
        (("explain", digits_run, "test:0", "--out", "/proc/no"), 2, "--out /proc/no"),
    ]
    for words, code, message in cases:
        got, printed, err = saccade(*words)
        assert (got, printed) == (code, ""), (words, err)
        assert message in err
        assert len(err.splitlines()) == 1
    assert not (tmp_path / "out").exists()


def test_unreadable_images_are_reported_after_the_others(
    saccade: Saccade, digits_run: Path, tmp_path: Path
) -> None:
    (tmp_path / "in").mkdir()
    Image.new("RGB", (20, 9), "red").save(tmp_path / "in" / "b.png")
    (tmp_path / "in" / "a.png").write_bytes(b"no image")
    images = (tmp_path / "missing.png", "test:61", tmp_path / "in")
    code, out, err = saccade("explain", digits_run, *images, "--out", tmp_path / "out")
    assert code == 3
    missing, absent, corrupt = err.splitlines()
    assert "missing.png': no such file" in missing
    assert "test set of the run's data, which has images 0 to 60, got 'test:61'" in absent
    assert "a.png" in corrupt
    assert out.startswith(str(tmp_path / "in" / "b.png"))
    assert sorted(path.name for path in (tmp_path / "out").iterdir()) == ["b.png", "b.svg"]


INTERRUPTED_IN_THE_THIRD = """
import signal
from matplotlib.figure import Figure
from saccade.cli import main

save, left = Figure.savefig, iter(range(4))  # a PNG and an SVG each

def save_or_interrupt(*args, **options):
    if next(left, None) is None:
        signal.raise_signal(signal.SIGINT)
    save(*args, **options)

Figure.savefig = save_or_interrupt
main()
"""


def test_ctrl_c_keeps_the_figures_written_so_far(digits_run: Path, tmp_path: Path) -> None:
    out = tmp_path / "out"
    words = ["explain", str(digits_run), "test:0-60", "--out", str(out), "--device", "cpu"]
    command = [sys.executable, "-c", INTERRUPTED_IN_THE_THIRD, *words]
    done = subprocess.run(command, capture_output=True, text=True, timeout=PATIENCE_S)
    assert done.returncode == 130
    assert "interrupted; the figures written so far are kept" in done.stderr
    assert "Traceback" not in done.stderr
    figures = list(out.glob("test-*.png"))
    assert len(done.stdout.splitlines()) == len(figures) == 2
    for figure in figures:
        Image.open(figure).load()
    assert not list(out.glob(".*"))


def test_progress_goes_to_stderr_and_results_to_stdout(digits_run: Path, tmp_path: Path) -> None:
    terminal, its_end = pty.openpty()
    words = ["explain", str(digits_run), "test:0-1", "--out", str(tmp_path), "--json"]
    process = subprocess.Popen(
        [sys.executable, "-m", "saccade", *words],
        stdout=subprocess.PIPE,
        stderr=its_end,
        text=True,
        env=os.environ | {"TERM": "xterm"},
    )
    os.close(its_end)
    seen = b"".join(iter(lambda: read_terminal(terminal), b""))
    printed, _ = process.communicate(timeout=PATIENCE_S)
    assert process.returncode == 0
    assert [line["image"] for line in lines(printed)] == ["test:0", "test:1"]
    assert b"explaining" in seen
    assert b"test:0" not in seen
    assert seen.rfind(b"\x1b[?25h") > seen.rfind(b"\x1b[?25l") >= 0  # the cursor is back


def read_terminal(terminal: int) -> bytes:
    try:
        return os.read(terminal, 1 << 16)
    except OSError:  # Linux raises this if the other end is closed
        return b""


def test_help_shows_how_to_name_images_of_the_data(saccade: Saccade) -> None:
    code, out, _ = saccade("explain", "--help")
    assert code == 0
    assert "test:17" in out
