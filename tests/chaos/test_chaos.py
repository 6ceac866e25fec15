"""A short run of the harness of faults, which `make chaos` runs at length."""

from collections.abc import Iterator
from pathlib import Path

import pytest

from tests.chaos.attacks import ATTACKS, Harness, attack_training
from tests.chaos.power import cut_power, sizes
from tests.chaos.tampering import TAMPERING
from tests.chaos.zygote import Fault, Zygote

EVERY = {**ATTACKS, **TAMPERING}
PLACES = "places without locks or links"
SHORT = ("chained kills", "power cuts", "disk errors", "signals", "changed results", PLACES)


@pytest.fixture(scope="module")
def harness(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Harness]:
    folder = tmp_path_factory.mktemp("chaos")
    try:
        zygote = Zygote(folder, ["tests.chaos.bodies", "tests.chaos.peers"])
    except FileNotFoundError:
        pytest.skip("no C compiler here")
    yield Harness(zygote, folder, seed=0)
    zygote.close()


@pytest.mark.parametrize("name", SHORT)
def test_nothing_is_lost(harness: Harness, name: str) -> None:
    outcome = EVERY[name](harness, 1)
    assert outcome.attempts > 1
    assert outcome.failures == 0, outcome.notes


@pytest.mark.slow
@pytest.mark.parametrize("name", EVERY)
def test_nothing_is_lost_in_long_runs(harness: Harness, name: str) -> None:
    outcome = EVERY[name](harness, 3)
    assert outcome.attempts > 1
    assert outcome.failures == 0, outcome.notes


def test_the_harness_sees_what_a_tool_loses(harness: Harness) -> None:
    """A loop that writes over its only save does not outlast a kill in the middle of that."""
    outcome = attack_training(harness, "torch.save", "kill", 6)
    assert outcome.unusable > 0


def test_faults_are_the_same_every_time(harness: Harness) -> None:
    """The files that a killed process leaves are those of the same process killed again."""
    found = []
    for _ in range(2):
        with harness.place() as work:
            end = harness.zygote.run("tests.chaos.peers:train_plain", work, Fault("tear", 20))
            assert end.code == -9
            found.append({p.name: p.read_bytes() for p in work.rglob("*") if p.is_file()})
    assert found[0] == found[1]


def write_and_rename(folder: Path) -> int:
    """Body of a process: one file that is safe, one that is not."""
    import os

    for name, is_synced in (("safe", True), ("lost", False)):
        with (folder / f"{name}.new").open("wb") as file:
            file.write(b"x" * 100)
            if is_synced:
                file.flush()
                os.fsync(file.fileno())
        (folder / f"{name}.new").rename(folder / name)
    return 0


def test_a_power_cut_takes_what_was_not_synced(harness: Harness) -> None:
    ends = set()
    for number in range(20):
        with harness.place() as work:
            journal = work.with_name("journal")
            before = sizes(work)
            fault = Fault(journal=str(journal))
            body = "tests.chaos.test_chaos:write_and_rename"
            assert harness.zygote.run(body, work, fault).code == 0
            cut_power(journal, before, harness.rng("cut", number))
            whole = [p for p in (work / "safe", work / "safe.new") if p.exists()]
            assert [p.read_bytes() for p in whole] == [b"x" * 100]
            lost = work / "lost"
            ends.add(lost.read_bytes() if lost.exists() else None)
    assert {None, b""} < ends or {b"", bytes(100)} < ends
    assert len(ends) >= 3
