"""What a comparison is of: which attentions, seeds and folds, and the configuration they share."""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from dataclasses import dataclass, field
from datetime import UTC, datetime

from saccade.config import Config, load_config
from saccade.errors import ConfigError
from saccade.layers import ATTENTIONS
from saccade.sections import TuneConfig
from saccade.study.comparison.fairness import check_overrides, check_settings

__all__ = ["DEFAULT_ATTENTIONS", "DEFAULT_SEEDS", "Job", "Plan", "make_plan"]

DEFAULT_ATTENTIONS = (
    *("softmax", "taylor", "taylorshift"),
    *("performer", "performer_relu", "performer_exp"),
    *("performer_gelu", "performer_elu", "performer_ftheta"),
)
DEFAULT_SEEDS = 3


@dataclass(frozen=True)
class Job:
    """One run of a comparison."""

    attention: str
    seed: int
    fold: int | None = None

    @property
    def name(self) -> str:
        """Where it is, below `runs/`."""
        name = f"{self.attention}/seed-{self.seed}"
        return name if self.fold is None else f"{name}/fold-{self.fold}"


@dataclass(frozen=True)
class Plan:
    """All that decides a comparison.

    Attributes:
        recipe: Name or path of the recipe.
        base: The configuration that all runs share; each sets its attention, seed and fold.
        attentions: What is compared, in the order of the table.
        baseline: The one the others are compared with.
        seeds: Of the runs.
        folds: Parts that the training set is cut into; None trains on all and tests on the test
            set.
        created: When, in ISO format.
    """

    recipe: str
    base: Config
    attentions: tuple[str, ...]
    baseline: str
    seeds: tuple[int, ...]
    folds: int | None = None
    created: str = field(default="", compare=False)

    def jobs(self) -> list[Job]:
        """Every run, all attentions of a seed before the next seed."""
        folds: Iterable[int | None] = [None] if self.folds is None else range(self.folds)
        return [
            Job(attention, seed, fold)
            for seed in self.seeds
            for fold in folds
            for attention in self.attentions
        ]

    def config(self, job: Job) -> Config:
        """The configuration of a run. An option goes to the attentions that have it."""
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
    attentions: Sequence[str] = DEFAULT_ATTENTIONS,
    baseline: str | None = None,
    seeds: int = DEFAULT_SEEDS,
    folds: int | None = None,
) -> Plan:
    """Resolve what is to be compared, or say why that would not be a fair comparison.

    Args:
        recipe: A recipe's name or a YAML file.
        overrides: Changes for all runs, as `section.key=value`.
        attentions: At least two names of `list_attentions()`.
        baseline: One of them; softmax by default, or the first where softmax is not among them.
        seeds: How many; they are 0, 1, ...
        folds: Cross-validate in so many parts of the training set and leave the test set alone.

    Raises:
        ConfigError: Something is unknown, missing or unfair.
    """
    names = _check_names(attentions)
    if baseline is None:
        baseline = "softmax" if "softmax" in names else names[0]
    if baseline not in names:
        raise ConfigError(f"baseline={baseline!r} is not among those compared: {', '.join(names)}")
    if seeds < 1:
        raise ConfigError(f"seeds={seeds}: wants at least 1; 3 or more tell luck from difference")
    if folds is not None and folds < 2:
        raise ConfigError(f"folds={folds}: wants at least 2")
    check_overrides(overrides)
    base = load_config(recipe, overrides)
    check_settings(base, names)
    model = base.model.model_copy(update={"attention": baseline})
    base = base.model_copy(update={"model": model, "search": {}, "tune": TuneConfig()})
    now = datetime.now(UTC).isoformat(timespec="seconds")
    return Plan(recipe, base, names, baseline, tuple(range(seeds)), folds, now)


def _check_names(attentions: Sequence[str]) -> tuple[str, ...]:
    for name in attentions:
        ATTENTIONS[name]  # an unknown one raises, with near matches
    if len(set(attentions)) < len(attentions):
        twice = next(name for name in attentions if attentions.count(name) > 1)
        raise ConfigError(f"attention {twice!r} is named twice")
    if len(attentions) < 2:
        named = f"only {attentions[0]!r}" if attentions else "nothing"
        raise ConfigError(f"{named} to compare: name two attentions or more")
    return tuple(attentions)
