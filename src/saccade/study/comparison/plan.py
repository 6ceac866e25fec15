"""Plan of a comparison: attentions, seeds, folds and the shared configuration."""

from __future__ import annotations

from collections.abc import Callable, Iterable, Mapping, Sequence
from dataclasses import dataclass, field, replace
from datetime import UTC, datetime
from typing import Any

from saccade.config import Config, Range, TuneConfig, with_values
from saccade.data.folder_recipe import resolve_recipe
from saccade.errors import ConfigError
from saccade.layers import ATTENTIONS
from saccade.layers.attentions import Around
from saccade.study.comparison.fairness import check_overrides, check_settings
from saccade.study.tuning.space import NO_VALIDATION, value_of

__all__ = ["DEFAULT_SEEDS", "TUNED", "Job", "Plan", "check_tuning", "make_plan", "search_config"]

DEFAULT_SEEDS = 3

TUNED = "tuned"
"""Folder, below that of the runs, of the runs with tuned settings."""


@dataclass(frozen=True)
class Job:
    """One run of a comparison.

    Attributes:
        is_tuned: True if the run has the tuned setting of its attention, False if it has the
            setting that all attentions share.
    """

    attention: str
    seed: int
    fold: int | None = None
    is_tuned: bool = False

    @property
    def setup(self) -> str:
        """Name of the set-up, which the runs of other seeds and folds have in common."""
        return f"{TUNED}/{self.attention}" if self.is_tuned else self.attention

    @property
    def name(self) -> str:
        """Path of the run folder below `runs/`."""
        name = f"{self.setup}/seed-{self.seed}"
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
        trials: Number of trials that tune each attention; None tunes none.
        searches: Configuration of the search of each attention; empty in a plan that was read from
            a folder, whose searches are there.
        settings: Tuned values of each attention, by key. They are empty if the shared setting was
            the best, and None if all trials failed. None before all searches have ended.
    """

    recipe: str
    base: Config
    attentions: tuple[str, ...]
    baseline: str
    seeds: tuple[int, ...]
    folds: int | None = None
    created: str = field(default="", compare=False)
    trials: int | None = None
    searches: Mapping[str, Config] = field(default_factory=dict, compare=False)
    settings: Mapping[str, Mapping[str, Any] | None] | None = field(default=None, compare=False)

    def jobs(self) -> list[Job]:
        """All runs, ordered by seed, then fold, then setting, then attention.

        The runs with tuned settings are known when all searches have ended.
        """
        folds: Iterable[int | None] = [None] if self.folds is None else range(self.folds)
        own = [name for name in self.attentions if (self.settings or {}).get(name)]
        setups = [*((name, False) for name in self.attentions), *((name, True) for name in own)]
        return [
            Job(attention, seed, fold, is_tuned)
            for seed in self.seeds
            for fold in folds
            for attention, is_tuned in setups
        ]

    def tuned_jobs(self) -> list[Job]:
        """The runs of the table of tuned settings; empty before all searches have ended.

        If the shared setting was the best for an attention, its runs with this setting are used.
        """
        settings = self.settings or {}
        known = [job for job in self.jobs() if settings.get(job.attention) is not None]
        return [job for job in known if job.is_tuned == bool(settings[job.attention])]

    def config(self, job: Job) -> Config:
        """Configuration of a run. Each attention gets only the options that it has."""
        config = self._shared_config(job)
        values = (self.settings or {}).get(job.attention) if job.is_tuned else None
        return with_values(config, values) if values else config

    def _shared_config(self, job: Job) -> Config:
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
    trials: int | None = None,
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
        trials: Number of trials on validation images with which each attention is tuned.
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
    asked = resolve_recipe(recipe, overrides, tell)
    check_settings(asked, names)
    if trials is not None:
        check_tuning(asked, trials, folds)
    model = asked.model.model_copy(update={"attention": baseline})
    base = asked.model_copy(update={"model": model, "search": {}, "tune": TuneConfig()})
    if base.model.pretrained is not None:
        from saccade.train.initialize import with_pretrained_model

        base = with_pretrained_model(base)
    now = datetime.now(UTC).isoformat(timespec="seconds")
    plan = Plan(recipe, base, names, baseline, tuple(range(seeds)), folds, now, trials)
    if trials is None:
        return plan
    searches = {
        name: search_config(plan.config(Job(name, plan.seeds[0])), name, asked) for name in names
    }
    return replace(plan, searches=searches)


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


def check_tuning(asked: Config, trials: int, folds: int | None) -> None:
    """Refuse settings with which the attentions cannot be tuned equally on validation images.

    Args:
        asked: The recipe with all overrides.
        trials: Number of trials of each attention.
        folds: Number of folds, None without cross-validation.
    """
    if trials < 1:
        raise ConfigError(f"--tune must be at least 1, the number of trials, got {trials}")
    if folds is not None:
        raise ConfigError(
            "--tune cannot be combined with --folds: validation images of one fold are test images "
            "of another, so that a search would see test images"
        )
    if asked.data.is_without_validation:
        raise ConfigError(NO_VALIDATION)
    if asked.tune.sampler == "grid":
        raise ConfigError(
            "tune.sampler must be tpe or random with --tune, got grid: the grids of two attentions "
            "differ in size"
        )


def search_config(config: Config, attention: str, asked: Config) -> Config:
    """Configuration of the search of an attention.

    The recipe's search section replaces the candidates of keys that the attention declares. Its
    other keys are not searched.
    """
    declared = ATTENTIONS[attention].search
    space = {
        key: _with_own(config, key, asked.search.get(key, candidates))
        for key, candidates in declared.items()
    }
    return config.model_copy(update={"search": space, "tune": asked.tune})


def _with_own(config: Config, key: str, candidates: Range | Around | Sequence[Any]) -> Any:
    """Candidates that include the recipe's own value, with which the search starts."""
    own = value_of(config, key)
    if isinstance(candidates, Around):
        return Range(low=own / candidates.factor, high=own * candidates.factor, log=True)
    if not isinstance(candidates, Range):
        return [own, *(value for value in candidates if value != own)]
    if not candidates.low <= own <= candidates.high:
        raise ConfigError(
            f"search.{key} must include the recipe's own value {own}, with which all searches "
            f"start, got {candidates.low} to {candidates.high}"
        )
    return candidates
