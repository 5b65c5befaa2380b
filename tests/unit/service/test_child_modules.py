"""Modules that a child process imports: those of its parent, in its order."""

from __future__ import annotations

import subprocess
import sys
from pathlib import Path

import pytest

from baton_service.process import child_environment, module_command


def run(module: str, folder: Path) -> str:
    environment = child_environment()
    command = module_command(module)
    return subprocess.run(
        command, cwd=folder, env=environment, check=True, capture_output=True
    ).stdout.decode()


def test_a_child_imports_as_its_parent_does(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    beside, current = tmp_path / "beside", tmp_path / "current"
    for folder in (beside, current):
        folder.mkdir()
        (folder / "asking.py").write_text("import queue; print(__file__, queue.__file__)")
    (current / "queue.py").write_text("raise RuntimeError('not the one of Python')")
    (current / "found.py").write_text("print(__file__)")
    monkeypatch.setattr(sys, "path", [str(beside), *sys.path])
    monkeypatch.chdir(current)
    assert run("asking", current).startswith(f"{beside / 'asking.py'} ")
    assert run("found", current).strip() == str(current / "found.py")
