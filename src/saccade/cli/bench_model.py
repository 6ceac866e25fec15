"""`saccade bench model`: models on a grid, or every attention in the model of one target."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from functools import partial
from pathlib import Path
from typing import TYPE_CHECKING, Any

import typer

from saccade.cli.terminal import finish, print_tables, terminal_width
from saccade.errors import ConfigError

if TYPE_CHECKING:
    import torch

    from saccade.bench.model import ModelResult, ModelRow
    from saccade.bench.tables import Table
    from saccade.bench.verdict.findings import VerdictFindings
    from saccade.bench.verdict.subject import Subject
    from saccade.config import Config

__all__ = ["ModelOptions", "measure_grid", "measure_target", "subject_of"]


def subject_of(word: str) -> Subject:
    """The model of a variant, a run folder or a recipe.

    Raises:
        ConfigError: There is none of that name.
        DataError: The data of a recipe, which determine the size of its images, cannot be read.
    """
    from saccade.models import MODELS
    from saccade.runs import RunFolder

    if word in MODELS:
        return _variant(word)
    run = RunFolder(word)
    if run.exists():
        data = run.dataset()
        return _configured(word, run.config(), data["image_size"], data)
    from saccade.data import load_splits
    from saccade.data.folder_recipe import resolve_recipe

    try:
        config = resolve_recipe(word, [])
    except ConfigError as error:
        raise ConfigError(f"TARGET must be a recipe, a run folder or a model: {error}") from None
    info = load_splits(config.data).info
    facts = {"num_classes": info.num_classes, "channels": info.channels}
    return _configured(word, config, info.image_size, facts)


def _variant(name: str) -> Subject:
    from saccade.bench.verdict.subject import Subject
    from saccade.models import MODELS, ViTConfig

    config = MODELS[name].config
    if isinstance(config, ViTConfig):
        return Subject(name, name, config.attention, _side(config.img_size))
    return Subject(name, name, config.attention, config.max_seq_len, is_sequence=True)  # type: ignore[attr-defined]


def _configured(
    name: str, config: Config, image_size: int | Sequence[int], data: dict[str, Any]
) -> Subject:
    """The model of a configuration for the classes and images of its data."""
    from saccade.bench.verdict.subject import Subject
    from saccade.models import MODELS, ViTConfig

    variant = MODELS[config.model.name].config
    overrides = {**config.model.overrides, "num_classes": data["num_classes"]}
    is_image = isinstance(variant, ViTConfig)
    if is_image:
        overrides["in_chans"] = data["channels"]
        size = _side(overrides.pop("img_size", image_size))
    else:
        size = int(overrides.pop("max_seq_len", variant.max_seq_len))  # type: ignore[attr-defined]
    return Subject(
        name,
        config.model.name,
        config.model.attention or variant.attention,
        size,
        dict(config.model.attention_options),
        overrides,
        is_sequence=not is_image,
    )


def _side(size: int | Sequence[int]) -> int:
    sides = [size] if isinstance(size, int) else [*size]
    if len(set(sides)) > 1:
        raise ConfigError(f"the images of TARGET must be square, got {tuple(sides)}")
    return int(sides[0])


@dataclass(frozen=True)
class ModelOptions:
    """The options of `saccade bench model`; None and empty lists mean the default."""

    models: list[str]
    attentions: list[str]
    sizes: list[int]
    patch_sizes: list[int]
    passes: list[str]
    batch: int
    compiled: bool
    autocast: bool
    preset: str | None
    seconds: float | None


def measure_grid(
    options: ModelOptions, device: torch.device, out: Path | None, *, as_json: bool
) -> None:
    """Measure all cases, print the result and write its files; Ctrl-C keeps the rows so far."""
    from saccade.bench.findings import check_folder, write_model
    from saccade.bench.model import ModelResult, check_cases, run_models
    from saccade.bench.plan import ModelPlan, make_cases, model_verdicts, preset_plan
    from saccade.environment import describe_environment, hardware_slug

    if options.preset is not None:
        plan = preset_plan(options.preset)
    else:
        cases = make_cases(
            options.models or ["vit_small_patch16_224"],
            options.attentions or ["softmax", "taylorshift"],
            options.sizes or [224],
            options.patch_sizes or None,
            options.passes,
            batch=options.batch,
            compiled=options.compiled,
            autocast=options.autocast,
        )
        plan = ModelPlan(cases)
    check_cases(plan.cases)
    if out is not None:
        check_folder(out)
    default = 1.0 if device.type == "cuda" else 2.0
    seconds = default if options.seconds is None else options.seconds
    result = ModelResult(describe_environment(device))
    try:
        run_models(result, plan.cases, device, seconds=seconds, report=_say_row)
    except KeyboardInterrupt:
        _say(f"interrupted after {len(result.rows)} rows")
    targets = model_verdicts(result, plan) if plan.targets else None
    write = None
    if out is not None:
        write = partial(write_model, result, targets, out, hardware_slug(device))
    finish(result, partial(_show_models, result, targets), write, as_json=as_json)


def _say_row(row: ModelRow, done: int, total: int) -> None:
    from saccade.bench.tables import number

    case = row.case
    what = f"{case.model} {case.attention} {case.image_size} px {case.direction}"
    found = f"{number(row.img_per_s)} images/s" if row.timing else row.reason
    _say(f"[{done}/{total}] {what}: {found}")


def _show_models(result: ModelResult, targets: Table | None) -> None:
    from saccade.bench.tables import unsteady

    print_tables([result.table(), *([] if targets is None else [targets])])
    timings = {f"{r.case.model}, {r.case.attention}": r.timing for r in result.rows}
    if remark := unsteady(timings):
        typer.echo(remark)


def measure_target(
    target: str, options: ModelOptions, device: torch.device, out: Path | None, *, as_json: bool
) -> None:
    """Measure the model of a target, and show and write what was found."""
    from saccade.bench.findings import check_folder, write_findings
    from saccade.bench.shapes import check_passes
    from saccade.bench.verdict.findings import VerdictFindings
    from saccade.bench.verdict.measure import FACTORS, measure_efficiency, measure_sizes
    from saccade.environment import describe_environment, hardware_slug
    from saccade.layers import ATTENTIONS

    _refuse_replaced(options)
    passes = check_passes(options.passes)
    subject = subject_of(target)
    asked = options.attentions or [*ATTENTIONS, subject.attention]
    names = list(dict.fromkeys(["softmax", *asked]))
    for name in names:
        ATTENTIONS[name]  # raises for an unknown name
    grid = sorted(options.sizes) if options.sizes else subject.sizes(FACTORS)
    facts = [subject.facts(size) for size in grid]  # raises for a size that cannot be built
    if out is not None:
        check_folder(out)
    findings = VerdictFindings(describe_environment(device), subject, facts[0])
    seconds = 2.0 if options.seconds is None else options.seconds
    shared: dict[str, Any] = {"passes": passes, "autocast": options.autocast, "report": _say}
    try:
        measure_sizes(
            subject,
            names,
            grid,
            device,
            findings.points,
            findings.remarks,
            batch=options.batch,
            seconds=seconds,
            **shared,
        )
        for name in dict.fromkeys(("softmax", subject.attention)):
            found = measure_efficiency(subject, name, device, seconds=min(seconds, 1.0), **shared)
            findings.efficiency.append(found)
        findings.complete = True
    except KeyboardInterrupt:
        _say(f"interrupted after {len(findings.points)} times")
    write = None if out is None else partial(write_findings, findings, out, hardware_slug(device))
    finish(findings, partial(_show, findings), write, as_json=as_json)


def _refuse_replaced(options: ModelOptions) -> None:
    """Refuse options that TARGET replaces."""
    for name, is_given in (
        ("--model", options.models),
        ("--patch-size", options.patch_sizes),
        ("--preset", options.preset is not None),
        ("--compile", options.compiled),
    ):
        if is_given:
            raise ConfigError(f"TARGET and {name} cannot be combined: give one of them")


def _say(line: str) -> None:
    typer.echo(line, err=True)


def _show(findings: VerdictFindings) -> None:
    from rich.console import Console

    for table in findings.tables():
        if table.title in ("Verdict", "Remarks"):
            typer.echo(f"{table.title.lower()}:")
            console = Console(width=terminal_width() or 10_000, soft_wrap=False)
            for line in table.lines:
                console.print(line[0], markup=False, highlight=False)
        else:
            print_tables([table])
