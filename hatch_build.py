"""The description of the package: the README with links that lead somewhere from a package index.

A package index shows the README alone, so relative links and pictures would be broken there. With
the address of the repository's files in SACCADE_FILES_URL they become absolute, such as
https://host/owner/saccade/raw/main/docs/compare.md. Without it, links become plain text and
pictures are left out.
"""

import os
import re
from pathlib import Path
from typing import Any

from hatchling.metadata.plugin.interface import MetadataHookInterface

RELATIVE = re.compile(r"(!?)\[([^\]]*)\]\((?!https?:|mailto:|#)([^)\s]+)\)")


def description(readme: str, files_url: str | None) -> str:
    """The README for a package index."""

    def replaced(match: re.Match[str]) -> str:
        mark, text, target = match.groups()
        if files_url:
            return f"{mark}[{text}]({files_url.rstrip('/')}/{target})"
        return "" if mark else text

    return RELATIVE.sub(replaced, readme)


class ReadmeHook(MetadataHookInterface):
    """Sets the description when a package is built."""

    def update(self, metadata: dict[str, Any]) -> None:
        """Add `readme` to the metadata."""
        readme = Path(self.root, "README.md").read_text(encoding="utf-8")
        text = description(readme, os.environ.get("SACCADE_FILES_URL"))
        metadata["readme"] = {"content-type": "text/markdown", "text": text}
