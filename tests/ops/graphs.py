"""Work of a GPU captured in a graph, for tests of what it gives again."""

from collections.abc import Callable, Sequence

import torch
from torch import Tensor


def captured(
    run: Callable[[], Sequence[Tensor]],
) -> tuple[list[Tensor], Callable[[], list[Tensor]]]:
    """What a call gives, and a function that replays it over zeros."""
    stream = torch.cuda.Stream()  # what autograd did before on another would be waited for
    stream.wait_stream(torch.cuda.current_stream())
    with torch.cuda.stream(stream):
        expected = [x.detach().clone() for x in run()]
    torch.cuda.synchronize()
    graph = torch.cuda.CUDAGraph()
    with torch.cuda.graph(graph, stream=stream):
        results = [x.detach() for x in run()]

    def replay() -> list[Tensor]:
        for x in results:
            x.zero_()
        graph.replay()
        return results

    return expected, replay


def assert_replayed_alike(run: Callable[[], Sequence[Tensor]]) -> None:
    """Hold a replayed call to what it gave before, to the last bit."""
    expected, replay = captured(run)
    for x, y in zip(replay(), expected, strict=True):
        assert y.count_nonzero() > 0
        assert torch.equal(x, y)
