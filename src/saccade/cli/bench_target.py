"""`saccade bench model TARGET`: every attention in the model of a recipe, a run or a name."""

from __future__ import annotations

from collections.abc import Sequence
from functools import partial
from pathlib import Path
from typing import TYPE_CHECKING, Any

import typer

from saccade.cli.terminal import finish, print_tables, terminal_width
from saccade.errors import ConfigError

if TYPE_CHECKING:
    import torch

    from saccade.bench.verdict.findings import VerdictFindings
    from saccade.bench.verdict.subject import Subject
    from saccade.config import Config

__all__ = ["measure_target", "refuse_options", "subject_of"]


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


def refuse_options(
    models: str | None, patch_size: str | None, preset: str | None, *, compiled: bool
) -> None:
    """Refuse options that TARGET replaces."""
    given = {"--model": models, "--patch-size": patch_size, "--preset": preset}
    given["--compile"] = "given" if compiled else None
    for name, value in given.items():
        if value is not None:
            raise ConfigError(f"TARGET and {name} cannot be combined: give one of them")


def measure_target(
    target: str,
    device: torch.device,
    *,
    attentions: Sequence[str],
    sizes: Sequence[int],
    passes: Sequence[str],
    batch: int,
    seconds: float,
    autocast: bool,
    out: Path | None,
    as_json: bool,
) -> None:
    """Measure the model of a target, and show and write what was found."""
    from saccade.bench.findings import check_folder, write_findings
    from saccade.bench.shapes import check_passes
    from saccade.bench.verdict.findings import VerdictFindings
    from saccade.bench.verdict.measure import FACTORS, measure_efficiency, measure_sizes
    from saccade.environment import describe_environment, hardware_slug
    from saccade.layers import ATTENTIONS

    directions = check_passes(passes)
    subject = subject_of(target)
    names = list(dict.fromkeys(["softmax", *(attentions or [*ATTENTIONS, subject.attention])]))
    for name in names:
        ATTENTIONS[name]  # raises for an unknown name
    grid = sorted(sizes) if sizes else subject.sizes(FACTORS)
    facts = [subject.facts(size) for size in grid]  # raises for a size that cannot be built
    if out is not None:
        check_folder(out)
    findings = VerdictFindings(describe_environment(device), subject, facts[0])
    options: dict[str, Any] = {"passes": directions, "autocast": autocast, "report": _say}
    try:
        into = (findings.points, findings.remarks)
        measure_sizes(subject, names, grid, device, *into, batch=batch, seconds=seconds, **options)
        for name in dict.fromkeys(("softmax", subject.attention)):
            found = measure_efficiency(subject, name, device, seconds=min(seconds, 1.0), **options)
            findings.efficiency.append(found)
        findings.complete = True
    except KeyboardInterrupt:
        _say(f"interrupted after {len(findings.points)} times")
    write = None if out is None else partial(write_findings, findings, out, hardware_slug(device))
    finish(findings, partial(_show, findings), write, as_json=as_json)


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
