"""`saccade bench`: time, memory and error of attentions and of whole models."""

from __future__ import annotations

from functools import partial
from pathlib import Path
from typing import TYPE_CHECKING, Annotated

import typer

from saccade.cli.options import AsJson, Device, Out, Passes, Threads, numbers, words
from saccade.cli.terminal import finish, print_tables

if TYPE_CHECKING:
    import torch

    from saccade.bench.model import ModelResult, ModelRow
    from saccade.bench.plan import ModelPlan
    from saccade.bench.presets import Preset
    from saccade.bench.results import AttentionResult, Row
    from saccade.bench.tables import Table

app = typer.Typer(rich_markup_mode=None, no_args_is_help=True, add_completion=False)

Seconds = Annotated[
    float | None, typer.Option(min=0, max=86400, help="Approximate seconds to time each row.")
]


@app.callback()
def _bench() -> None:
    """Benchmark attentions and models against other libraries."""


@app.command()
def attention(
    mechanisms: Annotated[
        str | None,
        typer.Option("--mechanisms", "-m", help="Names, or name/backend, separated by commas."),
    ] = None,
    n: Annotated[
        str | None, typer.Option("--n", help="Numbers of tokens N, separated by commas.")
    ] = None,
    d: Annotated[
        str | None, typer.Option("--d", help="Head dimensions D, separated by commas.")
    ] = None,
    heads: Annotated[int | None, typer.Option(help="Number of heads H; default 8.")] = None,
    batch: Annotated[int | None, typer.Option(help="Batch size B; default 1.")] = None,
    tokens: Annotated[
        int | None,
        typer.Option(help="Constant B * H * N for every N; replaces --batch."),
    ] = None,
    passes: Passes = None,
    dtype: Annotated[
        str | None, typer.Option(help="Default: bfloat16 on a GPU, float32 on a CPU.")
    ] = None,
    memory: Annotated[bool, typer.Option(help="Measure peak memory.")] = True,
    preset: Annotated[
        str | None, typer.Option(help="Predefined grid with targets: cpu or h200.")
    ] = None,
    calibrate: Annotated[
        bool, typer.Option("--calibrate", help='Measure the costs that algorithm="auto" uses.')
    ] = False,
    show: Annotated[bool, typer.Option("--list", help="List the mechanisms and exit.")] = False,
    device: Device = "auto",
    threads: Threads = None,
    seconds: Seconds = None,
    out: Out = None,
    as_json: AsJson = False,
) -> None:
    """Measure time, memory and error of attention mechanisms on a grid of shapes."""
    from saccade.bench.mechanisms import MECHANISMS
    from saccade.bench.plan import GridOptions, make_plan
    from saccade.environment import resolve_device

    if show:
        for name in MECHANISMS.names():
            typer.echo(f"{name:26} {MECHANISMS[name].summary}")
        return
    plan = make_plan(
        GridOptions(
            words("--mechanisms", mechanisms),
            numbers("--n", n),
            numbers("--d", d),
            heads,
            batch,
            tokens,
            words("--passes", passes),
        ),
        resolve_device(device).type,
        preset=preset,
        calibrate=calibrate,
        dtype=dtype,
        seconds=seconds,
        threads=threads,
        memory=memory,
    )
    _measure_attention(plan, preset, out, calibrate=calibrate, as_json=as_json)


def _measure_attention(
    plan: Preset, preset: str | None, out: Path | None, *, calibrate: bool, as_json: bool
) -> None:
    """Measure all grids, print the result and write its files; Ctrl-C keeps the rows so far."""
    import torch

    from saccade.bench.attention import Runner
    from saccade.bench.calibration import write_costs
    from saccade.bench.clock import Roof, measure_roof
    from saccade.bench.findings import check_folder, write_attention
    from saccade.bench.presets import judge
    from saccade.bench.results import AttentionResult
    from saccade.environment import describe_environment, hardware_slug
    from saccade.ops.taylor.costs import costs_path

    if calibrate:
        costs_path()  # refuses to measure what it could not file
    if plan.threads is not None:
        torch.set_num_threads(plan.threads)
    device = torch.device(plan.device)
    result = AttentionResult(describe_environment(device), Roof(0.0, 0.0), preset=preset)
    runner = Runner(result, plan.dtype, device, plan.seconds, plan.threads, _say_row)
    runner.check(plan.grids)
    if out is not None:
        check_folder(out)
    try:
        result.roof = measure_roof(device, getattr(torch, plan.dtype))
        runner.run(plan.grids)
    except KeyboardInterrupt:
        typer.echo(f"interrupted after {len(result.rows)} rows", err=True)

    def write() -> list[Path]:
        theme = "calibration" if calibrate else "attention"
        verdicts = judge(result, plan.targets)
        files = (
            []
            if out is None
            else write_attention(result, verdicts, out, hardware_slug(device), theme)
        )
        costs = calibrate and result.complete
        return [*files, *([write_costs(result, device, plan.dtype)] if costs else [])]

    finish(result, partial(_show_attention, result, plan), write, as_json=as_json)


def _say_row(row: Row, done: int, total: int) -> None:
    from saccade.bench.tables import number

    found = f"{number(row.median_ms)} ms" if row.timing else f"{row.status}: {row.reason}"
    where = f"{row.shape} {row.direction} {row.mechanism}"
    typer.echo(f"[{done}/{total}] {where}: {found}", err=True)


def _show_attention(result: AttentionResult, plan: Preset) -> None:
    from saccade.bench.presets import judge
    from saccade.bench.tables import summaries, unsteady, verdict_table

    tables = summaries(result)
    if plan.targets:
        tables.append(verdict_table(judge(result, plan.targets)))
    print_tables(tables)
    for remark in dict.fromkeys(f"{r.mechanism}: {r.reason}" for r in result.rows if r.reason):
        typer.echo(remark)
    timings = {f"{r.mechanism}, {r.direction}, {r.shape}": r.timing for r in result.rows}
    if remark := unsteady(timings):
        typer.echo(remark)


@app.command()
def model(
    target: Annotated[
        str | None,
        typer.Argument(
            metavar="[TARGET]",
            help="A recipe, a run folder or a model: measures every attention in it, at its own "
            "and at larger sizes, and its efficiency.",
        ),
    ] = None,
    models: Annotated[
        str | None,
        typer.Option(
            "--model",
            help="Names of models, separated by commas; default: vit_small_patch16_224.",
        ),
    ] = None,
    attentions: Annotated[
        str | None,
        typer.Option(
            "--attention",
            help="Names of attentions, separated by commas; default: softmax,taylorshift, or all "
            "with TARGET.",
        ),
    ] = None,
    image_size: Annotated[
        str | None,
        typer.Option(
            help="Sides of square images in pixels, or lengths of sequences, separated by commas; "
            "default: 224, or 1 to 4 times the own size of TARGET."
        ),
    ] = None,
    patch_size: Annotated[
        str | None,
        typer.Option(help="Patch sizes, separated by commas; default: the model's own."),
    ] = None,
    batch: Annotated[int, typer.Option(help="Batch size.")] = 8,
    passes: Annotated[
        str, typer.Option(help="forward, training (with an AdamW step), or both.")
    ] = "forward,training",
    compiled: Annotated[bool, typer.Option("--compile", help="Use torch.compile.")] = False,
    autocast: Annotated[
        bool | None,
        typer.Option(help="Autocast to bfloat16; default: only on a GPU."),
    ] = None,
    preset: Annotated[
        str | None,
        typer.Option(
            help="Predefined cases with targets, which replace the options above: vit-s-1024."
        ),
    ] = None,
    device: Device = "auto",
    threads: Threads = None,
    seconds: Seconds = None,
    out: Out = None,
    as_json: AsJson = False,
) -> None:
    """Measure the speed and memory of models with any attention, and find the fastest.

    With TARGET, all attentions are timed alternately in that model. The last lines state which is
    faster at its size, and above how many tokens each is faster than softmax.
    """
    import torch

    from saccade.bench.plan import ModelPlan, make_cases, preset_plan
    from saccade.cli.bench_target import measure_target, refuse_options
    from saccade.environment import resolve_device

    chosen = resolve_device(device)
    in_bf16 = chosen.type == "cuda" if autocast is None else autocast
    if threads is not None:
        torch.set_num_threads(threads)
    if target is not None:
        refuse_options(models, patch_size, preset, compiled=compiled)
        measure_target(
            target,
            chosen,
            attentions=words("--attention", attentions),
            sizes=numbers("--image-size", image_size),
            passes=words("--passes", passes),
            batch=batch,
            seconds=2.0 if seconds is None else seconds,
            autocast=in_bf16,
            out=out,
            as_json=as_json,
        )
        return
    if preset is not None:
        plan = preset_plan(preset)
    else:
        cases = make_cases(
            words("--model", "vit_small_patch16_224" if models is None else models),
            words("--attention", "softmax,taylorshift" if attentions is None else attentions),
            numbers("--image-size", "224" if image_size is None else image_size),
            numbers("--patch-size", patch_size) or None,
            words("--passes", passes),
            batch=batch,
            compiled=compiled,
            autocast=in_bf16,
        )
        plan = ModelPlan(cases)
    default = 1.0 if chosen.type == "cuda" else 2.0
    seconds = default if seconds is None else seconds
    _measure_models(plan, chosen, seconds, out, as_json=as_json)


def _measure_models(
    plan: ModelPlan, device: torch.device, seconds: float, out: Path | None, *, as_json: bool
) -> None:
    """Measure all cases, print the result and write its files; Ctrl-C keeps the rows so far."""
    from saccade.bench.findings import check_folder, write_model
    from saccade.bench.model import ModelResult, check_cases, run_models
    from saccade.bench.plan import model_verdicts
    from saccade.environment import describe_environment, hardware_slug

    check_cases(plan.cases)
    if out is not None:
        check_folder(out)
    result = ModelResult(describe_environment(device))
    try:
        run_models(result, plan.cases, device, seconds=seconds, report=_say_model)
    except KeyboardInterrupt:
        typer.echo(f"interrupted after {len(result.rows)} rows", err=True)
    targets = model_verdicts(result, plan) if plan.targets else None
    write = None
    if out is not None:
        write = partial(write_model, result, targets, out, hardware_slug(device))
    finish(result, partial(_show_models, result, targets), write, as_json=as_json)


def _say_model(row: ModelRow, done: int, total: int) -> None:
    from saccade.bench.tables import number

    case = row.case
    what = f"{case.model} {case.attention} {case.image_size} px {case.direction}"
    found = f"{number(row.img_per_s)} images/s" if row.timing else row.reason
    typer.echo(f"[{done}/{total}] {what}: {found}", err=True)


def _show_models(result: ModelResult, targets: Table | None) -> None:
    from saccade.bench.tables import unsteady

    print_tables([result.table(), *([] if targets is None else [targets])])
    timings = {f"{r.case.model}, {r.case.attention}": r.timing for r in result.rows}
    if remark := unsteady(timings):
        typer.echo(remark)
