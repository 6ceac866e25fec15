"""Folders of real files, read by real worker processes."""

from __future__ import annotations

import logging
import tracemalloc
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch
from PIL import Image

from saccade.config import AugmentConfig, DataConfig
from saccade.data import Loader, Splits, load_splits, make_loader
from saccade.data.folder_files import scan
from saccade.data.images import BadImageError, read_image, to_rgb
from saccade.errors import ConfigError, DataError
from tests.data.pictures import bomb, close_folder, good_folder, picture, save, truncate
from tests.data.test_loader import same, samples

SIZE = 16


def config(root: Path | None, **changes: object) -> DataConfig:
    return DataConfig.model_validate(
        {"name": "folder", "root": root, "image_size": SIZE, "workers": 1} | changes
    )


def loader(splits: Splits, *, augment: AugmentConfig | None = None, **changes: int) -> Loader:
    options = {"batch_size": 3, "workers": 0, "seed": 0} | changes
    return make_loader(
        splits.train, splits.info, augment=augment, device="cpu", shuffle=True, **options
    )


def test_a_folder_of_classes_becomes_three_splits(tmp_path: Path) -> None:
    splits = load_splits(config(good_folder(tmp_path, count=10), val_fraction=0.25))
    assert (len(splits.train), len(splits.val), len(splits.test)) == (12, 4, 4)
    assert splits.info.class_names == ("cat", "dog")
    batch = next(loader(splits).epoch(0))
    assert batch.images.shape == (3, 3, SIZE, SIZE)


@pytest.mark.parametrize(
    ("parts", "sizes"),
    [
        (("train", "val", "test"), (8, 8, 8)),
        (("train", "test"), (5, 3, 8)),
        (("train", "val"), (5, 3, 8)),
    ],
)
def test_named_splits_are_respected(
    tmp_path: Path, parts: tuple[str, ...], sizes: tuple[int, int, int]
) -> None:
    for part in parts:
        good_folder(tmp_path / part, count=4)
    splits = load_splits(config(tmp_path, val_fraction=0.25))
    assert (len(splits.train), len(splits.val), len(splits.test)) == sizes


@pytest.mark.parametrize(
    "augment",
    [
        None,
        AugmentConfig(resized_crop=(0.3, 1.0), flip=True, mixup=0.5, cutmix=1.0),
        AugmentConfig(crop_padding=2, flip=True, policy="trivial", erase=4),
    ],
)
def test_workers_ranks_and_resume_do_not_change_a_sample(
    tmp_path: Path, augment: AugmentConfig | None
) -> None:
    splits = load_splits(config(good_folder(tmp_path, count=8), val_fraction=0.0))
    alone = samples(loader(splits, augment=augment).epoch(2))
    workers = loader(splits, augment=augment, workers=2, batch_size=5)
    assert same(alone, samples(workers.epoch(2)))
    ranks = [loader(splits, augment=augment, world_size=3, batch_size=2, rank=r) for r in range(3)]
    assert same(alone, samples(b for rank in ranks for b in rank.epoch(2)))
    rest = samples(loader(splits, augment=augment).epoch(2, start_batch=2))
    assert same({i: alone[i] for i in rest}, rest)


def with_bad_files(root: Path, count: int) -> Path:
    """A folder whose training files hold some that cannot be read, past the sampled ones."""
    good_folder(root / "train", count=12)
    good_folder(root / "test", count=2)
    for number in range(count):
        truncate(root / "train" / "cat" / f"{3 * number}.png", 0.5)
    return root


@pytest.mark.parametrize("workers", [0, 2])
def test_a_bad_image_is_named(tmp_path: Path, workers: int) -> None:
    splits = load_splits(config(good_folder(tmp_path, count=6), val_fraction=0.0))
    source = splits.train.source
    bad = Path(source.paths[4])  # type: ignore[union-attr]
    bad.write_bytes(b"GIF89a nonsense")
    with pytest.raises(DataError, match=rf"bad image .*{bad.name}") as error:
        list(loader(splits, workers=workers).epoch(0))
    assert "\n" not in str(error.value)
    assert "on_bad_image='skip'" in str(error.value)


@pytest.mark.parametrize("workers", [0, 2])
def test_bad_images_are_skipped_up_to_a_limit(
    tmp_path: Path, workers: int, caplog: pytest.LogCaptureFixture
) -> None:
    root = with_bad_files(tmp_path, 2)
    skipping = config(root, on_bad_image="skip", max_bad_images=2, val_fraction=0.0)
    splits = load_splits(skipping)
    with caplog.at_level(logging.WARNING):
        reading = loader(splits, workers=workers)
        batches = list(reading.epoch(0))
        list(reading.epoch(1))
    assert len(caplog.records) == 2
    assert sum(int(batch.valid.sum()) for batch in batches) == 22
    assert all(len(batch.images) == 3 for batch in batches)
    assert all(torch.isfinite(batch.images).all() for batch in batches)
    capped = load_splits(skipping.model_copy(update={"max_bad_images": 1}))
    with pytest.raises(DataError, match=r"2 bad images, data\.max_bad_images=1"):
        list(loader(capped, workers=workers).epoch(0))


@pytest.mark.parametrize("choice", [{"on_bad_image": "fail"}, {"max_bad_images": 0}])
def test_the_hint_of_a_bad_image_error_works(tmp_path: Path, choice: dict[str, Any]) -> None:
    """Skipping an image needs two settings; the error names both, whichever is missing."""
    root = with_bad_files(tmp_path, 1)
    with pytest.raises(DataError, match=r"bad image .*0\.png") as error:
        load_splits(config(root, **{"on_bad_image": "skip"} | choice))
    assert "data.on_bad_image='skip' and data.max_bad_images to 1 or more" in str(error.value)
    load_splits(config(root, on_bad_image="skip", max_bad_images=1))


def test_a_folder_of_only_bad_images_has_no_hint_to_skip(tmp_path: Path) -> None:
    root = good_folder(tmp_path)
    for path in root.rglob("*.*"):
        truncate(path)
    with pytest.raises(DataError, match=r"of \d+ training images tried none can be read$"):
        load_splits(config(root, on_bad_image="skip"))


def test_loading_names_a_bad_image_of_the_sample(tmp_path: Path) -> None:
    with pytest.raises(DataError, match=r"bad image .*0\.png"):
        load_splits(config(with_bad_files(tmp_path, 1)))


def test_exif_orientation_is_respected(tmp_path: Path) -> None:
    upright = Image.new("RGB", (32, 32), "black")
    upright.paste("white", (0, 0, 32, 16))
    exif = Image.Exif()
    exif[0x0112] = 6  # the camera was turned: show it a quarter clockwise
    path = save(upright.rotate(90), tmp_path / "x.jpg", exif=exif, quality=95)
    pixels = read_image(path, 8)
    assert pixels[:, :3].float().mean() > 250
    assert pixels[:, 5:].float().mean() < 5


def test_every_mode_becomes_rgb(tmp_path: Path) -> None:
    gray = np.linspace(0, 255, 32 * 32).astype(np.uint8).reshape(32, 32)
    half = np.dstack([np.full((32, 32, 3), 200, np.uint8), np.zeros((32, 32), np.uint8)])
    files = {
        "gray": save(Image.fromarray(gray), tmp_path / "gray.png"),
        "deep": save(Image.fromarray(gray.astype(np.uint16) * 257), tmp_path / "deep.png"),
        "palette": save(Image.fromarray(gray).convert("P"), tmp_path / "palette.gif"),
        "float": save(Image.fromarray(gray.astype(np.float32) / 255), tmp_path / "float.tif"),
    }
    wanted = torch.from_numpy(gray).expand(3, 32, 32)
    for path in files.values():
        difference = read_image(path, 32).float() - wanted.float()
        assert difference.abs().max() <= 1, path.name
    clear = read_image(save(Image.fromarray(half), tmp_path / "clear.png"), 32)
    assert (clear == 255).all()
    cmyk = read_image(save(picture(1).convert("CMYK"), tmp_path / "cmyk.jpg"), 8)
    assert cmyk.shape == (3, 8, 8)


@pytest.mark.parametrize(
    ("values", "divisor"),
    [
        (np.arange(65536, dtype=np.uint16), 257),
        (np.arange(-99, 65700, dtype=np.int32), 257),
        (np.linspace(-0.1, 1, 5001, dtype=np.float32), 1 / 255),
        (np.arange(-3, 300, 0.5, dtype=np.float32), 1),
    ],
)
@pytest.mark.parametrize("strip", [1, 2**18])
def test_wide_values_are_rounded_to_8_bits(
    values: np.ndarray, divisor: float, strip: int, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr("saccade.data.images._STRIP_PIXELS", strip)
    rows = values[-(len(values) // 7 * 7) :].reshape(7, -1)
    wanted = (rows.astype(np.float64) / divisor).clip(0, 255).round()
    narrow = np.asarray(to_rgb(Image.fromarray(rows)))
    assert (narrow == wanted[..., None]).all()


def test_wide_images_take_little_more_memory_than_their_pixels() -> None:
    image = Image.new("I;16", (4000, 4000), 999)
    tracemalloc.start()
    try:
        assert to_rgb(image).getpixel((0, 0)) == (4, 4, 4)
        _, peak = tracemalloc.get_traced_memory()
    finally:
        tracemalloc.stop()
    assert peak < 2 * 4000 * 4000


@pytest.mark.parametrize("value", [np.nan, np.inf, -np.inf])
def test_pixels_that_are_not_finite_are_refused(tmp_path: Path, value: float) -> None:
    pixels = np.full((8, 8), 0.5, np.float32)
    pixels[3, 4] = value
    path = save(Image.fromarray(pixels), tmp_path / "x.tif")
    with pytest.raises(BadImageError, match=r"x\.tif: pixels that are NaN or infinite$") as error:
        read_image(path, 8)
    assert error.value.fault == "not_finite"


def test_the_first_frame_of_an_animation_is_used(tmp_path: Path) -> None:
    frames = [Image.new("RGB", (8, 8), color) for color in ("red", "blue")]
    path = save(frames[0], tmp_path / "x.gif", save_all=True, append_images=frames[1:])
    assert read_image(path, 4)[:, 0, 0].tolist() == [255, 0, 0]


def test_a_crop_takes_its_box(tmp_path: Path) -> None:
    image = Image.new("RGB", (40, 20), "black")
    image.paste("white", (20, 0, 40, 20))
    path = save(image, tmp_path / "x.png")
    # The resampling filter reaches one pixel over the edge of the box.
    assert (read_image(path, 8, (0.0, 0.5, 1.0, 0.5))[:, :, 1:] == 255).all()
    assert (read_image(path, 8, (0.0, 0.0, 1.0, 0.5))[:, :, :-1] == 0).all()


@pytest.mark.filterwarnings("ignore::PIL.Image.DecompressionBombWarning")
@pytest.mark.parametrize(
    ("make", "fault"),
    [
        (lambda p: p.write_bytes(b""), "zero_byte"),
        (lambda p: p.write_bytes(b"no picture at all"), "unreadable"),
        (lambda p: truncate(save(picture(3), p)), "truncated"),
        (lambda p: p.write_bytes(save(picture(3), p).read_bytes()[:20]), "truncated"),
        (lambda p: truncate(save(picture(3), p, format="WEBP")), "truncated"),
        (lambda p: truncate(save(picture(3), p, format="WEBP", lossless=True)), "truncated"),
        (lambda p: p.write_bytes(b"RIFF\x10\0\0\0WEBPVP8 " + bytes(20)), "unreadable"),
        (bomb, "too_large"),
        (lambda p: bomb(p, 10_000, 9_000), "too_large"),
        (lambda p: p.mkdir(), "unreadable"),
    ],
)
def test_bad_files_have_distinct_faults(tmp_path: Path, make, fault: str) -> None:
    path = tmp_path / "x.png"
    make(path)
    with pytest.raises(BadImageError, match=r"x\.png") as error:
        read_image(path, 8)
    assert error.value.fault == fault


def test_names_that_would_break_a_line_are_escaped(tmp_path: Path) -> None:
    path = tmp_path / "cut\n\x1b[31m é漢.png"
    path.write_bytes(b"")
    with pytest.raises(BadImageError) as error:
        read_image(path, 8)
    assert str(error.value) == f"bad image {tmp_path}/cut\\n\\x1b[31m é漢.png: the file is empty"


def test_unusable_folders_are_refused(tmp_path: Path) -> None:
    with pytest.raises(ConfigError, match=r"data\.root must be the path of a folder"):
        load_splits(config(None))
    with pytest.raises(DataError, match="no such folder"):
        load_splits(config(tmp_path / "missing"))
    with pytest.raises(DataError, match="no sub-folder"):
        load_splits(config(tmp_path))
    good_folder(tmp_path, ("cat",))
    with pytest.raises(DataError, match="only the class 'cat'"):
        load_splits(config(tmp_path))
    (tmp_path / "dog").mkdir()
    with pytest.raises(DataError, match="class 'dog' is empty"):
        load_splits(config(tmp_path))


@pytest.mark.parametrize("where", [".", "cat", "cat/more"])
def test_an_unreadable_folder_is_named(
    tmp_path: Path, where: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    save(picture(1), good_folder(tmp_path) / "cat" / "more" / "x.png")
    close_folder(tmp_path / where, monkeypatch)
    with pytest.raises(DataError) as error:
        load_splits(config(tmp_path))
    told = f"'{tmp_path / where}': the folder cannot be read: Permission denied"
    assert str(error.value) == told


def test_links_to_folders_are_followed_without_loops(tmp_path: Path) -> None:
    root = good_folder(tmp_path / "images")
    elsewhere = save(picture(300), tmp_path / "elsewhere" / "x.png").parent
    for name in ("first", "second"):
        (root / "cat" / name).symlink_to(elsewhere)
    (root / "cat" / "back").symlink_to(root / "cat")
    (elsewhere / "loop").symlink_to(elsewhere)
    files = scan(root / "cat")
    assert [file.relative_to(root / "cat").as_posix() for file in files] == [
        *("0.png", "1.jpg", "2.webp", "3.png", "4.jpg", "5.webp"),
        "first/x.png",
    ]


@pytest.mark.parametrize(
    "parts",
    [
        ("Test", "Train"),
        ("test", "val"),
        ("Test", "train"),
        ("testing", "train"),
        ("train", "training"),
        ("TEST",),
    ],
)
def test_split_folders_of_no_layout_are_not_used_as_classes(
    tmp_path: Path, parts: tuple[str, ...]
) -> None:
    for part in parts:
        good_folder(tmp_path / part)
    with pytest.raises(DataError, match="look like splits, not classes") as error:
        load_splits(config(tmp_path))
    message = str(error.value)
    assert ", ".join(map(repr, parts)) in message
    assert "accepted: 'train', with or without 'val' and 'test', in lower case" in message
    assert "\n" not in message


def test_a_folder_too_small_for_a_test_split_is_refused(tmp_path: Path) -> None:
    good_folder(tmp_path, count=1)
    with pytest.raises(
        DataError, match="2 images in 2 classes are too few to hold out test images"
    ):
        load_splits(config(tmp_path, val_fraction=0.0))
    good_folder(tmp_path, count=3)
    splits = load_splits(config(tmp_path, val_fraction=0.0))
    assert (len(splits.train), len(splits.test)) == (4, 2)


def test_a_class_may_be_called_test(tmp_path: Path) -> None:
    splits = load_splits(config(good_folder(tmp_path, ("control", "test"))))
    assert splits.info.class_names == ("control", "test")


def test_a_file_in_place_of_a_folder_is_an_error(tmp_path: Path) -> None:
    file = save(picture(1), tmp_path / "x.png")
    with pytest.raises(DataError, match="not a folder"):
        load_splits(config(file))


def test_a_class_without_training_images_is_refused(tmp_path: Path) -> None:
    good_folder(tmp_path / "train")
    good_folder(tmp_path / "test", ("cat", "dog", "eel"))
    with pytest.raises(DataError, match="class 'eel' has no training images"):
        load_splits(config(tmp_path))


@pytest.mark.parametrize("part", ["val", "test"])
@pytest.mark.parametrize("holds", ["nothing", "loose images"])
def test_a_split_without_classes_is_refused(tmp_path: Path, part: str, holds: str) -> None:
    for other in {"train", "val", "test"} - {part}:
        good_folder(tmp_path / other)
    (tmp_path / part).mkdir()
    if holds == "loose images":
        save(picture(1), tmp_path / part / "x.png")
    with pytest.raises(DataError, match=rf"{tmp_path / part} must have .* such as 'cat', got none"):
        load_splits(config(tmp_path))
