"""Plan of a comparison: attentions, seeds, folds and the shared configuration."""

from __future__ import annotations

from collections.abc import Callable, Iterable, Sequence
from dataclasses import dataclass, field
from datetime import UTC, datetime

from saccade.config import Config, TuneConfig
from saccade.data.folder_recipe import resolve_recipe
from saccade.errors import ConfigError
from saccade.layers import ATTENTIONS
from saccade.study.comparison.fairness import check_overrides, check_settings

__all__ = ["DEFAULT_SEEDS", "Job", "Plan", "make_plan"]

DEFAULT_SEEDS = 3


@dataclass(frozen=True)
class Job:
    """One run of a comparison."""

    attention: str
    seed: int
    fold: int | None = None

    @property
    def name(self) -> str:
        """Path of the run folder below `runs/`."""
        name = f"{self.attention}/seed-{self.seed}"
        return name if self.fold is None else f"{name}/fold-{self.fold}"

    @property
    def short_name(self) -> str:
        """Name of the run's lock and attempts."""
        return self.name.replace("/", "-")


@dataclass(frozen=True)
class Plan:
    """Everything that defines a comparison.

    Attributes:
        recipe: Name or path of the recipe.
        base: Configuration shared by all runs, except for attention, seed and fold.
        attentions: Attentions to compare, in the order of the table.
        baseline: Attention that the others are compared with.
        seeds: Seeds of the runs.
        folds: Number of cross-validation folds; None trains on the whole training set and tests on
            the test set.
        created: Creation time in ISO format.
    """

    recipe: str
    base: Config
    attentions: tuple[str, ...]
    baseline: str
    seeds: tuple[int, ...]
    folds: int | None = None
    created: str = field(default="", compare=False)

    def jobs(self) -> list[Job]:
        """All runs, ordered by seed, then fold, then attention."""
        folds: Iterable[int | None] = [None] if self.folds is None else range(self.folds)
        return [
            Job(attention, seed, fold)
            for seed in self.seeds
            for fold in folds
            for attention in self.attentions
        ]

    def config(self, job: Job) -> Config:
        """Configuration of a run. Each attention gets only the options that it has."""
        base = self.base
        known = ATTENTIONS[job.attention].options
        options = {k: v for k, v in base.model.attention_options.items() if k in known}
        model = {"attention": job.attention, "attention_options": options}
        return base.model_copy(
            update={
                "model": base.model.model_copy(update=model),
                "run": base.run.model_copy(update={"seed": job.seed}),
                "data": base.data.model_copy(update={"folds": self.folds, "fold": job.fold}),
            }
        )


def make_plan(
    recipe: str,
    overrides: Sequence[str] = (),
    *,
    attentions: Sequence[str] | None = None,
    baseline: str | None = None,
    seeds: int = DEFAULT_SEEDS,
    folds: int | None = None,
    tell: Callable[[str], None] = lambda line: None,
) -> Plan:
    """Create the plan of a comparison, and check that it is fair.

    Args:
        recipe: Name of a recipe, a YAML file or a folder of images.
        overrides: Changes for all runs, as `section.key=value`.
        attentions: At least two names of `list_attentions()`; by default all, in that order.
        baseline: One of `attentions`; by default softmax, or the first if softmax is not included.
        seeds: Number of seeds; the seeds are 0, 1, ...
        folds: Number of folds for cross-validation on the training set, without the test set.
        tell: Called with lines that describe the settings chosen for a folder of images.

    Raises:
        ConfigError: An argument is unknown, missing or unfair.
    """
    names = _check_names(tuple(ATTENTIONS) if attentions is None else attentions)
    if baseline is None:
        baseline = "softmax" if "softmax" in names else names[0]
    if baseline not in names:
        raise ConfigError(f"baseline must be one of {', '.join(names)}, got {baseline!r}")
    if seeds < 1:
        raise ConfigError(
            f"seeds must be at least 1, got {seeds}; use 3 or more to estimate seed noise"
        )
    if folds is not None and folds < 2:
        raise ConfigError(f"folds must be at least 2, got {folds}")
    check_overrides(overrides)
    base = resolve_recipe(recipe, overrides, tell)
    check_settings(base, names)
    model = base.model.model_copy(update={"attention": baseline})
    base = base.model_copy(update={"model": model, "search": {}, "tune": TuneConfig()})
    now = datetime.now(UTC).isoformat(timespec="seconds")
    return Plan(recipe, base, names, baseline, tuple(range(seeds)), folds, now)


def _check_names(attentions: Sequence[str]) -> tuple[str, ...]:
    for name in attentions:
        ATTENTIONS[name]  # raises for an unknown name, with suggestions
    if len(set(attentions)) < len(attentions):
        twice = next(name for name in attentions if attentions.count(name) > 1)
        raise ConfigError(f"attention {twice!r} is named twice")
    if len(attentions) < 2:
        named = f"only {attentions[0]!r}" if attentions else "nothing"
        raise ConfigError(f"{named} to compare: name two attentions or more")
    return tuple(attentions)
