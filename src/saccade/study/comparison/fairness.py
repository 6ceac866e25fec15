"""Fairness checks: unfair settings are refused before training, and unfair runs afterwards.

Only the attention may differ between runs. If the number of epochs, the batch size or the learning
rate depended on how a run goes, each attention would get a different training budget. Such
settings are refused. Finished runs are checked against the shared configuration again before they
are used, because a run folder can be edited or copied from elsewhere.
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping, Sequence
from typing import TYPE_CHECKING, Any

from saccade.config import Config, differences
from saccade.errors import ConfigError, UnknownNameError
from saccade.layers import ATTENTIONS
from saccade.runs import RunFolder

if TYPE_CHECKING:
    from saccade.data import DatasetInfo
    from saccade.study.comparison.plan import Job, Plan

__all__ = [
    "UnfairError",
    "check_models",
    "check_overrides",
    "check_run",
    "check_settings",
    "check_together",
]

DECIDED = {
    "model.attention": "--attention",
    "run.seed": "--seeds",
    "data.folds": "--folds",
    "data.fold": "--folds",
}
"""Keys that the comparison sets itself, with the command-line option that sets them."""

LOCAL = frozenset({"data.root", "data.workers"})
"""Keys that may change on resume: they only control where and how images are read."""


class UnfairError(ConfigError):
    """A setting or run that would give one attention different conditions from the others."""

    def __init__(self, reason: str) -> None:
        super().__init__(f"unfair: {reason}")


def check_overrides(overrides: Iterable[str]) -> None:
    """Refuse overrides for a single attention and of keys that the comparison sets."""
    for override in overrides:
        key, _, value = (part.strip() for part in override.partition("="))
        if key in DECIDED:
            raise ConfigError(f"{override}: use {DECIDED[key]} to set {key} in a comparison")
        owner = key.replace(":", ".").partition(".")[0]
        if owner in ATTENTIONS:
            raise UnfairError(
                f"{override} is for {owner} only; overrides must apply to all attentions"
            )
        if key == "train.batch_size" and value[:1].isalpha():
            raise UnfairError(
                f"{override}: an adaptive batch size would give each attention a different number "
                "of steps; set a fixed number of images"
            )


def check_settings(base: Config, attentions: Sequence[str]) -> None:
    """Refuse settings that would treat the attentions differently."""
    if base.train.early_stopping_patience is not None:
        raise UnfairError(
            f"train.early_stopping_patience={base.train.early_stopping_patience} would give each "
            "attention a different number of epochs; set it to null"
        )
    if base.optim.schedule == "plateau":
        raise UnfairError(
            "optim.schedule='plateau' lowers the learning rate when a run stops improving, so each "
            "attention would get a different schedule; use cosine, one_cycle, step or constant"
        )
    if not base.run.test:
        raise ConfigError(
            "run.test must be true for a comparison, which uses the test images; got false"
        )
    options = {option for name in attentions for option in ATTENTIONS[name].options}
    for option in base.model.attention_options:
        if option not in options:
            raise UnknownNameError("option of the compared attentions", option, options)


def check_models(plan: Plan, info: DatasetInfo) -> None:
    """Build every model on the meta device, so that invalid options are found before training.

    A typical case is attention dropout, which needs an attention that computes its weights.
    """
    import torch

    from saccade.train import build_model

    rates: dict[str, float] = {}
    for job in plan.jobs()[: len(plan.attentions)]:
        try:
            with torch.device("meta"):
                network = build_model(plan.config(job), info)
        except UnknownNameError:
            raise
        except ConfigError as error:
            if "no weights to drop" not in str(error):
                raise ConfigError(f"{job.attention}: {error}") from None
            raise _one_sided_dropout(job.attention) from None
        rates[job.attention] = network.config.attn_drop_rate  # type: ignore[union-attr, assignment]
        del network
    if any(rates.values()) and 0 in rates.values():
        raise _one_sided_dropout(next(name for name, rate in rates.items() if rate == 0))


def _one_sided_dropout(attention: str) -> UnfairError:
    return UnfairError(
        "attention dropout would apply to only some of the attentions: "
        f"{attention} has no weights to drop; set model.overrides.attn_drop_rate=0"
    )


def check_run(run: RunFolder, plan: Plan, job: Job) -> None:
    """Refuse a run that was not trained as planned."""
    if changes := differences(plan.config(job), run.config(), ignored=LOCAL):
        raise UnfairError(
            f"{job.name} was not run with the comparison's configuration: {', '.join(changes)}; "
            f"delete {str(run.path)!r} to train it again"
        )
    if summary := run.summary():
        _check_summary(run, summary, plan, job)


def check_together(summaries: Mapping[Job, Mapping[str, Any]]) -> None:
    """Refuse runs of one seed and fold that differ in their number of steps or test images."""
    first: dict[tuple[int, int | None], Job] = {}
    for job, summary in summaries.items():
        other = first.setdefault((job.seed, job.fold), job)
        for key in ("steps", "test_count"):
            if summary[key] != summaries[other][key]:
                raise UnfairError(
                    f"{job.name} has {key}={summary[key]}, {other.name} has "
                    f"{key}={summaries[other][key]}: the training budgets differ"
                )


def _check_summary(run: RunFolder, summary: Mapping[str, Any], plan: Plan, job: Job) -> None:
    """Refuse a finished run whose summary does not match the plan."""
    expected = {"epochs": plan.base.train.epochs, "attention": job.attention, "seed": job.seed}
    found = {key: summary.get(key) for key in expected}
    rows = len(run.metrics("epoch"))
    if found != expected or rows != expected["epochs"]:
        raise UnfairError(
            f"{job.name} must have {expected}, got {found} and {rows} rows of metrics; delete "
            f"{str(run.path)!r} to train it again"
        )
