"""The packages of the extra `export`."""

from __future__ import annotations

from importlib.util import find_spec

from saccade.errors import ConfigError

__all__ = ["require_packages"]


def require_packages(*names: str) -> None:
    """Raise an error that says how to install the first package that is missing."""
    for name in names:
        if find_spec(name) is None:
            raise ConfigError(
                f"ONNX files need the package {name!r}: pip install 'saccade[export]'"
            )
