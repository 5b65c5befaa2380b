"""Batches whose output or record a disk refuses for a while: they keep their answers, and end later."""

from __future__ import annotations

import asyncio
import errno
import os
import re
from collections import Counter
from collections.abc import Iterable
from pathlib import Path
from typing import Any

import pytest

from baton_core.errors import ErrorCode, RequestError
from baton_router.batches import batch_end, batches, outputs, record_folder
from baton_router.batches.batch_limits import BatchLimits
from baton_router.batches.batches import Batches
from baton_router.batches.record_folder import RecordFolder, write_whole
from baton_router.core.batches.batch import BatchStatus
from tests.full_disk import full_disk
from tests.unit.router.test_batches import Asked, begin, ids, lines, names, over, serving, until, written


class Disk:
    """Refuses files that have one of some texts, and counts how often."""

    def __init__(self) -> None:
        self.refused: tuple[str, ...] = ()
        self.num_refused = 0

    def write_whole(self, path: Path, pieces: Iterable[bytes]) -> Any:
        content = list(pieces)
        if any(text.encode() in b"".join(content) for text in self.refused):
            self.num_refused += 1
            raise OSError(errno.EIO, "Input/output error")
        return write_whole(path, content)


@pytest.fixture
def disk(monkeypatch: pytest.MonkeyPatch) -> Disk:
    disk = Disk()
    monkeypatch.setattr(batches, "_LOOK_EVERY_S", 0.02)
    monkeypatch.setattr(batch_end, "_PAUSE_S", 0.005)
    monkeypatch.setattr(batch_end, "_LONGEST_PAUSE_S", 0.01)
    for module in (outputs, record_folder):
        monkeypatch.setattr(module, "write_whole", disk.write_whole)
    return disk


def seen_elsewhere(folder: Path) -> BatchStatus:
    (batch,) = Batches(BatchLimits(folder=str(folder))).batches_of("")
    return batch.status


ANSWERS = '"response"'
"""A text that output files have, and records have not."""


async def test_a_batch_whose_output_cannot_be_written_is_tried_until_it_can(
    tmp_path: Path, disk: Disk
) -> None:
    asked = Asked()
    async with serving(tmp_path, asked) as served:
        disk.refused = (ANSWERS,)
        batch = await begin(served, lines(5))
        await until(lambda: disk.num_refused >= 4)
        assert batch.status is seen_elsewhere(tmp_path) is BatchStatus.FINALIZING
        assert batch.output_file_id is None
        assert names(tmp_path, "*.partial")
        disk.refused = ()
        await over(batch)
        assert (batch.status, batch.errors) == (BatchStatus.COMPLETED, None)
        assert ids(written(served, batch.output_file_id)) == [f"l{index}" for index in range(5)]
        await until(lambda: not [one for one in tmp_path.iterdir() if one.suffix not in ("", ".json")])
    assert asked.prompts == Counter({f":p{index}": 1 for index in range(5)})


async def test_a_router_that_starts_again_writes_what_could_not_be_written(
    tmp_path: Path, disk: Disk
) -> None:
    asked = Asked()
    async with serving(tmp_path, asked) as served:
        disk.refused = (ANSWERS,)
        await begin(served, lines(5))
        await until(lambda: disk.num_refused >= 2)
    disk.refused = ()
    async with serving(tmp_path, asked) as served:
        await until(lambda: served.batches_of("")[0].is_over)
        (batch,) = served.batches_of("")
        assert (batch.status, batch.request_counts.completed) == (BatchStatus.COMPLETED, 5)
        assert len(written(served, batch.output_file_id)) == 5
    assert asked.prompts.total() == 5


async def test_a_batch_shows_its_end_once_its_record_has_it(tmp_path: Path, disk: Disk) -> None:
    async with serving(tmp_path, Asked()) as served:
        disk.refused = ('"status":"completed"',)
        batch = await begin(served, lines(5))
        await until(lambda: disk.num_refused >= 3)
        assert batch.status is seen_elsewhere(tmp_path) is BatchStatus.FINALIZING
        disk.refused = ()
        await over(batch)
        assert seen_elsewhere(tmp_path) is BatchStatus.COMPLETED
        assert served.find("", batch.id) is batch
        await until(lambda: not names(tmp_path, "*.lease"))


async def test_records_of_a_batch_that_goes_on_may_be_refused(tmp_path: Path, disk: Disk) -> None:
    async with serving(tmp_path, Asked()) as served:
        disk.refused = ('"status":"in_progress"', '"status":"finalizing"')
        batch = await begin(served, lines(5))
        await over(batch)
        assert (batch.status, batch.errors) == (BatchStatus.COMPLETED, None)
        assert disk.num_refused >= 2
        assert len(written(served, batch.output_file_id)) == 5


@pytest.mark.slow
async def test_a_batch_that_expires_before_its_turn_names_each_line_once(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    async def never(body: dict[str, Any]) -> int:
        await asyncio.Event().wait()
        return 200

    async with serving(tmp_path, Asked(never)) as served:
        await begin(served, lines(1))
        monkeypatch.setattr(batches, "WINDOW_S", 1)
        batch = await begin(served, lines(2) + lines(1) + b"{}\n")
        assert batch.status is BatchStatus.VALIDATING
        await over(batch)
        assert (batch.status, batch.output_file_id) == (BatchStatus.EXPIRED, None)
        errors = written(served, batch.error_file_id)
        assert ids(errors) == ["l0", "l1"]
        assert {one["error"]["code"] for one in errors} == {"batch_expired"}


async def test_a_failure_and_its_reason_are_shown_once_their_record_is_written(
    tmp_path: Path, disk: Disk
) -> None:
    async with serving(tmp_path, Asked()) as served:
        disk.refused = ('"status":"failed"',)
        with full_disk(2000):
            batch = await begin(served, lines(12))
            await until(lambda: disk.num_refused >= 2)
            assert (batch.status, batch.errors) == (BatchStatus.IN_PROGRESS, None)
            disk.refused = ()
            await over(batch)
        assert batch.errors is not None
        told = r"--files-directory has the results of the batch; allowed: where there is room \([\w ]+\)"
        assert re.fullmatch(told, batch.errors.data[0].message)
        assert (batch.request_counts.total, batch.status) == (12, BatchStatus.FAILED)


async def test_a_batch_whose_input_is_gone_has_an_end(tmp_path: Path, disk: Disk) -> None:
    async def fails(body: dict[str, Any]) -> int:
        for name in names(tmp_path, "file-*"):
            (tmp_path / name).unlink()
        raise RequestError(ErrorCode.INTERNAL, "no room")

    async with serving(tmp_path, Asked(fails)) as served:
        batch = await begin(served, lines(2))
        await over(batch)
        assert batch.status is BatchStatus.FAILED


@pytest.mark.parametrize("name", ["file-1", "batch_1.partial"])
def test_a_start_removes_old_content_only_where_there_is_no_record(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, name: str
) -> None:
    content, record = tmp_path / name, tmp_path / f"{Path(name).stem}.json"
    content.touch()
    os.utime(content, (0, 0))

    def start() -> bool:
        Batches(BatchLimits(folder=str(tmp_path)))
        return content.exists()

    record.write_text('{"of": "another version"}')
    assert start()

    def fails(path: Path) -> bytes:
        raise OSError(errno.ESTALE, "Stale file handle")

    with monkeypatch.context() as network:
        network.setattr(Path, "read_bytes", fails)
        assert start()
    record.unlink()
    assert not start()


def test_a_file_that_does_not_fit_leaves_nothing_on_the_disk(tmp_path: Path) -> None:
    path = tmp_path / "kept.json"
    write_whole(path, [b"old"])
    with full_disk(100), pytest.raises(OSError, match="File too large"):
        write_whole(path, [b"a" * 60] * 3)
    assert names(RecordFolder(str(tmp_path)).path, "*") == ["kept.json"]
    assert path.read_bytes() == b"old"
