"""CPU graph replay: a forward pass is recorded once and replayed without the Python between its operations.

A pass that is recorded is computed as ever, and each call of the C++ kernels and of torch's operators is kept
with its arguments. All its tensors keep their addresses, so a replay computes the same on the same addresses:
new inputs are copied to where the old ones were. A pass must not read numbers on the host. Only calls of the
recording thread are recorded.
"""

from __future__ import annotations

import ctypes
import threading
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from ctypes import c_int64, c_void_p
from functools import partial
from typing import Any, Final

import torch
from torch import Tensor
from torch.utils._python_dispatch import TorchDispatchMode
from torch.utils._pytree import tree_leaves

from baton_kernels.cpu.structs import KernelCall, Status
from baton_kernels.interface.collectives import RankLostError

_UNWRITTEN: Final = frozenset({"empty", "empty_like", "empty_strided", "new_empty", "new_empty_strided"})
"""Operators that allocate a result without writing it."""

_CONVERSIONS: Final = frozenset({torch.ops.aten.to.dtype, torch.ops.aten._to_copy.default})
"""Operators that copy their first argument into a tensor of another type."""


class NotRecordableError(Exception):
    """A pass reads numbers on the host, or an operator's memory cannot be followed.

    It was computed to its end nevertheless, as other ranks wait for this one in it.
    """

    def __init__(self, reason: str, result: Tensor) -> None:
        super().__init__(reason)
        self.result = result


class NativeKernel:
    """A C++ kernel: takes a struct, returns a status, 0 if all is well."""

    def __init__(self, library: ctypes.CDLL, name: str) -> None:
        self._kernel = getattr(library, name)
        self._kernel.argtypes = (c_void_p,)
        self._run_all = library.baton_run_all
        self._run_all.argtypes = (c_void_p, c_int64)
        self._address = ctypes.cast(self._kernel, c_void_p).value

    def __call__(self, args: ctypes.Structure) -> int:
        if (graph := _thread.graph) is not None:
            graph.record_native(self, args)
        status: int = self._kernel(ctypes.addressof(args))
        return status

    def call(self, args: ctypes.Structure) -> KernelCall:
        """Return a call that can be replayed as long as `args` lives."""
        return KernelCall(kernel=self._address, args=ctypes.addressof(args))

    def run_all(self, calls: ctypes.Array[KernelCall]) -> None:
        """Replay calls of kernels of the same build.

        Raises: MemoryError, IndexError, or RankLostError.
        """
        match self._run_all(calls, len(calls)):
            case Status.OUT_OF_MEMORY:
                raise MemoryError("no memory for a step")
            case Status.ROW_OUT_OF_RANGE:
                raise IndexError("a row is out of range")
            case Status.RANK_LOST:
                raise RankLostError(-1, "it has not come in time, or its group has ended")


class GraphReplay:
    """A recorded forward pass."""

    def __init__(self) -> None:
        self._replays: list[Callable[[], object]] = []
        self._pending: list[tuple[NativeKernel, ctypes.Structure]] = []
        self._kept: list[object] = []
        self._refusal = ""

    @classmethod
    def record(cls, forward: Callable[[], Tensor]) -> tuple[GraphReplay, Tensor]:
        """Compute and record `forward()`; return the graph and the result, which each replay overwrites.

        Raises:
            NotRecordableError: it cannot be recorded.
        """
        graph = cls()
        with graph._recording_native(), _RecordingOperators(graph):
            result = forward()
        if graph._refusal:
            raise NotRecordableError(graph._refusal, result)
        graph._end_run()
        graph._kept.append(result)
        return graph, result

    def replay(self) -> None:
        """Compute again.

        Raises: MemoryError, IndexError, or RankLostError.
        """
        for replay in self._replays:
            replay()

    def record_native(self, kernel: NativeKernel, args: ctypes.Structure) -> None:
        self._pending.append((kernel, args))

    def record_operator(
        self, operator: Any, args: tuple[Any, ...], kwargs: dict[str, Any], result: object
    ) -> None:
        """Record one of torch's operators and its result.

        Refuses a result that is no tensor, or one whose memory only its library knows.
        """
        results = tree_leaves(result)
        self._kept += results
        if operator._schema.is_mutable:
            self._add(partial(operator, *args, **kwargs))
            return
        for leaf in results:
            if not isinstance(leaf, Tensor):
                self._refusal = f"{operator} returns {leaf!r}"
                return
            if leaf.layout != torch.strided:
                self._refusal = f"{operator} returns a tensor of the layout {leaf.layout}"
                return
        own = _storages((args, kwargs))
        written = [not _storages(leaf) & own for leaf in results]
        if any(written) and operator._schema.name.removeprefix("aten::") not in _UNWRITTEN:
            if isinstance(result, Tensor) and (writing := _writing(operator)) is not None:
                self._add(partial(writing, *args, **kwargs, out=result))
            elif isinstance(result, Tensor) and operator in _CONVERSIONS:
                self._add(partial(result.copy_, args[0]))
            elif isinstance(result, Tensor):
                self._add(partial(_copy_again, operator, args, kwargs, result))
            else:
                self._add(partial(_compute_again, operator, args, kwargs, result, written))

    def _add(self, replay: Callable[[], object]) -> None:
        self._end_run()
        self._replays.append(replay)

    def _end_run(self) -> None:
        """Put the calls of the C++ kernels since the last operator into one."""
        if not self._pending:
            return
        calls = (KernelCall * len(self._pending))(*(kernel.call(args) for kernel, args in self._pending))
        self._kept += [args for _, args in self._pending]
        self._replays.append(partial(self._pending[0][0].run_all, calls))
        self._pending = []

    @contextmanager
    def _recording_native(self) -> Iterator[None]:
        assert _thread.graph is None, "one pass at a time is recorded"
        _thread.graph = self
        try:
            yield
        finally:
            _thread.graph = None


class _Thread(threading.local):
    graph: GraphReplay | None = None
    """Records the calls of this thread."""


_thread: Final = _Thread()


class _RecordingOperators(TorchDispatchMode):  # type: ignore[no-untyped-call]
    def __init__(self, graph: GraphReplay) -> None:
        super().__init__()  # type: ignore[no-untyped-call]
        self._graph = graph

    @classmethod
    def _should_skip_dynamo(cls) -> bool:
        """Return False: else torch imports its compiler, which takes a second, to keep it away from here."""
        return False

    def __torch_dispatch__(
        self, func: Any, types: Any, args: tuple[Any, ...] = (), kwargs: dict[str, Any] | None = None
    ) -> Any:
        kwargs = kwargs or {}
        result = func(*args, **kwargs)
        self._graph.record_operator(func, args, kwargs, result)
        return result


def _storages(tree: object) -> set[int]:
    """Addresses of the memory that tensors lie in. A weight that oneDNN has packed shares its own with
    nobody.
    """
    tensors = (leaf for leaf in tree_leaves(tree) if isinstance(leaf, Tensor))
    return {leaf.untyped_storage().data_ptr() for leaf in tensors if leaf.layout == torch.strided}


def _writing(operator: Any) -> Any:
    """Return what computes the same as a pointwise operator, into the tensor `out`; None: there is nothing.

    Other operators may choose another algorithm, whose results are rounded otherwise.
    """
    if torch.Tag.pointwise not in operator.tags:
        return None
    taken = [(one.name, str(one.type)) for one in operator._schema.arguments]
    others = (getattr(operator.overloadpacket, name) for name in operator.overloadpacket.overloads())
    for other in others:
        arguments = [(one.name, str(one.type)) for one in other._schema.arguments]
        if arguments == [*taken, ("out", "Tensor")]:
            return other
    return None


def _copy_again(operator: Any, args: tuple[Any, ...], kwargs: dict[str, Any], result: Tensor) -> None:
    result.copy_(operator(*args, **kwargs))


def _compute_again(
    operator: Any, args: tuple[Any, ...], kwargs: dict[str, Any], result: object, written: list[bool]
) -> None:
    for old, new, is_written in zip(
        tree_leaves(result), tree_leaves(operator(*args, **kwargs)), written, strict=True
    ):
        if is_written:
            old.copy_(new)
