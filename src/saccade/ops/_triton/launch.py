"""Launches of Triton kernels that pay for Triton's bookkeeping once.

`kernel[grid](...)` binds, specialises and hashes every argument on every call, which takes longer
than a short kernel runs. Here all arguments but the tensors are fixed, and what was compiled is
launched again without asking Triton. The kernels of an operation are compiled side by side when it
is first called.
"""

import functools
from collections.abc import Callable, Sequence
from concurrent.futures import ThreadPoolExecutor, wait
from contextlib import AbstractContextManager, nullcontext, suppress
from contextvars import ContextVar
from typing import Any, ParamSpec, TypeVar

import torch
import triton
import triton.runtime.cache
from torch import Tensor
from triton.compiler import CompiledKernel
from triton.runtime import MockTensor, driver

__all__ = ["Launch", "compiled_at_once", "is_dry_run", "launch_of", "on_device"]

INTERPRETED: bool = bool(triton.knobs.runtime.interpret)

P = ParamSpec("P")
R = TypeVar("R")
Dtypes = tuple[torch.dtype | None, ...]
Descriptors = dict[int, Callable[[Any], Any]]


_PREPARED_RELEASES = ((3, 6), (3, 9))
"""The first and the last release of Triton whose launcher is called directly."""

Prepared = Callable[[int, list[Any]], None]
"""A compiled kernel that is launched on a stream, given the addresses of its tensors."""


def _prepared(
    compiled: CompiledKernel, grid: tuple[int, ...], after: tuple[Any, ...]
) -> Prepared | None:
    """Have a compiled kernel launched without Triton's bookkeeping; None where that is not known.

    Nothing else relies on how Triton calls its launchers. Other releases than those known are
    launched as Triton does it, in 17.5 us instead of 3.6 (docs/log.md).
    """
    first, last = _PREPARED_RELEASES
    if not first <= tuple(map(int, triton.__version__.split(".")[:2])) <= last:
        return None
    # No launch metadata and no hooks: where there are any, Triton is asked.
    metadata = (compiled.function, compiled.packed_metadata, None, None, None)
    run = compiled.run

    def launch(stream: int, addresses: list[Any]) -> None:
        run(*grid, stream, *metadata, *addresses, *after)

    return launch


class Launch:
    """A kernel with all its arguments given but the tensors.

    Only a tensor's dtype, whether its address is divisible by 16, and the device are left for
    Triton to specialise on. The first call with some dtypes on some device goes through Triton and
    keeps what was compiled. Calls with another address, with a tensor of another device, or while
    somebody listens to launches go through Triton and keep nothing.
    """

    def __init__(
        self,
        kernel: Any,
        grid: tuple[int, ...],
        numbers: tuple[Any, ...],
        constants: dict[str, Any],
        descriptors: Descriptors | None = None,
    ) -> None:
        """Fix everything but the tensors.

        Args:
            kernel: A `triton.jit` function of tensors, then numbers, then `constexpr`s.
            grid: Programs along each axis.
            numbers: What follows the tensors.
            constants: The `constexpr`s and the launch options, by name.
            descriptors: What turns tensors into the descriptors that the kernel takes, by the place
                of the tensor. A descriptor is a value like an address: it is made for each call,
                and recorded in a graph as it is.
        """
        self.kernel, self.grid = kernel, grid
        self.numbers, self.constants, self.descriptors = numbers, constants, descriptors
        self._known: dict[tuple[Any, ...], Prepared] = {}

    def __call__(self, *tensors: Tensor | None) -> None:
        """Launch on the current device and stream; None for a tensor that is not read."""
        dry_run = _dry_run_launches.get()
        if dry_run is not None:
            dry_run.add((self, tuple(x if x is None else x.dtype for x in tensors)))
            return
        key, addresses = (None, []) if INTERPRETED else _specialization(tensors)
        prepared = None if key is None else self._known.get(key)
        if key is None or prepared is None or _is_observed(self.kernel):
            self._launch_through_triton(tensors, key)
            return
        if self.descriptors:
            self.describe(addresses, tensors)
        prepared(driver.active.get_current_stream(key[0]), addresses)

    def compile(self, dtypes: Dtypes) -> None:
        """Compile and load the kernel for tensors of these dtypes; launch nothing."""
        arguments: list[Any] = list(dtypes)
        self.describe(arguments, [dtype and MockTensor(dtype) for dtype in dtypes])
        compiled = self.kernel.warmup(*arguments, *self.numbers, grid=self.grid, **self.constants)
        if isinstance(compiled, CompiledKernel):
            _ = compiled.run  # which loads it

    def describe(self, arguments: list[Any], tensors: Sequence[Any]) -> None:
        """Put descriptors of tensors where the kernel takes them."""
        for place, describe in (self.descriptors or {}).items():
            arguments[place] = describe(tensors[place])

    def _launch_through_triton(
        self, tensors: tuple[Tensor | None, ...], key: tuple[Any, ...] | None
    ) -> None:
        arguments: list[Any] = list(tensors)
        self.describe(arguments, tensors)
        compiled = self.kernel[self.grid](*arguments, *self.numbers, **self.constants)
        if key is None or not isinstance(compiled, CompiledKernel) or _is_observed(self.kernel):
            return
        names = self.kernel.arg_names[len(tensors) + len(self.numbers) :]
        after = (*self.numbers, *(self.constants[name] for name in names))
        prepared = _prepared(compiled, (*self.grid, 1, 1)[:3], after)
        if prepared is not None:
            self._known[key] = prepared


_dry_run_launches: ContextVar[set[tuple[Launch, Dtypes]] | None] = ContextVar(
    "dry_run", default=None
)


def is_dry_run() -> bool:
    """Whether launches are only noted, to be compiled together."""
    return _dry_run_launches.get() is not None


def compile_kernels(function: Callable[P, object], *args: P.args, **kwargs: P.kwargs) -> None:
    """Compile the kernels that a function launches, side by side, without launching any.

    Of its tensors no more are kept than without: a launch is known by their dtypes. What cannot be
    compiled is left for the launch itself to meet.
    """
    launches: set[tuple[Launch, Dtypes]] = set()
    token = _dry_run_launches.set(launches)
    try:
        function(*args, **kwargs)
    finally:
        _dry_run_launches.reset(token)
    variants = {_variant(*noted): noted for noted in launches if not _is_observed(noted[0].kernel)}

    def compile_one(noted: tuple[Launch, Dtypes]) -> None:
        launch, dtypes = noted
        with torch.cuda.device(device), suppress(Exception):
            launch.compile(dtypes)

    with ThreadPoolExecutor(max(1, len(variants))) as pool:
        read = pool.submit(_read_triton)  # while its driver is built
        device = driver.active.get_current_device()
        wait([read])  # or each would read it anew
        list(pool.map(compile_one, variants.values()))


def _read_triton() -> None:
    """Have Triton hash its own files, as it does once before it compiles.

    That is an inner matter of Triton's: where it has another name, it is done later.
    """
    getattr(triton.runtime.cache, "triton_key", lambda: None)()


def _variant(launch: Launch, dtypes: Dtypes) -> tuple[Any, ...]:
    """What a launch is compiled for: its grid is not, of whole numbers only their kind."""
    parameters = launch.kernel.params[len(dtypes) :]
    numbers = (
        _kind(number, specialized=not parameter.do_not_specialize)
        for number, parameter in zip(launch.numbers, parameters, strict=False)
    )
    return launch.kernel, dtypes, tuple(numbers), tuple(launch.constants.items())


def _kind(number: Any, *, specialized: bool) -> Any:
    if isinstance(number, tuple):
        return tuple(_kind(each, specialized=specialized) for each in number)
    if not isinstance(number, int):
        return float
    return number >= 1 << 31, specialized and (number == 1, number % 16 == 0)


def compiled_at_once(function: Callable[P, R]) -> Callable[P, R]:
    """The function, its kernels compiled side by side the first time it meets a kind of input.

    Its first argument has tensors, q among them, and a `call` with a `kind`, which most of what is
    compiled depends on alone.
    """
    met: set[Any] = set()

    @functools.wraps(function)
    def wrapped(*args: P.args, **kwargs: P.kwargs) -> R:
        problem: Any = args[0]
        kind = problem.call.kind
        if kind not in met and problem.q.is_cuda and not torch.cuda.is_current_stream_capturing():
            compile_kernels(function, *args, **kwargs)
            met.add(kind)
        return function(*args, **kwargs)

    return wrapped


def _specialization(
    tensors: tuple[Tensor | None, ...],
) -> tuple[tuple[Any, ...] | None, list[int | None]]:
    """The current device and the tensors' dtypes, and their addresses.

    None where an address is not divisible by 16, or not one of this device.
    """
    device = driver.active.get_current_device()
    key: list[Any] = [device]
    addresses: list[int | None] = []
    for tensor in tensors:
        if tensor is None:
            key.append(None)
            addresses.append(None)
            continue
        address = tensor.data_ptr()
        if address % 16 or tensor.get_device() != device:
            return None, []
        key.append(tensor.dtype)
        addresses.append(address)
    return tuple(key), addresses


def _is_observed(kernel: Any) -> bool:
    """Whether launches are listened to, or kernels compiled otherwise than usual."""
    runtime = triton.knobs.runtime
    return bool(
        getattr(runtime.launch_enter_hook, "calls", runtime.launch_enter_hook)
        or getattr(runtime.launch_exit_hook, "calls", runtime.launch_exit_hook)
        or kernel.pre_run_hooks
        or runtime.debug
        or triton.knobs.compilation.instrumentation_mode
        or getattr(runtime, "add_stages_inspection_hook", None)
    )


@functools.lru_cache(maxsize=1024, typed=True)
def launch_of(kernel: Any, grid: tuple[int, ...], *numbers: Any, **constants: Any) -> Launch:
    """The launch of a kernel with these arguments, the same one every time."""
    return Launch(kernel, grid, numbers, constants)


def on_device(x: Tensor) -> AbstractContextManager[object]:
    """Launch on the device of x."""
    if x.is_cuda and x.get_device() != torch.cuda.current_device():
        return torch.cuda.device(x.device)
    return nullcontext()
