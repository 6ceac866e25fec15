"""Text files as sequences of bytes: layouts, splits, and files that are no text."""

from pathlib import Path

import pytest
import torch

from saccade.config import DataConfig
from saccade.data import load_splits
from saccade.errors import ConfigError, DataError


def write_texts(root: Path, parts: tuple[str, ...] = ("",), count: int = 20) -> Path:
    for part in parts:
        for label, words in (("bad", "dull and slow"), ("good", "bright and quick")):
            folder = root / part / label
            folder.mkdir(parents=True)
            for number in range(count):
                text = f"{part} {number} was {words} " * (1 + number % 3)
                (folder / f"{number}.txt").write_text(text, encoding="utf-8")
    return root


def config(root: Path, **changes) -> DataConfig:
    return DataConfig(**{"name": "text_folder", "root": root, "workers": 0, **changes})


def test_texts_are_their_bytes(tmp_path: Path) -> None:
    root = write_texts(tmp_path / "texts")
    (root / "bad" / "0.txt").write_text("naïve ✓", encoding="utf-8")
    splits = load_splits(config(root))
    assert splits.info.class_names == ("bad", "good")
    assert (splits.info.kind, splits.info.num_symbols, splits.info.max_length) == (
        "bytes",
        256,
        4000,
    )
    assert sum(map(len, (splits.train, splits.val, splits.test))) == 40
    assert 4 <= len(splits.test) <= 12
    texts = set()
    for part in (splits.train, splits.val, splits.test):
        for row, length in zip(part.images, part.lengths.tolist(), strict=True):
            texts.add(bytes(row[:length].tolist()).decode())
            assert not row[length:].any()
    assert texts == {file.read_text(encoding="utf-8") for file in root.rglob("*.txt")}


def test_split_folders_are_used_as_they_are(tmp_path: Path) -> None:
    root = write_texts(tmp_path / "texts", ("train", "val", "test"), 6)
    splits = load_splits(config(root))
    assert (len(splits.train), len(splits.val), len(splits.test)) == (12, 12, 12)


def test_held_out_texts_depend_on_names_alone(tmp_path: Path) -> None:
    splits = load_splits(config(write_texts(tmp_path / "a")))
    more = write_texts(tmp_path / "b")
    (more / "good" / "zz.txt").write_text("one more text")
    other = load_splits(config(more))
    mine, theirs = ({bytes(row.tolist()) for row in s.test.images} for s in (splits, other))
    assert mine <= theirs


def test_long_texts_are_cut_with_one_line(tmp_path: Path, caplog) -> None:
    root = write_texts(tmp_path / "texts")
    splits = load_splits(config(root, options={"max_length": 30}))
    assert splits.train.images.shape[1] == 30
    assert int(splits.train.lengths.max()) == 30
    assert sum("longer than data.options.max_length=30" in r.message for r in caplog.records) == 1


@pytest.mark.parametrize(
    ("content", "told"),
    [
        (b"", "is empty: a text must have at least one character"),
        (b" \n\t ", "is empty"),
        (b"abc\xff\xfe", "must be a text in UTF-8, got byte 0xff at position 3"),
        (b"abc\x00def", "got byte 0x00 at position 3"),
    ],
)
def test_a_file_that_is_no_text_is_one_line(content: bytes, told: str, tmp_path: Path) -> None:
    root = write_texts(tmp_path / "texts")
    (root / "good" / "5.txt").write_bytes(content)
    with pytest.raises(DataError, match=told) as raised:
        load_splits(config(root))
    assert "5.txt" in str(raised.value)
    assert "\n" not in str(raised.value)
    skipped = load_splits(config(root, on_bad_image="skip"))
    assert sum(map(len, (skipped.train, skipped.val, skipped.test))) == 39


def test_folders_that_hold_no_texts_are_refused(tmp_path: Path) -> None:
    with pytest.raises(ConfigError, match=r"data\.root must be the path of a folder"):
        load_splits(DataConfig(name="text_folder"))
    (tmp_path / "texts" / "only").mkdir(parents=True)
    with pytest.raises(DataError, match="at least two classes"):
        load_splits(config(tmp_path / "texts"))
    (tmp_path / "texts" / "other").mkdir()
    with pytest.raises(DataError, match="class 'only' is empty: no text file"):
        load_splits(config(tmp_path / "texts"))


def test_a_text_below_the_length_is_padded_with_a_symbol_that_no_text_has(tmp_path: Path) -> None:
    splits = load_splits(config(write_texts(tmp_path / "texts")))
    rows = splits.train.images
    inside = torch.arange(rows.shape[1]) < splits.train.lengths[:, None]
    assert splits.info.pad_symbol == 0
    assert torch.equal(rows != 0, inside)
