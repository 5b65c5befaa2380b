"""A forward pass on a CPU that is recorded once and replayed, without the Python between its operations.

While a pass is recorded, it is computed as ever, and each call of the C++ kernels and of torch's operators is
noted with its arguments. All tensors that come up stay where they are, so a replay computes the same on the
same addresses: new inputs are put where the old ones were. A pass must not look at numbers on the host.
Only what the recording thread calls is noted.
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

_UNWRITTEN: Final = frozenset({"empty", "empty_like", "empty_strided", "new_empty", "new_empty_strided"})
"""Operators whose result is memory that somebody else writes."""


class NotRecordableError(Exception):
    """A pass looks at numbers on the host, or an operator's memory cannot be followed."""


class _Call(ctypes.Structure):
    """Mirrors that of cpu/decode.cpp."""

    _fields_ = (("function", c_void_p), ("step", c_void_p))


class NativeFunction:
    """A function of a build of the C++ kernels: takes a struct, returns a status, 0 if all is well."""

    def __init__(self, library: ctypes.CDLL, name: str) -> None:
        self._function = getattr(library, name)
        self._function.argtypes = (c_void_p,)
        self._run_all = library.baton_run_all
        self._run_all.argtypes = (c_void_p, c_int64)

    def __call__(self, step: ctypes.Structure) -> int:
        if (recorded := _thread.recorded) is not None:
            recorded.note_native(self, step)
        status: int = self._function(ctypes.addressof(step))
        return status

    @property
    def address(self) -> int:
        address = ctypes.cast(self._function, c_void_p).value
        assert address is not None
        return address

    def run_all(self, calls: ctypes.Array[_Call]) -> None:
        """Replay calls of functions of the same build.

        Raises: MemoryError.
        """
        if self._run_all(calls, len(calls)):
            raise MemoryError("no memory for a step")


class RecordedCalls:
    """What `record` noted."""

    def __init__(self) -> None:
        self._replays: list[Callable[[], object]] = []
        self._pending: list[tuple[NativeFunction, ctypes.Structure]] = []
        self._kept: list[object] = []

    @classmethod
    def record(cls, forward: Callable[[], Tensor]) -> tuple[RecordedCalls, Tensor]:
        """Compute `forward()` and note how; its result is what each replay writes anew.

        Raises:
            NotRecordableError: it cannot be recorded.
        """
        recorded = cls()
        with recorded._noting_native(), _NotingOperators(recorded):
            result = forward()
        recorded._end_run()
        recorded._kept.append(result)
        return recorded, result

    def replay(self) -> None:
        """Compute again.

        Raises: MemoryError.
        """
        for replay in self._replays:
            replay()

    def note_native(self, function: NativeFunction, step: ctypes.Structure) -> None:
        self._pending.append((function, step))

    def note_operator(
        self, operator: Any, args: tuple[Any, ...], kwargs: dict[str, Any], result: object
    ) -> None:
        """Note one of torch's operators and what it returned.

        Raises:
            NotRecordableError: that is no tensor, or one whose memory only its library knows.
        """
        results = tree_leaves(result)
        self._kept += results
        if operator._schema.is_mutable:
            self._add(partial(operator, *args, **kwargs))
            return
        for leaf in results:
            if not isinstance(leaf, Tensor):
                raise NotRecordableError(f"{operator} returns {leaf!r}")
            if leaf.layout != torch.strided:
                raise NotRecordableError(f"{operator} returns a tensor of the layout {leaf.layout}")
        own = _storages((args, kwargs))
        written = [not _storages(leaf) & own for leaf in results]
        if any(written) and operator._schema.name.removeprefix("aten::") not in _UNWRITTEN:
            self._add(partial(_compute_again, operator, args, kwargs, result, written))

    def _add(self, replay: Callable[[], object]) -> None:
        self._end_run()
        self._replays.append(replay)

    def _end_run(self) -> None:
        """Put the calls of the C++ kernels since the last operator into one."""
        if not self._pending:
            return
        calls = (_Call * len(self._pending))(
            *(_Call(function.address, ctypes.addressof(step)) for function, step in self._pending)
        )
        self._kept += [step for _, step in self._pending]
        self._replays.append(partial(self._pending[0][0].run_all, calls))
        self._pending = []

    @contextmanager
    def _noting_native(self) -> Iterator[None]:
        assert _thread.recorded is None, "one pass at a time is recorded"
        _thread.recorded = self
        try:
            yield
        finally:
            _thread.recorded = None


class _Thread(threading.local):
    recorded: RecordedCalls | None = None
    """What notes the calls of this thread."""


_thread: Final = _Thread()


class _NotingOperators(TorchDispatchMode):  # type: ignore[no-untyped-call]
    def __init__(self, recorded: RecordedCalls) -> None:
        super().__init__()  # type: ignore[no-untyped-call]
        self._recorded = recorded

    @classmethod
    def _should_skip_dynamo(cls) -> bool:
        """Return False: else torch imports its compiler, which takes a second, to keep it away from here."""
        return False

    def __torch_dispatch__(
        self, func: Any, types: Any, args: tuple[Any, ...] = (), kwargs: dict[str, Any] | None = None
    ) -> Any:
        kwargs = kwargs or {}
        result = func(*args, **kwargs)
        self._recorded.note_operator(func, args, kwargs, result)
        return result


def _storages(tree: object) -> set[int]:
    """Addresses of the memory that tensors lie in. A weight that oneDNN has packed shares its own with
    nobody.
    """
    tensors = (leaf for leaf in tree_leaves(tree) if isinstance(leaf, Tensor))
    return {leaf.untyped_storage().data_ptr() for leaf in tensors if leaf.layout == torch.strided}


def _compute_again(
    operator: Any, args: tuple[Any, ...], kwargs: dict[str, Any], result: object, written: list[bool]
) -> None:
    for old, new, is_written in zip(
        tree_leaves(result), tree_leaves(operator(*args, **kwargs)), written, strict=True
    ):
        if is_written:
            old.copy_(new)
