"""Speeds of runs that trained at the same time are claimed and drawn nowhere."""

from datetime import UTC, datetime
from pathlib import Path

import pytest

from saccade.report.collect import collect
from saccade.report.findings import find
from saccade.report.write import write_report
from saccade.runs import TOGETHER, RunFolder, trained_together
from tests.report.made_runs import ENVIRONMENT, make_run, write_record

HOUR = 3600
TIMED = {"accuracy_throughput", "accuracy_over_time"}


def moment(second: float) -> str:
    return datetime.fromtimestamp(second, UTC).isoformat(timespec="seconds")


def trained(run: RunFolder, start: float, end: float, *resumed: tuple[float, int]) -> RunFolder:
    """The run as if it had trained from second to second, resumed at (second, step)."""
    again = [{**ENVIRONMENT, "time": moment(at), "step": step} for at, step in resumed]
    run.write("environment.json", {**ENVIRONMENT, "time": moment(start), "resumed": again})
    run.write("status.json", {**run.status(), "updated": end})
    return run


def two_studies(folder: Path, *, apart: float) -> Path:
    """Two comparisons below one folder, each of one attention, a run beginning so much later."""
    start = 0.0
    for attention, speed in (("softmax", 1000.0), ("taylor", 2000.0)):
        for seed in range(2):
            place = folder / f"study-{attention}" / "runs" / attention / f"seed-{seed}"
            trained(make_run(place, attention, seed, img_per_s=speed), start, start + HOUR)
            start += apart
        write_record(folder / f"study-{attention}" / "results.json", speed="shared")
    return folder


def drawn(report: Path) -> set[str]:
    return {file.stem for file in (report / "figures").glob("*.svg")}


def test_a_folder_of_studies_claims_no_speed_of_runs_that_shared_the_machine(
    tmp_path: Path,
) -> None:
    report = write_report(two_studies(tmp_path / "runs", apart=HOUR / 2), tmp_path / "report")
    assert "trains fastest" not in report.headline
    assert not TIMED & drawn(report.out)
    assert TOGETHER in (report.out / "report.md").read_text()
    assert not any("img_per_s" in row.best for row in find(collect(tmp_path / "runs")).rows)


def test_runs_one_after_another_are_compared(tmp_path: Path) -> None:
    report = write_report(two_studies(tmp_path / "runs", apart=HOUR), tmp_path / "report")
    assert "taylor trains fastest" in report.headline
    assert drawn(report.out) >= TIMED
    assert TOGETHER not in (report.out / "report.md").read_text()


def test_a_run_that_is_left_out_slowed_others_down_too(tmp_path: Path) -> None:
    folder = two_studies(tmp_path, apart=HOUR)
    run = trained(make_run(folder / "stopped"), HOUR / 4, HOUR / 2)
    run.write("status.json", {**run.status(), "state": "stopped"})
    evidence = collect(folder)
    assert [gap.what for gap in evidence.left_out] == ["stopped"]
    assert not find(evidence).fair_speed


def test_speeds_measured_alone_are_compared_however_the_runs_trained(tmp_path: Path) -> None:
    folder = two_studies(tmp_path, apart=1)
    write_record(folder / "results.json", speed="alone", notes=["timed alone"])
    found = find(collect(folder))
    assert (found.fair_speed, found.fair_times) == (True, False)
    assert found.notes[1:] == ["timed alone"]


@pytest.mark.parametrize(
    ("resumed", "together"),
    [
        pytest.param([(2 * HOUR, 0)], False, id="begun anew after the other"),
        pytest.param([(HOUR / 2, 0)], True, id="begun anew beside the other"),
        pytest.param([(2 * HOUR, 40)], True, id="went on after the other"),
        pytest.param([(10, 0), (2 * HOUR, 40)], True, id="begun anew, then went on"),
    ],
)
def test_what_a_resumed_run_kept_counts(
    tmp_path: Path, resumed: list[tuple[float, int]], together: bool
) -> None:
    """A run that failed at once, and was tried again when the others were done, disturbed none."""
    first = trained(make_run(tmp_path / "a"), 0, 3 * HOUR, *resumed)
    second = trained(make_run(tmp_path / "b"), 60, HOUR)
    assert trained_together([first, second]) is together


@pytest.mark.parametrize("time", ["yesterday", None, 7])
def test_times_that_cannot_be_read_do_not_stop_a_report(tmp_path: Path, time: object) -> None:
    run = trained(make_run(tmp_path / "a"), 0, HOUR)
    run.write("environment.json", {**ENVIRONMENT, "time": time})
    trained(make_run(tmp_path / "b"), 0, HOUR)
    assert not collect(tmp_path).together
