"""Weights that processes of a machine share: one copy of what each of them has loaded.

The first process that has loaded a model copies its weights into memory without a name, and says in a file
where that is: its process and descriptor. Others that have loaded the same compare theirs with it, byte by
byte, and use that memory instead. It is gone with the last of them, however they end; nobody can change it.
"""

from __future__ import annotations

import fcntl
import logging
import mmap
import os
import tempfile
import time
import weakref
from collections.abc import Iterator
from contextlib import contextmanager, suppress
from dataclasses import dataclass
from hashlib import blake2b
from pathlib import Path
from typing import Final

import numpy as np
import torch
from torch import Tensor

from baton_core.errors import InvalidConfigError
from baton_engine.tensor_moves import find_tensors

MIN_BYTES: Final = 1 << 16
"""Smaller weights stay with each process."""
WAIT_S: Final = 120.0
"""Time for another process to copy its weights."""
_WAIT_AGAIN_S: Final = 0.05
_ALIGNMENT: Final = 64
"""Bytes of a cache line, at which each weight begins; one of another size stays with its process."""
_PIECE_BYTES: Final = 1 << 28
_SEALS: Final = fcntl.F_SEAL_WRITE | fcntl.F_SEAL_SHRINK | fcntl.F_SEAL_GROW | fcntl.F_SEAL_SEAL
logger = logging.getLogger(__name__)


@dataclass(frozen=True, slots=True)
class _Weight:
    """One piece of memory, and the tensors that lie in it."""

    memory: np.ndarray
    tensors: tuple[Tensor, ...]
    offset: int
    """Where it lies in the shared memory."""

    @property
    def place(self) -> slice:
        return slice(self.offset, self.offset + self.memory.nbytes)


def share_weights(root: object, key: str, folder: Path | None = None) -> int:
    """Share the weights that are reachable from `root` with processes that have the same; returns the bytes.

    Args:
        key: names what decides the bytes, and the order in which they are reached.
        folder: where processes find each other; None is a folder of this user for temporary files.

    Raises:
        InvalidConfigError: the folder belongs to somebody else, or there is no memory.
    """
    weights, num_bytes = _weights_of(root)
    if not weights:
        return 0
    name = f"baton-weights-{blake2b(f'{key} {num_bytes}'.encode(), digest_size=16).hexdigest()}"
    with _locked(folder or _own_folder(), name) as entries:
        descriptor = _found(entries, name, num_bytes)
        is_new = descriptor is None
        if descriptor is None:
            descriptor = os.memfd_create(name, os.MFD_CLOEXEC | os.MFD_ALLOW_SEALING)
            os.ftruncate(descriptor, num_bytes)
        mapping = np.frombuffer(
            mmap.mmap(descriptor, num_bytes, flags=mmap.MAP_PRIVATE, prot=mmap.PROT_READ | mmap.PROT_WRITE),
            dtype=np.uint8,
        )
        weakref.finalize(mapping, os.close, descriptor)
        num_shared = sum(_share(one, mapping, descriptor if is_new else None) for one in weights)
        if is_new:
            fcntl.fcntl(descriptor, fcntl.F_ADD_SEALS, _SEALS)
        entries.add(f"{os.getpid()} {descriptor}")
    if num_shared < num_bytes // 2:
        logger.warning("of %d bytes of weights %d are those of other processes", num_bytes, num_shared)
    return num_shared


def _weights_of(root: object) -> tuple[list[_Weight], int]:
    """Return the weights in the order in which they are reached, and the size of memory for all of them."""
    by_place: dict[int, list[Tensor]] = {}
    for tensor in find_tensors(root):
        if tensor.device.type == "cpu" and tensor.layout == torch.strided:
            by_place.setdefault(tensor.untyped_storage().data_ptr(), []).append(tensor)
    weights, offset = list[_Weight](), 0
    for tensors in by_place.values():
        storage = tensors[0].untyped_storage()
        if storage.nbytes() >= MIN_BYTES and storage.nbytes() % _ALIGNMENT == 0:
            memory = torch.tensor([], dtype=torch.uint8).set_(storage).numpy()
            weights.append(_Weight(memory, tuple(tensors), offset))
            offset += memory.nbytes
    return weights, offset


def _share(weight: _Weight, mapping: np.ndarray, descriptor: int | None) -> int:
    """Have the tensors of a weight lie in the mapping; returns its bytes, 0 if it holds others.

    With a `descriptor` the weight is written there first.
    """
    shared = mapping[weight.place]
    if descriptor is not None:
        _write(descriptor, weight)
    elif not _is_same(weight.memory, shared):
        return 0
    base = torch.from_numpy(shared)
    for tensor in weight.tensors:
        flat = base.view(tensor.dtype)
        tensor.data = flat.as_strided(tensor.shape, tensor.stride(), tensor.storage_offset())
    return weight.memory.nbytes


def _write(descriptor: int, weight: _Weight) -> None:
    content, at = weight.memory.data, 0
    while at < len(content):
        try:
            at += os.pwrite(descriptor, content[at : at + _PIECE_BYTES], weight.offset + at)
        except OSError as error:
            text = f"share_weights is True, without memory for a copy of the weights ({error})"
            raise InvalidConfigError(f"{text}; allowed: False") from error


def _is_same(own: np.ndarray, shared: np.ndarray) -> bool:
    return all(
        np.array_equal(own[at : at + _PIECE_BYTES], shared[at : at + _PIECE_BYTES])
        for at in range(0, len(own), _PIECE_BYTES)
    )


def _own_folder() -> Path:
    folder = Path(tempfile.gettempdir()) / f"baton-weights-{os.getuid()}"
    folder.mkdir(mode=0o700, exist_ok=True)
    if folder.stat().st_uid != os.getuid():
        text = f"share_weights is True, and {folder} belongs to somebody else"
        raise InvalidConfigError(f"{text}; allowed: False")
    return folder


@contextmanager
def _locked(folder: Path, name: str) -> Iterator[set[str]]:
    """Give the processes and descriptors that have some weights, to be changed while nobody else can.

    Raises:
        TimeoutError: another process has them for too long.
    """
    descriptor = os.open(folder / name, os.O_RDWR | os.O_CREAT | os.O_CLOEXEC, 0o600)
    with open(descriptor, "r+", encoding="ascii") as file:
        deadline_s = time.monotonic() + WAIT_S
        while True:
            with suppress(BlockingIOError):
                fcntl.flock(file, fcntl.LOCK_EX | fcntl.LOCK_NB)
                break
            if time.monotonic() > deadline_s:
                raise TimeoutError(f"{folder / name} is locked for more than {WAIT_S:g} s")
            time.sleep(_WAIT_AGAIN_S)
        entries = set(file.read().splitlines())
        yield entries
        file.seek(0)
        file.truncate()
        file.write("".join(f"{entry}\n" for entry in sorted(entries)))


def _found(entries: set[str], name: str, num_bytes: int) -> int | None:
    """Return a new descriptor of memory that a process still has, and remove those that have gone."""
    for entry in sorted(entries):
        path = Path("/proc/{}/fd/{}".format(*entry.split(" ", 1)))
        with suppress(OSError, IndexError):
            if os.readlink(path).startswith(f"/memfd:{name} "):
                descriptor = os.open(path, os.O_RDONLY | os.O_CLOEXEC)
                if os.fstat(descriptor).st_size == num_bytes and _is_sealed(descriptor):
                    return descriptor
                os.close(descriptor)
        entries.discard(entry)
    return None


def _is_sealed(descriptor: int) -> bool:
    return fcntl.fcntl(descriptor, fcntl.F_GET_SEALS) & _SEALS == _SEALS
