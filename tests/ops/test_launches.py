"""Launches that do not ask Triton again do what Triton would have done."""

from types import SimpleNamespace

import pytest
import torch

from tests.ops.uninterpreted import seen_by

pytest.importorskip("triton")

from saccade.ops._triton import launch as launches


@pytest.fixture(scope="module")
def found():
    """What `stub_driver` saw."""
    return seen_by("stub_driver")


def test_a_second_launch_is_the_first_without_asking_triton(found):
    first, again = dict(found["first"]), dict(found["again"])
    assert first.pop("asked")
    assert not again.pop("asked")
    assert again == first
    assert first["grid"] == [2, 1, 1]
    assert first["arguments"][3:] == [64, 1, 0.5, 32]


def test_an_address_not_divisible_by_16_gets_a_kernel_of_its_own(found):
    misaligned = found["misaligned"]
    assert misaligned["asked"]
    assert misaligned["function"] != found["first"]["function"]
    assert misaligned["attributes"] != found["first"]["attributes"]
    assert not found["aligned after"]["asked"]
    assert found["aligned after"]["function"] == found["first"]["function"]


@pytest.mark.parametrize("other", ["other dtype", "no mask"])
def test_other_tensors_get_a_kernel_of_their_own(found, other):
    assert found[other]["asked"]
    assert found[other]["signature"] != found["first"]["signature"]
    assert found[other]["function"] != found["first"]["function"]


def test_a_tensor_that_is_not_there_is_remembered_too(found):
    assert not found["no mask again"]["asked"]
    assert found["no mask again"]["function"] == found["no mask"]["function"]
    assert found["no mask again"]["arguments"] == found["no mask"]["arguments"]


def test_triton_is_asked_while_somebody_listens_or_tensors_are_elsewhere(found):
    assert found["listened to"]["asked"]
    assert found["tensors elsewhere"]["asked"]


def test_another_release_of_triton_is_asked_every_time(found):
    assert [launch["asked"] for launch in found["other release"]] == [True, True]
    assert found["other release"][1]["arguments"] == found["again"]["arguments"]


def test_kernels_are_compiled_side_by_side_and_once(found):
    expected = {"compiled": 2, "tensors held": False, "launched meanwhile": 0, "launched": 3}
    assert found["together"] == expected


def test_an_operation_is_compiled_at_once_where_it_can_and_once(monkeypatch):
    done, capturing = [], [True, False, False]
    monkeypatch.setattr(
        launches, "compile_kernels", lambda function, *args: done.append("compiled")
    )
    monkeypatch.setattr(torch.cuda, "is_current_stream_capturing", lambda: capturing.pop(0))
    run = launches.compiled_at_once(lambda problem: done.append("run"))
    here = SimpleNamespace(q=SimpleNamespace(is_cuda=False), call=SimpleNamespace(kind="narrow"))
    there = SimpleNamespace(q=SimpleNamespace(is_cuda=True), call=SimpleNamespace(kind="narrow"))
    for problem in (here, there, there, there):
        run(problem)
    assert done == ["run", "run", "compiled", "run", "run"]
    there.call.kind = "wide"
    run(there)
    assert done[-2:] == ["compiled", "run"]
