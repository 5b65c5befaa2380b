"""The memory of a pool that other processes may read: an anonymous file that dies with its last user.

Its pages can be given back to the system and taken back, in place: readers keep what they have mapped.
"""

from __future__ import annotations

import ctypes
import errno
import fcntl
import mmap
import os
from collections.abc import Callable
from typing import Final

from baton_core.errors import InvalidConfigError
from baton_kv.host_memory import available_bytes

_SEALS: Final = fcntl.F_SEAL_GROW | fcntl.F_SEAL_SHRINK | fcntl.F_SEAL_SEAL
"""None against writing: it would keep the pages from being given back."""
_OWNER_READS: Final = 0o400
_MADV_POPULATE_WRITE: Final = 23  # linux/mman.h, from Linux 5.14 on; the mmap module does not name it


Lend = Callable[[int], None]
"""Takes a descriptor through which the memory can be mapped for writing, valid during the call."""


def reserve_memory(num_bytes: int, lend: Lend | None = None) -> tuple[mmap.mmap, int]:
    """Reserve zeroed memory; return a writable mapping of it and a read-only descriptor to pass on.

    The caller closes the descriptor. From now on the size is fixed, and nobody but root can open the memory
    for writing; `lend` may have mapped it before.

    Raises:
        InvalidConfigError: the host or the cgroup does not have the memory.
    """
    available = available_bytes()
    if num_bytes > available:
        raise _too_large(num_bytes, available)
    file = os.memfd_create("baton-kv", os.MFD_CLOEXEC | os.MFD_ALLOW_SEALING)
    try:
        os.posix_fallocate(file, 0, num_bytes)
        memory = mmap.mmap(file, num_bytes)
        if lend is not None:
            lend(file)
        fcntl.fcntl(file, fcntl.F_ADD_SEALS, _SEALS)
        os.fchmod(file, _OWNER_READS)
        return memory, os.open(f"/proc/self/fd/{file}", os.O_RDONLY | os.O_CLOEXEC)
    except OSError as error:
        if error.errno not in (errno.ENOSPC, errno.ENOMEM):
            raise
        raise _too_large(num_bytes, available) from error
    finally:
        os.close(file)


def map_read_only(file: int, num_bytes: int) -> mmap.mmap:
    """Map what a producer passed on.

    Raises:
        ValueError: another size, or memory that could still shrink under its readers.
    """
    size = os.fstat(file).st_size
    if size != num_bytes:
        raise ValueError(f"size is {size}; allowed: {num_bytes}")
    seals = fcntl.fcntl(file, fcntl.F_GET_SEALS)
    if not seals & fcntl.F_SEAL_SHRINK:
        raise ValueError(f"seals are {seals:#x}; allowed: at least {fcntl.F_SEAL_SHRINK:#x} (shrink)")
    return mmap.mmap(file, num_bytes, prot=mmap.PROT_READ)


def give_back(address: int, num_bytes: int) -> None:
    """Give the whole pages of reserved memory back to the system; they are zeros from now on.

    For every process that has mapped them: nobody may need what they hold.
    """
    _advise(address, num_bytes, mmap.MADV_REMOVE)


def take_back(address: int, num_bytes: int) -> None:
    """Reserve again what was given back.

    Raises:
        InvalidConfigError: the host or the cgroup does not have the memory.
    """
    available = available_bytes()
    if num_bytes > available:
        raise _too_large(num_bytes, available)
    try:
        _advise(address, num_bytes, _MADV_POPULATE_WRITE)
    except OSError as error:
        if error.errno == errno.EINVAL:
            return  # an older kernel: each page comes with its first use
        raise _too_large(num_bytes, available) from error


def _advise(address: int, num_bytes: int, advice: int) -> None:
    """Tell the system about the pages that lie wholly in this memory."""
    start = -(-address // mmap.PAGESIZE) * mmap.PAGESIZE
    end = (address + num_bytes) // mmap.PAGESIZE * mmap.PAGESIZE
    if start >= end:
        return
    libc = ctypes.CDLL(None, use_errno=True)
    if libc.madvise(ctypes.c_void_p(start), ctypes.c_size_t(end - start), advice):
        number = ctypes.get_errno()
        raise OSError(number, os.strerror(number))


def _too_large(num_bytes: int, available: int) -> InvalidConfigError:
    return InvalidConfigError(
        f"size of the KV pool is {num_bytes} bytes; allowed: at most the {available} bytes available "
        "to this process"
    )
