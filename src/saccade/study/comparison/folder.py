"""The folder of a comparison, which is all that its workers share.

study.json      what is compared: attentions, baseline, seeds, folds
base.yaml       the configuration that all runs share
initial/        the weights that all runs of a seed start from
runs/<attention>/seed-<s>[/fold-<k>]   ordinary run folders
claims/         which worker has which run
measures.json   latency, memory, approximation error and, of runs that trained together, speed
results.json    the table, rewritten as each run ends
"""

from __future__ import annotations

import json
import time
from dataclasses import asdict, replace
from functools import cached_property
from pathlib import Path
from typing import Any, Literal, Self
from uuid import uuid4

from saccade.config import differences, dump_config, load_config
from saccade.errors import ConfigError, writing_error
from saccade.overlap import trained_together
from saccade.runs import RunFolder, write_json, write_text
from saccade.study.claims import Claims
from saccade.study.comparison.fairness import LOCAL
from saccade.study.comparison.plan import Job, Plan

__all__ = ["ComparisonFolder"]

VERSION = 1
State = Literal["waiting", "failed", "finished"]


class ComparisonFolder:
    """A comparison on disk.

    Args:
        path: The folder.
    """

    def __init__(self, path: str | Path) -> None:
        self.path = Path(path)

    @classmethod
    def open(cls, path: str | Path) -> Self:
        """Open an existing comparison."""
        folder = cls(path)
        if not folder.exists():
            raise ConfigError(f"{str(path)!r} is not a comparison: it has no study.json")
        return folder

    @classmethod
    def start(cls, path: str | Path, plan: Plan, *, resume: bool) -> Self:
        """Make the folder of a plan; with `resume`, go on with it where it is there already.

        Several machines may do so at once: whoever is first makes it, the others join.
        """
        folder = cls(path)
        if not folder.exists():
            folder._check_free()
            try:
                folder._create(plan)
            except OSError as error:
                told = f"--out {str(path)!r}: cannot write there"
                raise writing_error(told, error, ConfigError) from None
        elif not resume:
            raise ConfigError(
                f"--out {str(path)!r}: a comparison is there already; add --resume to go on with "
                "it, or choose another folder"
            )
        folder._check_same(plan)
        if plan.base != folder.plan.base:  # the data is found elsewhere now
            folder._write_base(plan)
        if plan.seeds != folder.plan.seeds:
            folder.write("study.json", _study(replace(plan, created=folder.plan.created)))
        return cls(path)

    def exists(self) -> bool:
        """Whether a comparison was started here."""
        return (self.path / "study.json").is_file()

    @cached_property
    def plan(self) -> Plan:
        """What is compared."""
        path = self.path / "study.json"
        try:
            values = json.loads(path.read_text(encoding="utf-8"))
            if values["kind"] != "compare" or values["version"] != VERSION:
                kind = f"{values['kind']}, version {values['version']}"
                raise ConfigError(f"{str(path)!r} is of another kind: {kind}")
            return Plan(
                recipe=values["recipe"],
                base=load_config(self.path / "base.yaml"),
                attentions=tuple(values["attentions"]),
                baseline=values["baseline"],
                seeds=tuple(values["seeds"]),
                folds=values["folds"],
                created=values["created"],
            )
        except (ValueError, KeyError, TypeError) as error:
            if isinstance(error, ConfigError):
                raise
            raise ConfigError(f"{str(path)!r} cannot be read: {error!r}") from None

    @cached_property
    def claims(self) -> Claims:
        """Who does what."""
        return Claims(self.path / "claims")

    def run(self, job: Job) -> RunFolder:
        """A run's folder."""
        return RunFolder(self.path / "runs" / job.name)

    def initial(self, seed: int) -> Path:
        """The weights that the runs of a seed start from."""
        return self.path / "initial" / f"seed-{seed}.safetensors"

    def state(self, job: Job, *, since: float = 0.0) -> State:
        """How a run stands; one that failed before `since` waits to be tried again."""
        run = self.run(job)
        if (run.path / "summary.json").exists():
            return "finished"
        status = run.status()
        failed = status.get("state") == "failed" and status["updated"] >= since
        return "failed" if failed else "waiting"

    def finished(self) -> list[Job]:
        """The runs that are done."""
        return [job for job in self.plan.jobs() if self.state(job) == "finished"]

    def waiting(self, since: float) -> list[Job]:
        """The runs that are still to be done; a failure before `since` does not count."""
        return [job for job in self.plan.jobs() if self.state(job, since=since) == "waiting"]

    def trained_together(self) -> bool:
        """Whether some of its runs trained at the same time, finished or not."""
        return trained_together(map(self.run, self.plan.jobs()))

    def note_failure(self, job: Job, message: str) -> None:
        """Write down a failure that the run itself could not, where there is a run."""
        if not self.run(job).exists():
            return
        status = {**self.run(job).status(), "state": "failed", "message": message}
        self.run(job).write("status.json", {**status, "updated": time.time()})

    def measures(self) -> dict[str, Any]:
        """What was measured of each attention's trained model."""
        path = self.path / "measures.json"
        if not path.exists():
            return {}
        try:
            values = json.loads(path.read_text(encoding="utf-8"))
            return {attention: dict(found) for attention, found in values.items()}
        except (ValueError, TypeError, AttributeError) as error:
            raise ConfigError(
                f"{str(path)!r} cannot be read ({error}); delete it to have it measured again"
            ) from None

    def write(self, name: str, values: dict[str, Any]) -> None:
        """Replace one of the JSON files, atomically."""
        write_json(self.path / name, values)

    def _create(self, plan: Plan) -> None:
        self.path.mkdir(parents=True, exist_ok=True)
        self._write_base(plan)
        aside = self.path / f".study.json.{uuid4().hex}"
        write_json(aside, _study(plan))
        try:
            (self.path / "study.json").hardlink_to(aside)
        except FileExistsError:
            return  # another machine was first
        finally:
            aside.unlink()

    def _write_base(self, plan: Plan) -> None:
        write_text(self.path / "base.yaml", dump_config(plan.base))

    def _check_free(self) -> None:
        """Refuse what is not ours; a comparison killed before its `study.json` was there is."""
        if self.path.exists() and not self.path.is_dir():
            raise ConfigError(f"--out {str(self.path)!r}: is a file, not a folder")
        if not self.path.exists():
            return
        strange = [
            f.name for f in self.path.iterdir() if f.name != "base.yaml" and f.name[0] != "."
        ]
        if strange:
            raise ConfigError(
                f"--out {str(self.path)!r}: exists and is not a comparison (it has {strange[0]!r})"
            )

    def _check_same(self, plan: Plan) -> None:
        """Refuse to go on with another comparison than was started; seeds may be added."""
        saved = self.plan
        changes = differences(saved.base, plan.base, ignored=LOCAL)
        for name in ("attentions", "baseline", "seeds", "folds"):
            was, asked = getattr(saved, name), getattr(plan, name)
            more = name == "seeds" and asked[: len(was)] == was
            if was != asked and not more:
                changes.append(f"{name} ({_words(was)} -> {_words(asked)})")
        if changes:
            raise ConfigError(
                f"--resume: {str(self.path)!r} was started with another {', '.join(changes)}"
            )


def _study(plan: Plan) -> dict[str, Any]:
    values = {k: v for k, v in asdict(plan).items() if k != "base"}
    return {"version": VERSION, "kind": "compare", **values}


def _words(value: object) -> str:
    return " ".join(map(str, value)) if isinstance(value, tuple) else str(value)
