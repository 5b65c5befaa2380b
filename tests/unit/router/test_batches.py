"""The files and batches of a router, on a disk, with a function that answers."""

from __future__ import annotations

import asyncio
import json
import multiprocessing
from collections import Counter
from collections.abc import AsyncIterator, Awaitable, Callable
from contextlib import asynccontextmanager
from pathlib import Path
from typing import Any

import pytest

from baton_core.errors import InvalidRequestError
from baton_router.batches import batches as module
from baton_router.batches.batch_limits import BatchLimits
from baton_router.batches.batches import Batches
from baton_router.batches.file_store import FileObject
from baton_router.core.batches.batch import Batch, BatchStatus, RequestCounts

URL = "/v1/completions"
pytestmark = pytest.mark.usefixtures("looking_often")
Answer = Callable[[dict[str, Any]], Awaitable[int]]


async def at_once(body: dict[str, Any]) -> int:
    return body.get("status", 200)


class Asked:
    """Counts what is asked, and answers with a status and the body."""

    def __init__(self, answer: Answer = at_once) -> None:
        self.prompts: Counter[str] = Counter()
        self.num_running = self.most_running = 0
        self._answer = answer

    async def __call__(self, tenant: str, url: str, content: bytes, request_id: str) -> tuple[int, bytes]:
        body = json.loads(content)
        self.num_running += 1
        self.most_running = max(self.most_running, self.num_running)
        try:
            await asyncio.sleep(0)
            status = await self._answer(body)
        finally:
            self.num_running -= 1
        self.prompts[f"{tenant}:{body['prompt']}"] += 1
        return status, content


@pytest.fixture
def looking_often(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(module, "_LOOK_EVERY_S", 0.02)


@asynccontextmanager
async def serving(folder: Path, asked: Asked, **limits: Any) -> AsyncIterator[Batches]:
    batches = Batches(BatchLimits(folder=str(folder), **{"max_inflight": 3, **limits}))
    batches.start(asked, {URL: {"priority": 4}})
    try:
        yield batches
    finally:
        await batches.stop()


async def upload(batches: Batches, content: bytes, tenant: str = "") -> FileObject:
    async with batches.files.begin(tenant) as new:
        await new.write(content)
        return await new.finish("in.jsonl", "batch", None)


def lines(number: int, **body: object) -> bytes:
    return b"".join(
        json.dumps(
            {"custom_id": f"l{index}", "method": "POST", "url": URL, "body": {"prompt": f"p{index}", **body}}
        ).encode()
        + b"\n"
        for index in range(number)
    )


async def begin(batches: Batches, content: bytes, tenant: str = "") -> Batch:
    file = await upload(batches, content, tenant)
    return await batches.create(tenant, file, URL, None, None)


async def until(condition: Callable[[], bool]) -> None:
    async with asyncio.timeout(20):
        while not condition():  # noqa: ASYNC110 (what is waited for raises no event)
            await asyncio.sleep(0.005)


async def over(batch: Batch) -> None:
    await until(lambda: batch.is_over)


def names(folder: Path, pattern: str) -> list[str]:
    return [path.name for path in folder.glob(pattern)]


def written(batches: Batches, file_id: str | None) -> list[dict[str, Any]]:
    if file_id is None:
        return []
    return [json.loads(one) for one in batches.files.path(file_id).read_bytes().splitlines()]


def ids(results: list[dict[str, Any]]) -> list[str]:
    return sorted(one["custom_id"] for one in results)


async def test_a_router_that_starts_again_asks_only_what_has_no_result(tmp_path: Path) -> None:
    gate = asyncio.Semaphore(17)

    async def some(body: dict[str, Any]) -> int:
        await gate.acquire()
        return await at_once(body)

    first = Asked(some)
    (tmp_path / "files").mkdir(mode=0o755)
    async with serving(tmp_path / "files", first) as batches:
        begun = await begin(batches, lines(40), "t")
        await until(lambda: (begun.request_counts.completed, first.num_running) == (17, 3))
        assert (begun.status, first.prompts.total()) == (BatchStatus.IN_PROGRESS, 17)
    assert {path.stat().st_mode & 0o777 for path in (tmp_path / "files").iterdir()} == {0o600}
    second = Asked()
    async with serving(tmp_path / "files", second) as batches:
        await until(lambda: batches.batches_of("t")[0].is_over)
        (batch,) = batches.batches_of("t")
        assert (batch.id, batch.status) == (begun.id, BatchStatus.COMPLETED)
        assert (batch.request_counts.total, batch.request_counts.completed) == (40, 40)
        results = written(batches, batch.output_file_id)
        assert batches.find("other", batch.id) is None
    assert ids(results) == sorted(f"l{index}" for index in range(40))
    assert first.prompts + second.prompts == {f"t:p{index}": 1 for index in range(40)}
    assert first.most_running == 3
    assert results[0]["response"]["body"]["priority"] == 4


async def test_routers_that_share_a_folder_see_the_same_and_ask_each_line_once(tmp_path: Path) -> None:
    gate = asyncio.Event()

    async def at_gate(body: dict[str, Any]) -> int:
        if body["prompt"] > "p5":
            await gate.wait()
        return await at_once(body)

    asked = Asked(at_gate), Asked()
    async with serving(tmp_path, asked[0]) as one, serving(tmp_path, asked[1]) as other:

        async def seen(status: BatchStatus, num_done: int) -> Batch:
            async with asyncio.timeout(20):
                while True:
                    await other.refresh()
                    batch = other.find("", begun.id)
                    if batch and (batch.status, batch.request_counts.completed) == (status, num_done):
                        return batch
                    await asyncio.sleep(0.01)

        begun = await begin(one, lines(9))
        await seen(BatchStatus.IN_PROGRESS, 6)
        file = other.files.find("", begun.input_file_id)
        assert file is not None
        assert file == one.files.find("", file.id)
        assert other.files.is_read(file.id)
        gate.set()
        batch = await seen(BatchStatus.COMPLETED, 9)
        assert ids(written(other, batch.output_file_id)) == [f"l{index}" for index in range(9)]
        assert (asked[0].prompts.total(), asked[1].prompts.total()) == (9, 0)
        await other.files.delete(file.id)
        await one.refresh()
        assert one.files.find("", file.id) is None

        gate.clear()
        begun = await begin(one, lines(9))
        batch = await seen(BatchStatus.IN_PROGRESS, 6)
        assert (await other.cancel(batch)).status is BatchStatus.CANCELLING
        await over(begun)
        assert (begun.status, begun.request_counts.failed) == (BatchStatus.CANCELLED, 3)
        await seen(BatchStatus.CANCELLED, 6)
        await until(lambda: not [path for path in tmp_path.iterdir() if path.suffix not in ("", ".json")])


def _answer_five(folder: str) -> None:
    """Run a router until it is killed; its sixth line has no answer."""

    async def serve() -> None:
        gate = asyncio.Semaphore(5)

        async def some(body: dict[str, Any]) -> int:
            await gate.acquire()
            return await at_once(body)

        async with serving(Path(folder), Asked(some)) as batches:
            await begin(batches, lines(12))
            await asyncio.Event().wait()

    asyncio.run(serve())


@pytest.mark.slow
async def test_another_router_goes_on_with_the_batch_of_one_that_is_killed(tmp_path: Path) -> None:
    killed = multiprocessing.get_context("spawn").Process(target=_answer_five, args=(str(tmp_path),))
    asked = Asked()
    async with serving(tmp_path, asked) as batches:

        def num_kept() -> int:
            return sum(path.read_bytes().count(b"\n") for path in tmp_path.glob("*.partial"))

        killed.start()
        await until(lambda: num_kept() == 5)
        await batches.refresh()
        (batch,) = batches.batches_of("")
        assert (batch.status, asked.prompts.total()) == (BatchStatus.IN_PROGRESS, 0)
        killed.kill()
        await until(lambda: batches.batches_of("")[0].is_over)
        (batch,) = batches.batches_of("")
        assert (batch.status, batch.request_counts.completed) == (BatchStatus.COMPLETED, 12)
        assert len(written(batches, batch.output_file_id)) == len(asked.prompts) + 5 == 12
        assert max(asked.prompts.values()) == 1
    killed.join()


async def test_a_cancelled_batch_keeps_its_answers_and_names_the_rest(tmp_path: Path) -> None:
    async def some(body: dict[str, Any]) -> int:
        if body["prompt"] > "p4":
            await asyncio.Event().wait()
        return 400 if body["prompt"] == "p1" else 200

    async with serving(tmp_path, Asked(some)) as batches:
        batch = await begin(batches, lines(9))
        waiting = await begin(batches, lines(2))
        await until(lambda: batch.request_counts.completed == 4)
        assert batches.files.is_read(batch.input_file_id)
        for one in (waiting, batch):
            await batches.cancel(one)
            await batches.cancel(one)
            await over(one)
            await batches.cancel(one)
            assert one.status is BatchStatus.CANCELLED
        assert waiting.request_counts == RequestCounts(total=2, completed=0, failed=2)
        assert batch.request_counts == RequestCounts(total=9, completed=4, failed=5)
        assert waiting.output_file_id is None
        assert ids(written(batches, waiting.error_file_id)) == ["l0", "l1"]
        assert ids(written(batches, batch.output_file_id)) == ["l0", "l2", "l3", "l4"]
        errors = {one["custom_id"]: one["error"]["code"] for one in written(batches, batch.error_file_id)}
        assert errors == {"l1": "400", **dict.fromkeys(("l5", "l6", "l7", "l8"), "batch_cancelled")}
        await until(lambda: not names(tmp_path, "*.partial"))
        assert not batches.files.is_read(batch.input_file_id)


async def test_batches_of_other_keys_do_not_wait_for_a_long_one(tmp_path: Path) -> None:
    async def slowly(body: dict[str, Any]) -> int:
        await asyncio.sleep(0.001)
        return 200

    async with serving(tmp_path, Asked(slowly)) as batches:
        long = await begin(batches, lines(400), "a")
        short = await begin(batches, lines(5), "b")
        await over(short)
        assert short.status is BatchStatus.COMPLETED
        assert not long.is_over


@pytest.mark.slow
async def test_a_batch_expires_with_what_it_has(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(module, "WINDOW_S", 2)

    async def one(body: dict[str, Any]) -> int:
        if body["prompt"] != "p0":
            await asyncio.Event().wait()
        return 200

    async with serving(tmp_path, Asked(one)) as batches:
        batch = await begin(batches, lines(3))
        await over(batch)
        assert batch.status is BatchStatus.EXPIRED
        assert ids(written(batches, batch.output_file_id)) == ["l0"]
        errors = written(batches, batch.error_file_id)
        assert {(one["custom_id"], one["error"]["code"]) for one in errors} == {
            ("l1", "batch_expired"),
            ("l2", "batch_expired"),
        }


async def test_wrong_lines_fail_a_batch_and_none_is_sent(tmp_path: Path) -> None:
    asked = Asked()
    async with serving(tmp_path, asked) as batches:
        batch = await begin(batches, b"\n" + lines(2) + b" \n{}\n")
        await over(batch)
        assert batch.status is BatchStatus.FAILED
        assert batch.errors is not None
        (error,) = batch.errors.data
        assert error.line == 5
        assert error.message.startswith("line 5: ")
        assert (batch.output_file_id, batch.error_file_id) == (None, None)
    assert not asked.prompts


async def test_a_fault_of_the_router_ends_a_batch_too(tmp_path: Path) -> None:
    async def breaks(body: dict[str, Any]) -> int:
        raise RuntimeError(body["prompt"])

    async with serving(tmp_path, Asked(breaks)) as batches:
        batch = await begin(batches, lines(2))
        await over(batch)
        assert batch.status is BatchStatus.FAILED
        assert batch.errors is not None
        assert batch.errors.data[0].message == "internal error; the router's log has the cause"
        assert ids(written(batches, batch.error_file_id)) == ["l0", "l1"]


async def test_results_that_are_too_many_fail_a_batch(tmp_path: Path) -> None:
    async with serving(tmp_path, Asked(), max_files_bytes=3000) as batches:
        batch = await begin(batches, lines(12))
        await over(batch)
        assert batch.status is BatchStatus.FAILED
        assert batch.errors is not None
        assert "--max-files-bytes is 3000" in batch.errors.data[0].message
        answers = written(batches, batch.output_file_id)
        assert batch.request_counts.completed == len(answers)
        results = answers + written(batches, batch.error_file_id)
        assert len(results) == 12
        assert len({one["custom_id"] for one in results}) == 12


async def test_files_are_bounded_and_old_ones_go(tmp_path: Path) -> None:
    limits = {"max_file_bytes": 100, "max_files": 2, "max_files_bytes": 150}
    async with serving(tmp_path, Asked(), **limits) as batches:
        with pytest.raises(InvalidRequestError, match="file is 'too large'; allowed: at most 100 bytes"):
            await upload(batches, b"a" * 101)
        kept = await upload(batches, b"a" * 90)
        with pytest.raises(InvalidRequestError, match="--max-files-bytes is 150"):
            await upload(batches, b"a" * 90)
        await upload(batches, b"a" * 90, "another key")
        async with batches.files.begin("") as unfinished:
            await unfinished.write(b"a" * 60)
            with pytest.raises(InvalidRequestError, match=r"--max-files\): delete some"):
                batches.files.begin("")
        await upload(batches, b"a" * 60)
        assert [file.bytes for file in batches.files.files_of("")] == [90, 60]
        kept.expires_at = 1
        await batches.refresh()
        assert [file.bytes for file in batches.files.files_of("")] == [60]
        assert len(names(tmp_path, "file-*")) == 4, "two files and their records"


async def test_batches_that_are_over_make_room(tmp_path: Path) -> None:
    async with serving(tmp_path, Asked(), max_batches=2) as batches:
        made = []
        for _ in range(4):
            made.append(await begin(batches, lines(1)))
            await over(made[-1])
        assert [batch.id for batch in batches.batches_of("")] == [batch.id for batch in made[2:]]
        with pytest.raises(InvalidRequestError, match="and it is completed"):
            await batches.cancel(made[-1])
    async with serving(tmp_path, Asked(), max_batches=1) as batches:
        assert [batch.id for batch in batches.batches_of("")] == [batch.id for batch in made[2:]]
        for batch in batches.batches_of(""):
            await over(batch)
        file = await upload(batches, lines(1))
        first = await batches.create("", file, URL, None, None)
        with pytest.raises(InvalidRequestError, match="beside 1 batches that are not over"):
            await batches.create("", file, URL, None, None)
        await over(first)
        first.created_at = 1
        await until(lambda: batches.find("", first.id) is None)
