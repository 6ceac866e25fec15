"""Convert trained softmax ViTs to another attention: diagnose, swap, distil."""

from typing import TYPE_CHECKING

from saccade.lazy import lazy_names

if TYPE_CHECKING:
    from saccade.convert.convert import Conversion, convert
    from saccade.convert.diagnosis import Diagnosis, LayerDiagnosis, diagnose
    from saccade.convert.source import Source, open_source
else:
    __getattr__, __dir__ = lazy_names(
        __name__,
        {
            "convert": ("Conversion", "convert"),
            "diagnosis": ("Diagnosis", "LayerDiagnosis", "diagnose"),
            "source": ("Source", "open_source"),
        },
    )

__all__ = [
    "Conversion",
    "Diagnosis",
    "LayerDiagnosis",
    "Source",
    "convert",
    "diagnose",
    "open_source",
]
