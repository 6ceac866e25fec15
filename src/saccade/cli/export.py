"""`saccade export`: a trained model as an ONNX file, a .pt2 file or a folder for the Hub."""

from __future__ import annotations

import json
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Literal, cast

import typer

from saccade.cli.options import AsJson, Weights, numbers
from saccade.cli.sources import open_run_or_model
from saccade.cli.terminal import escape, say
from saccade.errors import UnknownNameError

if TYPE_CHECKING:
    from saccade.export import ExportReport
    from saccade.export.options import Algorithm, Format, Precision

app = typer.Typer(rich_markup_mode=None, add_completion=False)

FORMATS = ("onnx", "pt2", "hub")


@app.command()
def export(
    run: Annotated[Path, typer.Argument(help="A finished run, or a folder of save_pretrained.")],
    out: Annotated[Path, typer.Option(help="The file, or the folder for the Hub, to write.")],
    kind: Annotated[str, typer.Option("--format", help="onnx, pt2 or hub")] = "onnx",
    opset: Annotated[
        int, typer.Option(help="ONNX operators: 20 runs everywhere, 23 suits servers.")
    ] = 20,
    precision: Annotated[str, typer.Option(help="fp32, or fp16 with sums in float32")] = "fp32",
    quantize: Annotated[
        str | None, typer.Option(help="int8: quantize linear layers and measure what it costs.")
    ] = None,
    algorithm: Annotated[
        str, typer.Option(help="Taylor attention: direct, efficient or auto (the faster one)")
    ] = "auto",
    dynamic_size: Annotated[
        bool, typer.Option("--dynamic-size", help="Accept images of other sizes.")
    ] = False,
    with_maps: Annotated[
        str | None, typer.Option(help="Blocks whose attention maps are outputs: 0,-1")
    ] = None,
    weights: Weights = None,
    data_root: Annotated[
        Path | None, typer.Option(help="Folder of the data, if it has moved; for --quantize.")
    ] = None,
    as_json: AsJson = False,
) -> None:
    """Write a trained model for programs without saccade, after checking it against torch."""
    for name, value, known in (("format", kind, FORMATS), ("weights", weights, ("best", "last"))):
        if value is not None and value not in known:
            raise UnknownNameError(name, value, known)
    maps = tuple(numbers("--with-maps", with_maps))
    source = open_run_or_model(run)
    from saccade.export.options import ExportOptions
    from saccade.export.run_export import export_run

    report = export_run(
        source,
        out,
        kind=cast("Format", kind),
        options=ExportOptions(
            opset=opset,
            precision=cast("Precision", precision),
            algorithm=cast("Algorithm", algorithm),
            dynamic_size=dynamic_size,
            maps=maps,
        ),
        quantize=quantize,
        weights=cast(Literal["best", "last"] | None, weights),
        data_root=data_root,
    )
    if as_json:
        typer.echo(json.dumps(_as_json(report)))
    else:
        _print(report)


def _print(report: ExportReport) -> None:
    say(f"{escape(str(report.path))}  {report.num_bytes / 2**20:.2f} MiB")
    say(f"largest difference from torch  {report.max_error:.2g}")
    if report.algorithm:
        say(f"attention  {report.algorithm}")
    for note in report.notes:
        say(note)


def _as_json(report: ExportReport) -> dict[str, object]:
    return {
        "path": str(report.path),
        "num_bytes": report.num_bytes,
        "algorithm": report.algorithm,
        "max_error": report.max_error,
        "notes": list(report.notes),
    }
