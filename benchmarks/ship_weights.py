"""Make a model that ships from a finished run, and list it in the index.

    python benchmarks/ship_weights.py RUN NAME TITLE [--weights FILE] [--repository] [--default]

RUN is a run folder, or a .tar.gz of `collect_run.py`, whose weights are --weights. NAME is
`<variant>.<training>`. The model goes into the package, or with --repository into `weights/`. The
accuracy and the threshold are measured here, with the float16 weights, on the CPU.
"""

from __future__ import annotations

import argparse
import json
import tarfile
import tempfile
from pathlib import Path

from safetensors.torch import load_file

from saccade.io import read_json_object, sha256_file, write_json
from saccade.models.pretrained import INDEX, PACKAGED, REPOSITORY
from saccade.runs import RunFolder
from saccade.train.confidence import MAX_ERROR
from saccade.train.shipping import ship_run

FILES = ("config.json", "model.safetensors")


def ship(run: RunFolder, given: argparse.Namespace) -> None:
    """Write the folder of the model and its entry in the index."""
    name, package = given.name, not given.repository
    folder = (PACKAGED if package else REPOSITORY) / name
    tensors = load_file(given.weights) if given.weights else None
    record = ship_run(
        run, folder, tensors=tensors, max_error=given.max_error, test_again=not given.tested
    )
    index = read_json_object(PACKAGED / INDEX)
    row = {
        "title": given.title.format(accuracy=f"{100 * record['result']['accuracy']:.2f} %"),
        "in_package": package,
        "sha256": {file: sha256_file(folder / file) for file in FILES},
    }
    index["weights"][name] = row
    if given.default:
        index["default"] = name
    write_json(PACKAGED / INDEX, index)
    print(json.dumps({"folder": str(folder), **row, **record["result"], **record["unsure"]}))


def main() -> None:
    """Read the command line and ship the model."""
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("run", type=Path)
    parser.add_argument("name")
    parser.add_argument("title", help="one line; {accuracy} is replaced")
    parser.add_argument("--weights", type=Path)
    parser.add_argument("--repository", action="store_true")
    parser.add_argument("--default", action="store_true")
    parser.add_argument("--max-error", type=float, default=MAX_ERROR)
    parser.add_argument("--tested", action="store_true", help="take the run's test accuracy")
    given = parser.parse_args()
    with tempfile.TemporaryDirectory() as scratch:
        path = given.run
        if path.is_file():
            with tarfile.open(path) as tar:
                tar.extractall(scratch, filter="data")
            (path,) = Path(scratch).iterdir()
        ship(RunFolder(path), given)


if __name__ == "__main__":
    main()
