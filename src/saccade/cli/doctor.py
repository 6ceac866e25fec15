"""`saccade doctor`: versions and hardware, for a bug report or before a long run."""

from __future__ import annotations

import json
import os
import platform
import shutil
from importlib.util import find_spec
from pathlib import Path
from typing import Any

import typer

from saccade.cli.options import AsJson
from saccade.errors import DataError
from saccade.version import __version__

app = typer.Typer(rich_markup_mode=None, add_completion=False)

EXTRAS = {
    "triton": ("triton",),
    "tune": ("optuna",),
    "timm": ("timm",),
    "transformers": ("transformers",),
    "track": ("tensorboard", "trackio"),
    "wandb": ("wandb",),
    "mlflow": ("mlflow",),
    "hub": ("datasets", "pyarrow"),
    "export": ("onnx", "onnxscript", "onnxruntime"),
    "serve": ("fastapi", "uvicorn"),
    "cluster": ("submitit", "psycopg"),
}
"""Optional extras and the modules that each installs."""


@app.command()
def doctor(
    as_json: AsJson = False,
) -> None:
    """Show versions, hardware, extras and caches."""
    facts = {**_machine(), **_torch(), **_extras(), **_data()}
    if as_json:
        typer.echo(json.dumps(facts))
        return
    for name, value in facts.items():
        typer.echo(f"{name:<20}{value}")


def _machine() -> dict[str, Any]:
    memory = os.sysconf("SC_PAGE_SIZE") * os.sysconf("SC_PHYS_PAGES")
    return {
        "saccade": __version__,
        "python": platform.python_version(),
        "platform": platform.platform(),
        "cpu cores": len(os.sched_getaffinity(0)),
        "memory GiB": round(memory / 2**30, 1),
    }


def _torch() -> dict[str, Any]:
    import torch

    devices = [torch.cuda.get_device_name(i) for i in range(torch.cuda.device_count())]
    return {
        "torch": torch.__version__,
        "cuda": torch.version.cuda or "not in this torch",
        "gpus": ", ".join(devices) or "none",
        "bf16": torch.cuda.is_bf16_supported() if devices else "cpu only",
        "distributed": torch.distributed.is_available(),
    }


def _extras() -> dict[str, Any]:
    missing = {
        extra: [module for module in modules if find_spec(module) is None]
        for extra, modules in EXTRAS.items()
    }
    return {
        f"extra {extra}": f"not installed: {', '.join(absent)}" if absent else "installed"
        for extra, absent in missing.items()
    }


def _data() -> dict[str, Any]:
    from saccade.data.cache import cache_dir, exists_safely

    try:
        root = cache_dir()
    except DataError as error:
        return {"data cache": str(error)}
    existing = next(folder for folder in [root, *root.parents] if exists_safely(folder.exists))
    return {
        "data cache": str(root),
        "cached": _cached(root),
        "disk free GiB": round(shutil.disk_usage(existing).free / 2**30, 1),
    }


def _cached(root: Path) -> str:
    """The data sets in the cache, or why it cannot be read."""
    try:
        names = sorted(path.name for path in root.iterdir() if _is_set(path))
    except FileNotFoundError:
        names = []
    except OSError as error:
        return f"cannot be read: {error.strerror}"
    return ", ".join(names) or "nothing yet"


def _is_set(path: Path) -> bool:
    return path.suffix == ".safetensors" and not path.name.startswith(".")
