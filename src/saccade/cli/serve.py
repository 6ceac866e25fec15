"""`saccade serve`: a local page and JSON API for trained models."""

from __future__ import annotations

import webbrowser
from pathlib import Path
from typing import Annotated

import typer

from saccade.cli.options import Device
from saccade.cli.sources import is_pretrained_name
from saccade.cli.terminal import tell
from saccade.errors import ConfigError

app = typer.Typer(rich_markup_mode=None, add_completion=False)


@app.command()
def serve(
    paths: Annotated[
        list[Path] | None,
        typer.Argument(
            metavar="[RUN|MODEL|STUDY]...",
            help="Run folders, folders of save_pretrained, comparisons; without one, a digits "
            "model is trained first.",
        ),
    ] = None,
    host: Annotated[
        str, typer.Option(help="Address to listen on; any but loopback needs a token.")
    ] = "127.0.0.1",
    port: Annotated[int, typer.Option(min=0, max=65535, help="0 takes any free port.")] = 8000,
    token: Annotated[
        str | None,
        typer.Option(envvar="SACCADE_SERVE_TOKEN", help="Secret that every request must carry."),
    ] = None,
    allow_host: Annotated[
        list[str] | None, typer.Option(help="A further name of this server in the Host header.")
    ] = None,
    open_page: Annotated[
        bool, typer.Option("--open/--no-open", help="Open the page in a browser.")
    ] = False,
    queue: Annotated[int, typer.Option(min=1, help="Requests that may wait.")] = 256,
    max_batch: Annotated[int, typer.Option(min=1, help="Pictures in one forward pass.")] = 64,
    device: Device = "auto",
) -> None:
    """Serve a page with attention maps and predictions of a model, and a JSON API.

    Ctrl-C or SIGTERM finishes the requests that have begun and ends the server.
    """
    _check_extra()
    from saccade.models.pretrained import pretrained_folder
    from saccade.serve import Settings, create_app
    from saccade.serve.served import open_models
    from saccade.serve.start import address, bind, default_model, render_reports, run

    settings = Settings(
        host, port, token, tuple(allow_host or ()), max_queue=queue, max_batch=max_batch
    )
    listening = bind(host, port)
    chosen = [
        pretrained_folder(str(path)) if is_pretrained_name(path) else path
        for path in paths or [default_model(tell)]
    ]
    models = open_models(chosen, device=device)
    application = create_app(models, settings, reports=render_reports(chosen))
    place = address(settings, listening)
    names = ", ".join(model.id for model in models)
    tell(f"serving {names} on {place} (Ctrl-C ends it)")
    if open_page:
        webbrowser.open(place)
    run(application, settings, [listening])


def _check_extra() -> None:
    """Raise if the packages of the extra are missing."""
    try:
        import fastapi  # noqa: F401
        import uvicorn  # noqa: F401
    except ImportError as error:
        raise ConfigError(
            f"serve needs the package {error.name!r}: pip install 'saccade[serve]'"
        ) from None
