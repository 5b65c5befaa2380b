"""Builds the CPU kernels with the system's compiler and keeps them in a cache folder of the user.

A build's name holds a hash of the sources, the structs, the flags and the compiler, so a change of any makes
another build. Several processes may ask for the same one at once: the first builds, under a file lock.
"""

from __future__ import annotations

import errno
import fcntl
import hashlib
import logging
import os
import platform
import shlex
import shutil
import stat
import subprocess
from pathlib import Path
from typing import Final

from baton_kernels.cpu.structs import c_header
from baton_kernels.cpu.variants import CpuVariant

logger = logging.getLogger(__name__)
SOURCES: Final = Path(__file__).parent / "sources"
_COMPILERS: Final = ("c++", "g++", "clang++")
_FLAGS: Final = ("-std=c++17", "-O3", "-fPIC", "-shared", "-pthread", "-fno-strict-aliasing", "-Wno-psabi")
_TIMEOUT_S: Final = 600
"""The compiler needs about a minute of CPU time, and on a busy machine several times as long."""
_MIN_FREE_BYTES: Final = 8 * 2**20
"""Free space with which a build begins: a full disk would end it only after minutes."""


class BuildError(Exception):
    """The kernels cannot be built or used here; the message says why."""


class BuildTimeoutError(BuildError):
    """The compiler hangs, whatever it is asked to build."""


class UnloadableBuildError(BuildError):
    """The system does not load a build, be it damaged or in a place from which nothing is run."""


def cache_folder() -> Path:
    """Return the folder of builds: below `$VLLM_CACHE_ROOT` or `$XDG_CACHE_HOME`, else below ~/.cache."""
    base = os.environ.get("VLLM_CACHE_ROOT") or os.environ.get("XDG_CACHE_HOME") or "~/.cache"
    return Path(base).expanduser() / "baton" / "cpu_kernels"


def build(variant: CpuVariant, folder: Path | None = None, extra_flags: tuple[str, ...] = ()) -> Path:
    """Return the variant's shared library in `folder`, built if it is not there yet.

    Raises:
        BuildError: there is no compiler, it fails, or the folder cannot be written or trusted.
        BuildTimeoutError: the compiler does not end.
    """
    compiler = _find_compiler()
    flags = (*_FLAGS, *variant.compiler_flags, *extra_flags)
    try:
        folder = _private_folder(folder or cache_folder())
        library = folder / f"{variant.name}-{_digest(compiler, flags)}.so"
        if not library.exists():
            with library.with_suffix(".lock").open("w") as lock:
                fcntl.flock(lock, fcntl.LOCK_EX)
                if not library.exists():
                    _compile(compiler, flags, library)
    except (OSError, RuntimeError) as error:
        raise BuildError(f"the cache folder of CPU kernels cannot be used: {error}") from error
    except subprocess.TimeoutExpired as error:
        reason = f"{shlex.join(compiler)} took more than {_TIMEOUT_S} s for the CPU kernels"
        raise BuildTimeoutError(reason) from error
    return library


def _find_compiler() -> tuple[str, ...]:
    """Return the compiler's path, and the arguments that $CXX has behind it."""
    given = os.environ.get("CXX", "")
    try:
        name, *arguments = shlex.split(given) or [""]
    except ValueError as error:
        raise BuildError(f"CXX is {given!r}: {error}") from error
    found = next(filter(None, map(shutil.which, [name] if name else _COMPILERS)), None)
    if found is None:
        reason = f"CXX is {given!r}, which is not there" if name else "no C++ compiler found"
        raise BuildError(f"{reason}; allowed: $CXX or one of {', '.join(_COMPILERS)} on the path")
    return (found, *arguments)


def _digest(compiler: tuple[str, ...], flags: tuple[str, ...]) -> str:
    """Return a hash of everything that the machine code depends on, in 16 digits."""
    version = subprocess.run([*compiler, "--version"], capture_output=True, timeout=_TIMEOUT_S).stdout
    content = hashlib.sha256(version + repr((compiler, flags, platform.machine())).encode())
    content.update(c_header().encode())
    for source in sorted(SOURCES.iterdir()):
        content.update(source.name.encode() + source.read_bytes())
    return content.hexdigest()[:16]


def _private_folder(folder: Path) -> Path:
    """Make the folder. What lies in it is run, so no other user may write there or put another in its place.

    Raises:
        PermissionError: another user may, or nothing is run from there.
    """
    for missing in [path for path in (folder, *folder.parents) if not path.exists()][::-1]:
        missing.mkdir(mode=0o700, exist_ok=True)
    folder = folder.resolve()
    system_user = Path("/").stat().st_uid  # not 0 in a user namespace that lacks root
    for path in (folder, *folder.parents):
        status = path.stat()
        if status.st_uid not in (0, os.geteuid(), system_user):
            raise PermissionError(f"{path} belongs to user {status.st_uid}; allowed: {os.geteuid()} or root")
        others = _others_who_may_write(status)
        if others and not (path != folder and status.st_mode & stat.S_ISVTX):
            raise PermissionError(
                f"{path} is writable by {others}, who may replace what lies there; allowed: user "
                f"{os.geteuid()} and root alone, the user's own group (its main one, of the same number), or "
                "above the cache the sticky bit"
            )
    if os.statvfs(folder).f_flag & os.ST_NOEXEC:
        raise PermissionError(
            f"{folder} is on a file system mounted noexec; allowed: one that files run from"
        )
    return folder


def _others_who_may_write(status: os.stat_result) -> str:
    """Return who else than the owner and the user's own group may write; empty: nobody.

    A group is the user's own if it is its main one and has its number, as `useradd` makes it.
    """
    if status.st_mode & stat.S_IWOTH:
        return "everybody"
    is_own = 0 < os.geteuid() == os.getegid() == status.st_gid
    return f"group {status.st_gid}" if status.st_mode & stat.S_IWGRP and not is_own else ""


def _require_space(folder: Path) -> None:
    """Refuse to begin a build that a full disk would end; a file system without a size tells nothing."""
    space = os.statvfs(folder)
    num_blocks = space.f_bavail if os.geteuid() else space.f_bfree  # root may fill what is reserved
    num_free = num_blocks * space.f_frsize
    if space.f_blocks and num_free < _MIN_FREE_BYTES:
        raise OSError(
            errno.ENOSPC,
            f"{folder} has {num_free} bytes free; allowed: {_MIN_FREE_BYTES} or more for a build",
        )


def _compile(compiler: tuple[str, ...], flags: tuple[str, ...], library: Path) -> None:
    """Compile with the header of the structs, and rename the library into place. The caller has its lock."""
    _require_space(library.parent)
    logger.info("building the C++ kernels for this CPU, once: %s", library.stem.rpartition("-")[0])
    folder = library.with_suffix(".unfinished")
    shutil.rmtree(folder, ignore_errors=True)  # of a build that was killed
    folder.mkdir(mode=0o700)
    try:
        (folder / "structs.h").write_text(c_header())
        unfinished = folder / library.name
        command = [*compiler, *flags, f"-I{folder}", str(SOURCES / "kernels.cpp"), "-o", str(unfinished)]
        done = subprocess.run(command, capture_output=True, text=True, timeout=_TIMEOUT_S)
        if done.returncode:
            reason = next((line for line in done.stderr.splitlines() if "error" in line), done.stderr[-200:])
            raise BuildError(f"{shlex.join(compiler)} cannot build {library.name}: {reason}")
        with unfinished.open("rb") as file:
            os.fsync(file.fileno())  # a machine that goes down leaves the whole library or none
        unfinished.replace(library)
    finally:
        shutil.rmtree(folder, ignore_errors=True)
