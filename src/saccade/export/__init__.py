"""Export models to ONNX, `torch.export` and the Hub's folder, and run ONNX files without torch."""

from typing import TYPE_CHECKING

from saccade.lazy import lazy_names

if TYPE_CHECKING:
    from saccade.export.classifier import OnnxClassifier
    from saccade.export.onnx_file import export_onnx
    from saccade.export.options import ExportOptions, ExportReport
    from saccade.export.torch_files import export_hub, export_pt2
else:
    __getattr__, __dir__ = lazy_names(
        __name__,
        {
            "classifier": ("OnnxClassifier",),
            "onnx_file": ("export_onnx",),
            "options": ("ExportOptions", "ExportReport"),
            "torch_files": ("export_hub", "export_pt2"),
        },
    )

__all__ = [
    "ExportOptions",
    "ExportReport",
    "OnnxClassifier",
    "export_hub",
    "export_onnx",
    "export_pt2",
]
