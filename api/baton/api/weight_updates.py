"""Updates of the weights of an engine, from a folder or from tensors of this process."""

from __future__ import annotations

import fcntl
import json
import os
import shutil
import tempfile
import weakref
from collections.abc import Iterator, Mapping
from contextlib import suppress
from pathlib import Path
from typing import Any, Final

from safetensors.torch import save_file
from torch import Tensor

from baton_core.errors import InvalidRequestError
from baton_core.sessions.weight_arguments import check_init_info, read_update_info
from baton_core.weight_update import WeightUpdate
from baton_worker.controls.engine_operations import (
    Control,
    FinishWeightUpdate,
    StartWeightUpdate,
    UpdateWeights,
)

_INDEX: Final = "model.safetensors.index.json"
_PREFIX: Final = "baton-tensors-"


class WeightUpdates:
    """The updates of one engine. Tensors go through files, so workers in any process read them alike.

    A step of an update yields commands for the workers: it goes on when they have done one, and is left where
    they refuse it.
    """

    def __init__(self) -> None:
        self.version = "default"
        """The name that the caller gives to the version in place."""
        self._update = WeightUpdate()
        self._staged: _TensorFolder | None = None
        """Tensors of the update that is open."""
        self._served: _TensorFolder | None = None
        """Tensors of the version in place: workers that wake up read them again."""

    def init(self, request: object) -> None:
        """Refuse other ways of the weights than files and tensors.

        Raises:
            InvalidRequestError: `init_info` asks for another way.
        """
        check_init_info(_read_field(request, "init_info"))

    def start(self, *, is_checkpoint_format: bool) -> Iterator[Control]:
        """Begin an update."""
        yield StartWeightUpdate(is_checkpoint_format=is_checkpoint_format)
        self._update.start()
        self._staged = None

    def update(self, request: object) -> Iterator[Control]:
        """Take weights: a folder is checked at once, tensors when all have come.

        Raises:
            InvalidRequestError: `update_info` has neither `path` nor `tensors`.
            RequestError: INVALID_REQUEST, tensors come while no update is open.
        """
        info = _read_field(request, "update_info")
        if set(info) != {"tensors"}:
            path = str(Path(read_update_info(info)).resolve())
            self._staged = None
            yield UpdateWeights(path=path)
            return
        self._update.require_open()
        folder = self._staged or _TensorFolder()
        folder.add(info["tensors"])
        self._staged = folder

    def finish(self, version: str | None) -> Iterator[Control]:
        """Compute with the new weights from here on; None keeps the name of the version."""
        if self._staged is not None:
            yield UpdateWeights(path=self._staged.path)
        yield FinishWeightUpdate()
        self._update.finish()
        self._staged, self._served = None, self._staged
        self.version = self.version if version is None else version

    def replace(self, tensors: Mapping[str, Tensor]) -> Iterator[Control]:
        """Make a whole update of tensors by name."""
        yield from self.start(is_checkpoint_format=True)
        yield from self.update({"update_info": {"tensors": tensors}})
        yield from self.finish(None)


class _TensorFolder:
    """A folder with tensors as safetensors files; it is deleted with this object.

    That of a process that was killed is deleted when the next one is made: nobody holds its lock any more.
    """

    def __init__(self) -> None:
        _delete_abandoned()
        made = tempfile.mkdtemp(prefix=f".{_PREFIX}")
        descriptor = os.open(made, os.O_DIRECTORY)
        with suppress(OSError):  # NFS locks no folders, so that others cannot lock and delete this one either
            fcntl.flock(descriptor, fcntl.LOCK_EX)
        self.path = made.replace(f".{_PREFIX}", _PREFIX)
        os.rename(made, self.path)  # it is locked when others can find it
        self._file_of: dict[str, str] = {}
        weakref.finalize(self, _delete, self.path, descriptor, os.getpid())

    def add(self, tensors: object) -> None:
        """Write tensors by name: a mapping, or pairs.

        Raises:
            InvalidRequestError: there are none, one is no tensor, or a name came before.
        """
        named: dict[Any, Any] = dict(tensors)  # type: ignore[call-overload]
        for name, tensor in named.items():
            if not isinstance(tensor, Tensor) or name in self._file_of:
                allowed = "tensors of torch by their names in the checkpoint, each once in an update"
                raise InvalidRequestError("tensors", f"{name!r}: {type(tensor).__name__}", allowed)
        file = f"part-{len(set(self._file_of.values()))}.safetensors"
        whole = {name: tensor.detach().to("cpu", copy=True).contiguous() for name, tensor in named.items()}
        save_file(whole, Path(self.path) / file)
        self._file_of |= dict.fromkeys(named, file)
        (Path(self.path) / _INDEX).write_text(json.dumps({"weight_map": self._file_of}))


def _delete(path: str, descriptor: int, owner_pid: int) -> None:
    """Delete a folder and end its lock, unless this process is a fork of its owner, who needs both."""
    if os.getpid() == owner_pid:
        shutil.rmtree(path, ignore_errors=True)
        os.close(descriptor)


def _delete_abandoned() -> None:
    """Delete the folders whose processes have ended without it."""
    for path in Path(tempfile.gettempdir()).glob(f"{_PREFIX}*"):
        with suppress(OSError):  # it is in use, another user's, or gone meanwhile
            descriptor = os.open(path, os.O_DIRECTORY | os.O_NOFOLLOW)
            try:
                fcntl.flock(descriptor, fcntl.LOCK_EX | fcntl.LOCK_NB)
                shutil.rmtree(path)
            finally:
                os.close(descriptor)


def _read_field(request: object, field: str) -> Mapping[str, Any]:
    """Return a field of a request, which has it as a key or, as vLLM's classes do, as an attribute.

    Raises:
        InvalidRequestError: it has no such field, or no object there.
    """
    value = request.get(field) if isinstance(request, Mapping) else getattr(request, field, None)
    if not isinstance(value, Mapping):
        raise InvalidRequestError("request", request, f"an object whose {field} is an object")
    return value
