"""The folder of a comparison.

study.json      attentions, baseline, seeds and folds; the SHA-256 of base.yaml
base.yaml       configuration shared by all runs
initial/        initial weights shared by all runs of a seed
runs/<attention>/seed-<s>[/fold-<k>]   ordinary run folders
locks/          which process of this machine is training which run
attempts/       when a worker began a run or a search, and how the attempt ended
tuning/<attention>/   search of an attention's own settings, if the comparison tunes them
tuned.json      settings that the searches found; written when all have ended
runs/tuned/<attention>/seed-<s>        runs with these settings, where they differ
measures.json   latency, memory, approximation error; training speed if runs overlapped
results.json    results, rewritten whenever a run ends
"""

from __future__ import annotations

import json
import os
import time
from dataclasses import asdict, replace
from functools import cached_property
from pathlib import Path
from typing import Any, Literal, Self

from saccade.config import Config, differences, dump_config
from saccade.errors import ConfigError, DamagedRunError, writing_error
from saccade.io import (
    is_unchanged,
    make_folder,
    read_json_object,
    read_text,
    remove_leftovers,
    sealed,
    unsealed,
    write_file,
    write_new,
)
from saccade.runs import PREDICTIONS, RunFolder, trained_together
from saccade.study.comparison.fairness import LOCAL
from saccade.study.comparison.plan import Job, Plan
from saccade.study.folder import StudyFolder, sha256_text
from saccade.study.tuning import Settings, TuningFolder, join_search

__all__ = ["ComparisonFolder"]

VERSION = 1
TUNING, TUNED_SETTINGS = "tuning", "tuned.json"
State = Literal["waiting", "failed", "finished"]


class ComparisonFolder(StudyFolder):
    """A comparison on disk."""

    kind = "compare"

    @classmethod
    def open(cls, path: str | Path) -> Self:
        """Open an existing comparison."""
        folder = cls(path)
        if not folder.exists():
            raise ConfigError(f"{str(path)!r} is not a comparison: it has no study.json")
        remove_leftovers(folder.path)
        return folder

    @classmethod
    def start(cls, path: str | Path, plan: Plan, *, resume: bool) -> Self:
        """Create the folder of a plan or, with `resume`, open the folder if it exists."""
        folder = cls(path)
        if not folder.exists():
            folder._check_free(resume=resume)
            try:
                folder._create(plan)
            except OSError as error:
                message = f"--out {str(path)!r}: cannot write there"
                raise writing_error(message, error, ConfigError) from None
        elif not resume:
            raise ConfigError(
                f"--out {str(path)!r} already holds a comparison; add --resume to go on with it, "
                "or choose another folder"
            )
        remove_leftovers(folder.path)
        folder._check_same(plan)
        saved = folder.plan
        if plan.base != saved.base or plan.seeds != saved.seeds:  # the data may have moved
            folder._change(replace(plan, created=saved.created))
        return cls(path)

    @cached_property
    def plan(self) -> Plan:
        """The plan saved in `study.json` and `base.yaml`."""
        path = self.path / "study.json"
        try:
            values = self.read("study.json")
            if values["kind"] != self.kind or values["version"] != VERSION:
                kind = f"{values['kind']}, version {values['version']}"
                raise ConfigError(f"{str(path)!r} is not a comparison of version {VERSION}: {kind}")
            return Plan(
                recipe=values["recipe"],
                base=self.read_base(self._base_hashes(values)),
                attentions=tuple(values["attentions"]),
                baseline=values["baseline"],
                seeds=tuple(values["seeds"]),
                folds=values["folds"],
                created=values["created"],
                trials=values.get("trials"),
                settings=self._settings(),
            )
        except (ValueError, KeyError, TypeError) as error:
            if isinstance(error, ConfigError):
                raise
            raise ConfigError(f"{str(path)!r} cannot be read: {error!r}") from None

    def is_base_held(self) -> bool:
        """True if `study.json` has the hash of `base.yaml`, as in all but old comparisons."""
        return bool(self._base_hashes(read_json_object(self.path / "study.json")))

    @staticmethod
    def _base_hashes(values: dict[str, Any]) -> list[str]:
        return [str(sha256) for sha256 in values.get("base_sha256", [])]

    def _settings(self) -> dict[str, dict[str, Any] | None] | None:
        """The settings in `tuned.json`; None if it is not written yet."""
        if not (self.path / TUNED_SETTINGS).exists():
            return None
        return dict(self.read(TUNED_SETTINGS)["settings"])

    def search(self, attention: str) -> TuningFolder:
        """Folder of the search of an attention."""
        return TuningFolder(self.path / TUNING / attention)

    def lock(self, name: str) -> Path:
        """Lock file that the worker of a run or a search holds."""
        folder = self.path / "locks"
        folder.mkdir(exist_ok=True)
        return folder / name

    def run(self, job: Job) -> RunFolder:
        """Run folder of a job."""
        return RunFolder(self.path / "runs" / job.name)

    def initial(self, seed: int) -> Path:
        """File of the initial weights of a seed."""
        return self.path / "initial" / f"seed-{seed}.safetensors"

    def state(self, job: Job, *, since: float = 0.0) -> State:
        """State of a run. A run that failed before `since` is `waiting`, to be tried again."""
        status = self.run(job).status()
        if status.get("state") == "finished":
            return "finished"
        failed = status.get("state") == "failed" and status["updated"] >= since
        return "failed" if failed else "waiting"

    def finished(self) -> list[Job]:
        """Finished runs whose files are intact."""
        jobs = [job for job in self.plan.jobs() if self.state(job) == "finished"]
        return [job for job in jobs if not self.damage(job)]

    def damage(self, job: Job) -> str:
        """Description of the damage to a finished run; empty if the run is intact."""
        run = self.run(job)
        found = run.damage()
        if not found and not run.predictions():
            found = {PREDICTIONS: f"{PREDICTIONS} is missing"}
        return "; ".join(found.values())

    def reopen_damaged(self) -> None:
        """Mark damaged runs to continue from their last intact checkpoint, if they have one."""
        for job in self.plan.jobs():
            run = self.run(job)
            if self.state(job) != "finished" or not self.damage(job):
                continue
            lacks_predictions = not run.damage()
            if run.is_mendable() or (lacks_predictions and run.newest_intact()[0] is not None):
                run.reopen()

    def summary(self, job: Job) -> dict[str, Any]:
        """Summary of a run; empty if the run is unfinished or damaged."""
        try:
            return self.run(job).summary()
        except DamagedRunError:
            return {}

    def waiting(self, since: float) -> list[Job]:
        """Runs that remain to be trained, including runs that failed before `since`."""
        return [job for job in self.plan.jobs() if self.state(job, since=since) == "waiting"]

    def trained_together(self) -> bool:
        """True if any of its runs, finished or not, trained at the same time."""
        return trained_together(map(self.run, self.plan.jobs()))

    def note_failure(self, job: Job, message: str) -> None:
        """Record a failure that the run could not record itself. Creates the folder if needed."""
        self._write_status(job, "failed", message)

    def note_retry(self, job: Job, message: str) -> None:
        """Record why a failed run will be tried again."""
        self._write_status(job, "interrupted", message)

    def _write_status(self, job: Job, state: str, message: str) -> None:
        run = self.run(job)
        run.path.mkdir(parents=True, exist_ok=True)
        nowhere = {"epoch": 0, "step": 0, "pid": os.getpid()}
        status = {**nowhere, **run.status(), "state": state, "message": message}
        run.write("status.json", {**status, "updated": time.time()})

    def measures(self) -> dict[str, Any]:
        """Measurements of the trained model of each set-up."""
        path = self.path / "measures.json"
        if not path.exists():
            return {}
        try:
            values = read_json_object(path)
            if not is_unchanged(values):
                raise ValueError("it was changed after it was written")
            return {setup: dict(found) for setup, found in unsealed(values).items()}
        except (ValueError, TypeError, AttributeError) as error:
            raise ConfigError(
                f"{str(path)!r} cannot be read ({error}); delete it to measure again"
            ) from None

    def _create(self, plan: Plan) -> None:
        make_folder(self.path)
        base = dump_config(plan.base)
        write_file(self.path / "base.yaml", base)
        for attention, config in plan.searches.items():
            self._start_search(plan, attention, config)
        text = json.dumps(sealed(_study(plan, base)), indent=2) + "\n"
        write_new(self.path / "study.json", text)

    def _change(self, plan: Plan) -> None:
        """Write another plan; at any moment `study.json` has the hash of `base.yaml`."""
        old, new = read_text(self.path / "base.yaml"), dump_config(plan.base)
        self.write("study.json", _study(plan, old, new))
        write_file(self.path / "base.yaml", new)
        self.write("study.json", _study(plan, new))

    def _start_search(self, plan: Plan, attention: str, config: Config) -> None:
        """Create the folder of a search, unless an interrupted start left it."""
        assert plan.trials is not None
        search = self.search(attention)
        if search.exists():
            join_search(search.path, config, trials=plan.trials)
            return
        settings = Settings(plan.recipe, plan.trials, starts_at_base=True)
        TuningFolder.create(search.path, config, settings)

    def _check_free(self, *, resume: bool) -> None:
        """Refuse a folder of other files than an interrupted start leaves."""
        if self.path.exists() and not self.path.is_dir():
            raise ConfigError(f"--out must be a folder, got the file {str(self.path)!r}")
        if not self.path.exists():
            return
        left = {"base.yaml", *([TUNING] if resume else [])}
        strange = [f.name for f in self.path.iterdir() if f.name not in left and f.name[0] != "."]
        if strange:
            raise ConfigError(
                f"--out must be a new folder or a comparison, got {str(self.path)!r}, "
                f"which contains {strange[0]!r}"
            )

    def _check_same(self, plan: Plan) -> None:
        """Refuse a plan that differs from the saved one. Seeds may be added."""
        saved = self.plan
        changes = differences(saved.base, plan.base, ignored=LOCAL)
        for attention, config in plan.searches.items() if saved.trials else ():
            join_search(self.search(attention).path, config)
        for name in ("attentions", "baseline", "seeds", "folds", "trials"):
            was, asked = getattr(saved, name), getattr(plan, name)
            more = name == "seeds" and asked[: len(was)] == was
            if was != asked and not more:
                changes.append(f"{name} ({_words(was)} -> {_words(asked)})")
        if changes:
            raise ConfigError(
                f"--resume: {str(self.path)!r} was started with another {', '.join(changes)}"
            )


def _study(plan: Plan, *bases: str) -> dict[str, Any]:
    """Content of `study.json`; `bases` are the possible contents of `base.yaml`."""
    kept = replace(plan, searches={}, settings=None)
    values = {k: v for k, v in asdict(kept).items() if k not in ("base", "searches", "settings")}
    hashes = [sha256_text(base) for base in bases]
    return {"version": VERSION, "kind": ComparisonFolder.kind, **values, "base_sha256": hashes}


def _words(value: object) -> str:
    return " ".join(map(str, value)) if isinstance(value, tuple) else str(value)
