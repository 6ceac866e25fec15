"""Set-up that every test shares: one torch thread a worker, the same draws every time, interpreted
kernels without a GPU, and the operators timm asks for.
"""

import os
import sys

os.environ["OMP_NUM_THREADS"] = "1"  # children are to end bit-equal with this process
os.environ.pop("MKL_NUM_THREADS", None)
os.environ["COLUMNS"] = "80"  # help and tables are wrapped to it
os.environ["NO_PROXY"] = os.environ["no_proxy"] = "127.0.0.1"  # where tests have their servers

import pytest
import torch

from tests.interpreter import speed_up

torch.set_num_threads(1)
if not torch.cuda.is_available():
    os.environ.setdefault("TRITON_INTERPRET", "1")  # read when triton is first imported


def _define_torchvision_operators() -> None:
    """Let `import timm` work beside a torch whose torchvision has no compiled operators.

    torchvision registers fake versions of these operators when it is imported and fails where
    they are not defined at all. Nothing here calls them.
    """
    try:
        import torchvision  # noqa: F401
    except ImportError:
        pass
    except RuntimeError:
        library = torch.library.Library("torchvision", "DEF")
        library.define("nms(Tensor dets, Tensor scores, float iou_threshold) -> Tensor")
        library.define("qnms(Tensor dets, Tensor scores, float iou_threshold) -> Tensor")
        globals()["_torchvision_library"] = library  # the definitions live as long as it does


_define_torchvision_operators()


@pytest.fixture(autouse=True)
def seeded() -> None:
    """Draws without a generator of their own are the same in whatever order tests run."""
    torch.manual_seed(0)


def pytest_collection_finish() -> None:
    """Speed up the interpreter of kernels, if any module of tests has imported it."""
    if os.environ.get("TRITON_INTERPRET") == "1" and "triton.runtime.interpreter" in sys.modules:
        speed_up()


def pytest_collection_modifyitems(items: list[pytest.Item]) -> None:
    """Skip what needs a GPU where there is none, aloud."""
    if torch.cuda.is_available():
        return
    for item in items:
        if item.get_closest_marker("gpu"):
            item.add_marker(pytest.mark.skip(reason="no CUDA device on this machine"))
