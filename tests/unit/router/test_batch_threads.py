"""A thread that opens something for a call that is cancelled meanwhile closes it again."""

from __future__ import annotations

import asyncio
import threading
from io import BufferedWriter
from pathlib import Path

import pytest

from baton_core.errors import InvalidRequestError
from baton_router.batches.batch_limits import BatchLimits
from baton_router.batches.batches import Batches
from baton_router.batches.partial_results import PartialResults
from baton_router.batches.threads import opened
from tests.unit.router.test_batches import Asked, begin, lines, over, serving, until


@pytest.mark.parametrize("name", ["a", "none/a"], ids=["opens", "fails"])
async def test_what_opens_after_a_cancellation_is_closed(name: str, tmp_path: Path) -> None:
    begun, may_end = threading.Event(), threading.Event()
    files: list[BufferedWriter] = []

    def open_slowly() -> BufferedWriter:
        begun.set()
        assert may_end.wait(10)
        files.append((tmp_path / name).open("wb"))
        return files[0]

    task = asyncio.create_task(opened(open_slowly, BufferedWriter.close))
    await until(begun.is_set)
    task.cancel()
    may_end.set()
    with pytest.raises(asyncio.CancelledError):
        await task
    assert [file.closed for file in files] == [True] * (name == "a")


async def test_a_batch_cancelled_as_its_results_open_leaves_them_closed(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    begun, may_end = threading.Event(), threading.Event()
    opened_ones: list[PartialResults] = []
    read = PartialResults._read

    def read_slowly(results: PartialResults) -> None:
        opened_ones.append(results)
        begun.set()
        assert may_end.wait(10)
        read(results)

    monkeypatch.setattr(PartialResults, "_read", read_slowly)
    async with serving(tmp_path, Asked()) as served:
        batch = await begin(served, lines(2))
        await until(begun.is_set)
        await served.cancel(batch)
        may_end.set()
        await over(batch)
    assert batch.status == "cancelled"
    assert opened_ones[0]._file.closed


async def test_an_upload_that_cannot_open_its_file_counts_for_nothing(tmp_path: Path) -> None:
    files = Batches(BatchLimits(folder=str(tmp_path), max_files=1)).files
    tmp_path.rmdir()
    for _ in range(2):
        with pytest.raises(FileNotFoundError):
            async with files.begin(""):
                raise AssertionError("the folder is gone")
    tmp_path.mkdir()
    async with files.begin("") as upload:
        with pytest.raises(InvalidRequestError, match="files"):
            async with files.begin(""):
                raise AssertionError("one file is allowed")
        await upload.write(b"{}")
    assert not list(tmp_path.glob("*.tmp"))
