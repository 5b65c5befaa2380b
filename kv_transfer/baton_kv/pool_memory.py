"""The memory of a pool that other processes may read: an anonymous file that dies with its last user."""

from __future__ import annotations

import errno
import fcntl
import mmap
import os
from typing import Final

from baton_core.errors import InvalidConfigError
from baton_kv.host_memory import available_bytes

_F_SEAL_FUTURE_WRITE: Final = 0x10  # linux/fcntl.h; the fcntl module names it from Python 3.13 on
_SEALS: Final = fcntl.F_SEAL_GROW | fcntl.F_SEAL_SHRINK | _F_SEAL_FUTURE_WRITE | fcntl.F_SEAL_SEAL


def reserve_memory(num_bytes: int) -> tuple[mmap.mmap, int]:
    """Reserve zeroed memory; return its only writable mapping and a read-only descriptor to pass on.

    The caller closes the descriptor. From now on the size is fixed and no other writable mapping can be made.

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
        fcntl.fcntl(file, fcntl.F_ADD_SEALS, _SEALS)
        return memory, os.open(f"/proc/self/fd/{file}", os.O_RDONLY | os.O_CLOEXEC)
    except OSError as error:
        if error.errno not in (errno.ENOSPC, errno.ENOMEM):
            raise
        raise _too_large(num_bytes, available) from error
    finally:
        os.close(file)


def map_read_only(file: int, num_bytes: int) -> mmap.mmap:
    """Map what a holder passed on.

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


def _too_large(num_bytes: int, available: int) -> InvalidConfigError:
    return InvalidConfigError(
        f"size of the KV pool is {num_bytes} bytes; allowed: at most the {available} bytes available "
        "to this process"
    )
