"""The tool, as its own tests run it."""

from tests.cli.conftest import saccade

__all__ = ["saccade"]
