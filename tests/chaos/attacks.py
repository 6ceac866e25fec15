"""The attacks. Each draws its faults from a seed, and counts attempts and failures."""

from __future__ import annotations

import os
import random
import shutil
import signal
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from dataclasses import dataclass, field
from pathlib import Path
from uuid import uuid4

from tests.chaos.power import cut_power, sizes
from tests.chaos.zygote import Fault, Zygote

__all__ = ["ATTACKS", "TOOLS", "Harness", "Outcome", "attack_training"]

CHAIN = 6
"""Faults in a row before a run may end."""

TOOLS = {
    "saccade": "tests.chaos.peers:train_saccade",
    "torch.save": "tests.chaos.peers:train_plain",
    "accelerate": "tests.chaos.peers:train_accelerate",
    "HF Trainer": "tests.chaos.peers:train_hf_trainer",
}
KNOWN = {0, 2, 3, 4, 75}
"""Exit codes of a process that succeeded, or said in a line why not."""
SIGNALS = ("SIGHUP", "SIGUSR1", "SIGTERM")
ENDED = {-int(getattr(signal, name)) for name in SIGNALS}
"""Ends of a process that a signal met before it handled signals."""


@dataclass
class Outcome:
    """What came of an attack.

    Attributes:
        attempts: Faults that struck.
        unusable: How often what was left could not be gone on with, or a process ended without
            saying why.
        different: How often the end was another than without a fault.
        notes: The first failures, each with what replays it.
    """

    attempts: int = 0
    unusable: int = 0
    different: int = 0
    notes: list[str] = field(default_factory=list)

    @property
    def failures(self) -> int:
        return self.unusable + self.different

    def note(self, what: str) -> None:
        if len(self.notes) < 5:
            self.notes.append(what[:300])


@dataclass
class Harness:
    """Where attacks run.

    Attributes:
        zygote: Starts processes.
        folder: For what they write.
        seed: All chance comes from it.
    """

    zygote: Zygote
    folder: Path
    seed: int

    def rng(self, *names: object) -> random.Random:
        return random.Random("/".join(map(str, (self.seed, *names))))

    @contextmanager
    def place(self) -> Iterator[Path]:
        """An empty folder for one attempt."""
        path = self.folder / uuid4().hex
        (path / "work").mkdir(parents=True)
        try:
            yield path / "work"
        finally:
            shutil.rmtree(path)

    def count(self, body: str) -> tuple[int, str]:
        """Operations on files of an undisturbed process, and the digest of its end."""
        with self.place() as work:
            end = self.zygote.run(body, work)
            assert end.code == 0, f"{body}: {end}"
            digest = work.with_name("work.digest")
            return end.count, digest.read_text() if digest.exists() else ""


def attack_training(harness: Harness, tool: str, kind: str, chains: int) -> Outcome:
    """Training, hit by up to `CHAIN` faults in a row at operations on files drawn at random.

    Args:
        harness: Where.
        tool: One of `TOOLS`.
        kind: `kill` (before or in the middle of an operation), `power`, `io` (EIO or ENOSPC), or
            `signal` (one that asks to stop).
        chains: How many runs.
    """
    body, outcome = TOOLS[tool], Outcome()
    count, digest = harness.count(body)
    for chain in range(chains):
        rng = harness.rng(tool, kind, chain)
        with harness.place() as work:
            _one_chain(
                harness, body, kind, (count, digest), (work, rng, outcome, f"{tool} {chain}")
            )
    return outcome


def _one_chain(
    harness: Harness,
    body: str,
    kind: str,
    whole: tuple[int, str],
    place: tuple[Path, random.Random, Outcome, str],
) -> None:
    work, rng, outcome, name = place
    for link in range(CHAIN + 1):
        fault = _draw(kind, whole[0], rng, work) if link < CHAIN else Fault()
        before = sizes(work)
        end = harness.zygote.run(body, work, fault)
        if end.code == 0:
            break
        dead = end.code in {-9, *ENDED}
        struck = fault.action != "count" and (dead or end.count >= fault.at)
        if not struck or (not dead and body.endswith("saccade") and end.code not in KNOWN):
            outcome.unusable += 1
            outcome.note(f"chain {name}, link {link}: {end.code} {end.told}")
            return
        outcome.attempts += 1
        if fault.journal:
            cut_power(Path(fault.journal), before, rng)
            for kept in Path(fault.journal).parent.glob("journal*"):
                kept.unlink()
    found = work.with_name("work.digest")
    if not found.exists() or found.read_text() != whole[1]:
        outcome.different += 1
        outcome.note(f"chain {name}: other weights than without faults")
    elif body.endswith("saccade"):
        from tests.chaos.bodies import is_run_finished

        if not is_run_finished(work):
            outcome.different += 1
            outcome.note(f"chain {name}: its files do not agree that it has finished")


def _draw(kind: str, count: int, rng: random.Random, work: Path) -> Fault:
    at = rng.randint(1, max(1, count // 2))
    if kind == "io":
        return Fault(rng.choice(("EIO", "ENOSPC")), at, more=rng.choice((0, 0, 1, 3)))
    if kind == "signal":
        return Fault(rng.choice(SIGNALS), at)
    if kind == "power":
        return Fault("kill", at, journal=str(work.with_name("journal")))
    return Fault(rng.choice(("kill", "tear")), at)


def attack_study(
    harness: Harness, body: str, kind: str, chains: int, end: Callable[[Path], object]
) -> Outcome:
    """A comparison or a search, hit as training is; it ends as one that was left alone."""
    outcome = Outcome()
    with harness.place() as work:
        whole = harness.zygote.run(body, work)
        assert whole.code == 0, whole
        expected = end(work)
    for chain in range(chains):
        rng = harness.rng(body, kind, chain)
        with harness.place() as work:
            for link in range(CHAIN + 1):
                fault = _draw(kind, whole.count, rng, work) if link < CHAIN else Fault()
                found = harness.zygote.run(body, work, fault)
                if found.code == 0:
                    outcome.attempts += found.count >= fault.at
                    break
                if fault.action == "count" or found.code not in {*KNOWN, -9}:
                    outcome.unusable += 1
                    outcome.note(f"{body} chain {chain}, link {link}: {found.code} {found.told}")
                    break
                outcome.attempts += 1
            if found.code == 0 and end(work) != expected:
                outcome.different += 1
                outcome.note(f"{body} chain {chain}: another result: {end(work)} not {expected}")
    return outcome


def compared(folder: Path) -> object:
    """What a comparison found."""
    from saccade.runs import RunFolder
    from tests.study.tiny_comparison import end_states

    results = RunFolder(folder / "study")._read_json("results.json")
    states = sorted(
        (name, hash(frozenset(s.items()))) for name, s in end_states(folder / "study").items()
    )
    return [row["accuracies"] for row in results["rows"]], results["complete"], states


def searched(folder: Path) -> object:
    """What a search found."""
    from saccade.runs import RunFolder

    results = RunFolder(folder / "study")._read_json("results.json")
    return [(row["state"], row["value"], row["params"]) for row in results["trials"]]


def damage(path: Path, rng: random.Random) -> str:
    """Damage one file; what was done, in a word."""
    what = rng.choice(
        ("flip", "cut", "empty", "zeros", "garbage", "delete", "fifo", "folder", "nested")
    )
    content = path.read_bytes()
    if what in ("delete", "fifo", "folder"):
        path.unlink()
        if what != "delete":
            (os.mkfifo if what == "fifo" else os.mkdir)(path)
        return what
    if what == "flip" and content:
        changed = bytearray(content)
        changed[rng.randrange(len(changed))] ^= 1 << rng.randrange(8)
        content = bytes(changed)
    elif what == "cut":
        content = content[: rng.randint(0, max(0, len(content) - 1))]
    else:
        size = len(content)
        kinds = {"zeros": bytes(size), "garbage": rng.randbytes(size), "nested": b"[" * 100_000}
        content = kinds.get(what, b"")
    path.write_bytes(content)
    return what


def attack_folders(harness: Harness, body: str, chains: int) -> Outcome:
    """A folder with a damaged file; what uses it ends in time and says in a line what is wrong."""
    outcome = Outcome()
    with harness.place() as original:
        fault = Fault("kill", 200 if body.endswith("use_run") else 400)
        started = {"use_run": "train_run"}.get(body.partition(":")[2], body.partition(":")[2])
        harness.zygote.run(f"tests.chaos.bodies:{started}", original, fault)
        for chain in range(chains):
            rng = harness.rng("folders", body, chain)
            with harness.place() as work:
                shutil.rmtree(work)
                shutil.copytree(original, work)
                files = sorted(p for p in work.rglob("*") if p.is_file() and p.suffix != ".db")
                path = rng.choice([p for p in files if p.parent != work])
                what = damage(path, rng)
                end = harness.zygote.run(body, work)
                outcome.attempts += 1
                if end.code not in KNOWN:
                    outcome.unusable += 1
                    name = path.relative_to(work)
                    outcome.note(f"{what} of {name} (chain {chain}): {end.code} {end.told}")
    return outcome


def attack_images(harness: Harness, number: int) -> Outcome:
    """Images with changed bytes."""
    outcome, each = Outcome(), 250
    for part in range(number // each):
        with harness.place() as work:
            seed = harness.rng("images", part).randrange(1 << 30)
            end = harness.zygote.run(
                "tests.chaos.bodies:open_mutated_images", work, seed=seed, number=each
            )
            outcome.attempts += each
            if end.code != 0:
                outcome.unusable += 1
                outcome.note(f"seed {seed}: {end.code} {end.told}")
    return outcome


ATTACKS: dict[str, Callable[[Harness, int], Outcome]] = {
    "chained kills": lambda h, n: attack_training(h, "saccade", "kill", n),
    "power cuts": lambda h, n: attack_training(h, "saccade", "power", n),
    "disk errors": lambda h, n: attack_training(h, "saccade", "io", n),
    "signals": lambda h, n: attack_training(h, "saccade", "signal", n),
    "interrupted comparisons": lambda h, n: attack_study(
        h, "tests.chaos.bodies:compare_runs", "kill", n, compared
    ),
    "interrupted searches": lambda h, n: attack_study(
        h, "tests.chaos.bodies:search_settings", "kill", n, searched
    ),
    "disk errors in searches": lambda h, n: attack_study(
        h, "tests.chaos.bodies:search_settings", "io", n, searched
    ),
    "damaged runs": lambda h, n: attack_folders(h, "tests.chaos.bodies:use_run", 4 * n),
    "damaged comparisons": lambda h, n: attack_folders(h, "tests.chaos.bodies:compare_runs", 2 * n),
    "damaged searches": lambda h, n: attack_folders(h, "tests.chaos.bodies:search_settings", 2 * n),
    "mutated images": lambda h, n: attack_images(h, 2500 * n),
}
"""What saccade alone is put through; the number scales how often."""
