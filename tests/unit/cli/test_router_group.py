"""Where the processes of one router find each other."""

from __future__ import annotations

import asyncio
import os
import tempfile
from pathlib import Path
from typing import Any

import pytest

from baton.processes.router_group import RouterGroup

MAX_SOCKET_PATH_BYTES = 107


@pytest.mark.parametrize("name", ["x" * 150, "ä" * 75])
def test_sockets_have_short_paths_however_long_that_of_temporary_files_is(
    name: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    folders: list[str] = []

    async def refuse(*command: str, **_: Any) -> None:
        folders.append(command[command.index("--group-member") + 1].removeprefix("0:"))
        raise OSError(11, "too many processes")

    (tmp_path / name).mkdir()
    monkeypatch.setattr(tempfile, "tempdir", str(tmp_path / name))
    monkeypatch.setattr(asyncio, "create_subprocess_exec", refuse)

    async def scenario() -> int:
        return await RouterGroup((), 2, stop_within_s=0).run()

    assert asyncio.run(scenario()) == 1
    (folder,) = folders
    assert len(os.fsencode(f"{folder}/1023.sock")) <= MAX_SOCKET_PATH_BYTES
