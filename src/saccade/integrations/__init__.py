"""Attention and weights for the models of other libraries: timm and Hugging Face transformers."""

from typing import TYPE_CHECKING

from saccade.lazy import lazy_names

if TYPE_CHECKING:
    from saccade.integrations.checkpoints import load_checkpoint, read_checkpoint
    from saccade.integrations.layouts import LAYOUTS, detect_layout, from_layout, to_layout
    from saccade.integrations.swap import Swapped, swap_attention
else:
    __getattr__, __dir__ = lazy_names(
        __name__,
        {
            "checkpoints": ("load_checkpoint", "read_checkpoint"),
            "layouts": ("LAYOUTS", "detect_layout", "from_layout", "to_layout"),
            "swap": ("Swapped", "swap_attention"),
        },
    )

__all__ = [
    "LAYOUTS",
    "Swapped",
    "detect_layout",
    "from_layout",
    "load_checkpoint",
    "read_checkpoint",
    "swap_attention",
    "to_layout",
]
