"""A local page and JSON API that show attention maps and predictions for each attention.

`create_app` builds the ASGI application. `saccade serve` runs it.
"""

from typing import TYPE_CHECKING

from saccade.lazy import lazy_names

if TYPE_CHECKING:
    from saccade.serve.app import create_app
    from saccade.serve.guard import Settings
else:
    __getattr__, __dir__ = lazy_names(__name__, {"app": ("create_app",), "guard": ("Settings",)})

__all__ = ["Settings", "create_app"]
