"""Options that hold several values with commas between."""

from __future__ import annotations

from saccade.errors import ConfigError

__all__ = ["numbers", "words"]


def words(option: str, text: str | None) -> list[str]:
    """The words of a list, none where the option is absent; a list that is empty is refused."""
    if text is None:
        return []
    found = [word.strip() for word in text.split(",") if word.strip()]
    if not found:
        raise ConfigError(f"{option} {text!r} names nothing: expected values with commas between")
    return found


def numbers(option: str, text: str | None) -> list[int]:
    """The integers of a list, by the same rules."""
    try:
        return [int(word) for word in words(option, text)]
    except ConfigError:
        raise
    except ValueError:
        raise ConfigError(f"{option} {text!r}: expected integers with commas between") from None
