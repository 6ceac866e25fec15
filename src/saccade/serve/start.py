"""Start the server: find the models, train one if there is none, listen until a signal."""

from __future__ import annotations

import hashlib
import socket
from collections.abc import Callable, Iterable, Sequence
from pathlib import Path
from typing import TYPE_CHECKING

from saccade.config import Config, dump_config, load_config
from saccade.data.cache import cache_dir
from saccade.errors import ConfigError
from saccade.report import render_report
from saccade.runs import RunFolder

if TYPE_CHECKING:
    from fastapi import FastAPI

    from saccade.serve.guard import Settings

__all__ = ["address", "bind", "default_model", "render_reports", "run"]

RECIPE = "digits-quick"
OVERRIDES = (
    "model.name=vit_micro_patch4_32",
    "model.overrides.patch_size=1",
    "model.overrides.stem=conv",
    "model.overrides.embed_dim=48",
    "model.overrides.depth=3",
    "model.overrides.mlp_hidden_dim=96",
    "train.epochs=12",
)
"""A small ViT on handwritten digits whose 8 x 8 tokens are the pixels."""

Say = Callable[[str], None]


def default_model(say: Say) -> Path:
    """The run folder of a model on handwritten digits, trained now if it is not in the cache."""
    config = _default_config()
    digest = hashlib.sha256(dump_config(config).encode()).hexdigest()[:8]
    path = cache_dir() / "serve" / digest / "digits"
    run = RunFolder(path)
    if run.exists() and run.is_finished():
        say(f"no RUN is given: serving the digits model in {str(path)!r}")
        return path
    say(
        "no RUN is given: training a small model on handwritten digits first, which takes about a "
        f"minute; it is kept in {str(path)!r}"
    )
    from saccade.train import train

    train(config, path, resume=True)
    return path


def _default_config() -> Config:
    return load_config(RECIPE, OVERRIDES)


def render_reports(paths: Iterable[Path]) -> list[tuple[str, str]]:
    """Name and page of the report of each comparison, made now and kept in memory."""
    return [
        (path.absolute().name, render_report(path))
        for path in paths
        if (path / "study.json").is_file()
    ]


def bind(host: str, port: int) -> socket.socket:
    """A socket that listens; raise if the address is taken or is not this machine's."""
    family = socket.AF_INET6 if ":" in host else socket.AF_INET
    own = socket.socket(family, socket.SOCK_STREAM)
    own.setsockopt(socket.SOL_SOCKET, socket.SO_REUSEADDR, 1)
    try:
        own.bind((host, port))
    except (OSError, OverflowError) as error:
        own.close()
        reason = getattr(error, "strerror", None) or error
        raise ConfigError(
            f"host and port must be a free address of this machine, got {host}:{port}: {reason}; "
            "--port 0 takes any free port"
        ) from None
    return own


def address(settings: Settings, listening: socket.socket) -> str:
    """The address to open in a browser."""
    port = listening.getsockname()[1]
    host = "127.0.0.1" if settings.host in {"0.0.0.0", "::"} else settings.host
    host = f"[{host}]" if ":" in host else host
    query = f"/?token={settings.token}" if settings.token else "/"
    return f"http://{host}:{port}{query}"


def run(app: FastAPI, settings: Settings, sockets: Sequence[socket.socket]) -> None:
    """Answer requests until SIGINT or SIGTERM, and then finish those that have begun."""
    import uvicorn

    config = uvicorn.Config(
        app,
        log_level="warning",
        access_log=False,
        server_header=False,
        timeout_keep_alive=15,
        timeout_graceful_shutdown=int(settings.timeout_s) + 1,
    )
    uvicorn.Server(config).run(sockets=list(sockets))
