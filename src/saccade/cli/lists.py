"""Options with several comma-separated values."""

from __future__ import annotations

from saccade.errors import ConfigError

__all__ = ["numbers", "words"]


def words(option: str, text: str | None) -> list[str]:
    """Split a comma-separated option; an absent option gives no words, an empty one an error."""
    if text is None:
        return []
    found = [word.strip() for word in text.split(",") if word.strip()]
    if not found:
        raise ConfigError(f"{option} must be values separated by commas, got {text!r}")
    return found


def numbers(option: str, text: str | None) -> list[int]:
    """Split a comma-separated option into integers, as `words` does."""
    try:
        return [int(word) for word in words(option, text)]
    except ConfigError:
        raise
    except ValueError:
        raise ConfigError(f"{option} must be integers separated by commas, got {text!r}") from None
