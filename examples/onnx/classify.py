"""Classify images with an exported model, without torch and without saccade.

    pip install numpy pillow onnxruntime
    python classify.py model.onnx photo.jpg more.png

`classifier.py` is a copy of `saccade/export/classifier.py`; here it is imported from saccade if no
copy lies beside this file.
"""

import sys

try:
    from classifier import OnnxClassifier
except ImportError:
    from saccade.export.classifier import OnnxClassifier


def main() -> None:
    """Print the three most likely classes of every image."""
    if len(sys.argv) < 3:
        sys.exit("usage: python classify.py MODEL.onnx IMAGE...")
    model = OnnxClassifier(sys.argv[1])
    for name in sys.argv[2:]:
        best = model.classify(name)[:3]
        print(name, *(f"{label} {probability:.3f}" for label, probability in best), sep="  ")


if __name__ == "__main__":
    main()
