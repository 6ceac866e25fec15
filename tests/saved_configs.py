"""Change the `config.json` of a saved model as a person may, who removes its hash."""

import json
from pathlib import Path
from typing import Any

__all__ = ["change_config"]


def change_config(folder: Path, **changes: Any) -> None:
    """Replace values of `config.json`, which is then not held to its hash any more."""
    path = folder / "config.json"
    record = json.loads(path.read_text()) | changes
    del record["sha256"]
    path.write_text(json.dumps(record))
