"""Write parquet files in the hub's format with the datasets package."""

from __future__ import annotations

import io
from collections.abc import Sequence
from itertools import pairwise
from pathlib import Path

import numpy as np
from PIL import Image
from sklearn.datasets import load_digits

NAMES = [str(digit) for digit in range(10)]


def png(pixels: np.ndarray) -> bytes:
    """Gray pixels as a PNG file."""
    file = io.BytesIO()
    Image.fromarray(pixels).save(file, "PNG")
    return file.getvalue()


def digit_images(start: int, stop: int) -> tuple[list[bytes], list[int]]:
    """Some of scikit-learn's digits as PNG files, and their labels."""
    digits = load_digits()
    pixels = (digits.images[start:stop] * 15.9375).astype(np.uint8)
    return [png(image) for image in pixels], digits.target[start:stop].tolist()


def write_shards(
    root: Path, part: str, images: Sequence[bytes], labels: Sequence[int], *, files: int, group: int
) -> list[Path]:
    """Write images and labels to `files` parquet files with row groups of `group` rows."""
    from datasets import ClassLabel, Dataset, Features
    from datasets import Image as ImageFeature

    features = Features({"image": ImageFeature(), "label": ClassLabel(names=NAMES)})
    root.mkdir(parents=True, exist_ok=True)
    cuts = [len(images) * number // files for number in range(files + 1)]
    paths = []
    for number, (start, stop) in enumerate(pairwise(cuts)):
        cells = [{"bytes": content, "path": None} for content in images[start:stop]]
        rows = {"image": cells, "label": list(labels[start:stop])}
        paths.append(root / f"{part}-{number:05d}-of-{files:05d}.parquet")
        Dataset.from_dict(rows, features).to_parquet(paths[-1], batch_size=group)
    return paths


def digits_on_the_hub(root: Path, count: int = 400, group: int = 20) -> Path:
    """A set of four training files and one test file."""
    write_shards(root, "train", *digit_images(0, count), files=4, group=group)
    write_shards(root, "test", *digit_images(count, count + 100), files=1, group=group)
    return root
