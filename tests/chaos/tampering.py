"""Attacks on what saccade believes: changed results, hostile files, poor places, little memory."""

from __future__ import annotations

import json
import random
import re
import shutil
from itertools import chain, combinations
from pathlib import Path

from tests.chaos.attacks import KNOWN, Harness, Outcome, compared, damage
from tests.chaos.zygote import LACKS, Fault

__all__ = ["TAMPERING"]

BODIES = "tests.chaos.bodies"
USED = f"{BODIES}:use_results"
PARTS = 60
"""Texts in one process."""


def attack_results(harness: Harness, chains: int) -> Outcome:
    """A finished or a killed run with a file of another run, a changed digit or lost bytes.

    It is gone on with, evaluated and reported. Each number is the true one, or it is refused.
    """
    outcome = Outcome()
    with harness.place() as finished, harness.place() as killed, harness.place() as other:
        for work, seed, fault in (
            (finished, 0, Fault()),
            (killed, 0, Fault("kill", 250)),
            (other, 7, Fault("kill", 300)),
        ):
            harness.zygote.run(f"{BODIES}:train_run", work, fault, seed=seed)
        harness.zygote.run(USED, finished)
        true = json.loads(finished.with_name("work.digest").read_text())
        for number in range(chains):
            rng = harness.rng("results", number)
            original = rng.choice((finished, killed))
            with harness.place() as work:
                shutil.rmtree(work)
                shutil.copytree(original, work)
                what = _tamper(work, other, rng)
                end = harness.zygote.run(USED, work)
                outcome.attempts += 1
                digest = work.with_name("work.digest")
                found = json.loads(digest.read_text()) if digest.exists() else {}
                false = {
                    name: v for name, v in found.items() if v not in (true[name], "refused", "told")
                }
                if end.code not in KNOWN or not found:
                    outcome.unusable += 1
                    outcome.note(f"{what} (chain {number}): {end.code} {end.told}")
                elif false:
                    outcome.different += 1
                    outcome.note(f"{what} (chain {number}): believed {false}, true is {true}")
    return outcome


def _tamper(work: Path, other: Path, rng: random.Random) -> str:
    """Change one thing in a run; what was done, in words."""
    files = [p for p in sorted((work / "run").rglob("*")) if p.is_file() and p.name[0] != "."]
    kind = rng.choice(("swap", "digit", "checkpoint", "rename", "delete", "damage"))
    checkpoints = sorted((work / "run/checkpoints").glob("step-*"))
    path = rng.choice(files)
    name = path.relative_to(work)
    if kind == "swap":
        files = [p for p in files if (other / p.relative_to(work)).is_file()]
        name = rng.choice(files).relative_to(work)
        shutil.copy(other / name, work / name)
    elif kind == "digit":
        texts = [p for p in files if p.suffix in {".json", ".yaml", ".jsonl"}]
        name = rng.choice(texts).relative_to(work)
        text = (work / name).read_text()
        digit = rng.choice(list(re.finditer(r"\d", text)))
        new = str((int(digit[0]) + rng.randint(1, 9)) % 10)
        (work / name).write_text(text[: digit.start()] + new + text[digit.end() :])
    elif kind == "checkpoint":
        name = rng.choice(checkpoints).relative_to(work)
        strange = rng.choice(sorted((other / "run/checkpoints").glob("step-*")))
        shutil.rmtree(work / name)
        shutil.copytree(strange, (work / name).with_name(strange.name), dirs_exist_ok=True)
    elif kind == "rename":
        name = rng.choice(checkpoints).relative_to(work)
        (work / name).rename((work / name).with_name("step-99999999"))
    elif kind == "delete":
        path.unlink()
    else:
        kind = damage(path, rng)
    return f"{kind} of {name}"


def attack_texts(harness: Harness, number: int) -> Outcome:
    """Recipes, records, pickles and arrays with changed bytes, and some made to take forever."""
    outcome = Outcome()
    for part in range(number // PARTS):
        with harness.place() as work:
            seed = harness.rng("texts", part).randrange(1 << 30)
            end = harness.zygote.run(f"{BODIES}:read_hostile_files", work, seed=seed, number=PARTS)
            outcome.attempts += PARTS
            if end.code != 0:
                outcome.unusable += 1
                outcome.note(f"seed {seed}: {end.code} {end.told}")
    return outcome


def attack_places(harness: Harness) -> Outcome:
    """A comparison where locks or hard links are missing: the same result, or a refusal."""
    outcome, body = Outcome(), f"{BODIES}:compare_runs"
    with harness.place() as work:
        assert harness.zygote.run(body, work).code == 0
        expected = compared(work)
    for lacks in chain.from_iterable(combinations(LACKS, n) for n in range(1, len(LACKS) + 1)):
        with harness.place() as work:
            end = harness.zygote.run(body, work, Fault(lacks=lacks))
            outcome.attempts += 1
            has_locks = not {"flock", "POSIX locks"} <= set(lacks)
            if end.code != (0 if has_locks else 2) or not (
                has_locks or "no file locks" in end.told
            ):
                outcome.unusable += 1
                outcome.note(f"without {lacks}: {end.code} {end.told}")
            elif has_locks and compared(work) != expected:
                outcome.different += 1
                outcome.note(f"without {lacks}: another result")
    return outcome


def attack_memory(harness: Harness, number: int) -> Outcome:
    """A comparison of models that memory may be too small for: it ends and says so."""
    outcome = Outcome()
    for attempt in range(number):
        with harness.place() as work:
            room = harness.rng("memory", attempt).randint(10, 600)
            end = harness.zygote.run(f"{BODIES}:compare_large_models", work, room_mib=room)
            outcome.attempts += 1
            if end.code not in KNOWN:
                outcome.unusable += 1
                outcome.note(f"{room} MiB: {end.code} {end.told}")
    return outcome


TAMPERING = {
    "changed results": lambda h, n: attack_results(h, 8 * n),
    "hostile files": lambda h, n: attack_texts(h, 600 * n),
    "places without locks or links": lambda h, n: attack_places(h),
    "little memory": lambda h, n: attack_memory(h, n),
}
"""As `ATTACKS`; the number scales how often."""
