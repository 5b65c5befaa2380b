"""Folders of tensors: what deletes them, and what does not."""

from __future__ import annotations

import errno
import fcntl
import os
import signal
import tempfile
from collections.abc import Callable
from pathlib import Path

import pytest
from torch import ones

from baton.api.weight_updates import _TensorFolder


@pytest.fixture(autouse=True)
def temporary(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    monkeypatch.setattr(tempfile, "tempdir", str(tmp_path))
    return tmp_path


def in_fork(do: Callable[[], None]) -> int:
    """Do it in a forked process; return how that ended."""
    pid = os.fork()
    if pid == 0:
        try:
            do()
        finally:
            os._exit(0)
    return os.waitstatus_to_exitcode(os.waitpid(pid, 0)[1])


def test_a_forked_process_that_ends_leaves_its_parents_tensors(temporary: Path) -> None:
    folder: _TensorFolder | None = _TensorFolder()

    def forget() -> None:
        nonlocal folder
        folder = None

    assert folder is not None
    folder.add({"a": ones(2)})
    assert in_fork(forget) == 0
    assert (Path(folder.path) / "model.safetensors.index.json").exists()
    folder = None
    assert not list(temporary.iterdir())


def test_where_folders_cannot_be_locked_each_process_deletes_its_own(
    temporary: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    def refuse(*_: object) -> None:
        raise OSError(errno.EBADF, "as NFS says of folders")

    monkeypatch.setattr(fcntl, "flock", refuse)
    folders = [_TensorFolder(), _TensorFolder()]
    assert {path.name for path in temporary.iterdir()} == {Path(folder.path).name for folder in folders}
    folders.clear()
    assert not list(temporary.iterdir())


def test_tensors_of_a_killed_process_are_deleted_with_the_next_update(temporary: Path) -> None:
    mine = _TensorFolder()

    def die() -> None:
        theirs = _TensorFolder()
        theirs.add({"a": ones(2)})
        os.kill(os.getpid(), signal.SIGKILL)

    assert in_fork(die) == -signal.SIGKILL
    assert len(list(temporary.iterdir())) == 2
    other = _TensorFolder()
    assert set(temporary.iterdir()) == {Path(mine.path), Path(other.path)}
