"""The recipe that a command line names."""

from __future__ import annotations

from pathlib import Path

from saccade.errors import ConfigError

__all__ = ["check_recipe"]


def check_recipe(word: str) -> None:
    """Refuse a file that is not called like YAML, which would be looked for among the recipes."""
    from saccade.config import list_recipes

    path = Path(word)
    if path.is_file() and path.suffix not in {".yaml", ".yml"} and word not in list_recipes():
        raise ConfigError(
            f"{word!r} is a file of another kind: wants a recipe's name or a file that ends in "
            ".yaml or .yml"
        )
