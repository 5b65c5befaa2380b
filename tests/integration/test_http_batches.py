"""/v1/files and /v1/batches, as OpenAI's own client asks and reads, through a real router."""

from __future__ import annotations

import asyncio
import json
from collections.abc import AsyncIterator
from contextlib import AsyncExitStack, asynccontextmanager
from pathlib import Path
from typing import Any
from unittest.mock import patch

import httpx
import openai
import pytest

from baton_core.sessions.router_messages import Generate
from baton_router.batches.batch_limits import BatchLimits
from baton_router.core.batches import line_pace
from baton_router.http.routes import BATCH_ROUTES
from baton_router.process.http_settings import HttpSettings
from tests.full_disk import full_disk
from tests.integration.http_router import error_of, http_cluster
from tests.integration.router_cluster import ANSWER, access_to, serving
from tests.integration.scripted_worker import ScriptedWorker

CHAT, COMPLETIONS, RESPONSES = "/v1/chat/completions", "/v1/completions", "/v1/responses"
BODIES: dict[str, dict[str, Any]] = {COMPLETIONS: {"prompt": "Hello!"}, RESPONSES: {"input": "Hello!"}}
OVER = ("completed", "failed", "expired", "cancelled")


def lines(url: str, number: int, **body: object) -> bytes:
    rows = (
        {"custom_id": f"l{index}", "method": "POST", "url": url, "body": {**BODIES[url], **body}}
        for index in range(number)
    )
    return "\n".join(map(json.dumps, rows)).encode()


@asynccontextmanager
async def batching(
    folder: Path, keys: tuple[str, ...] = (), **limits: Any
) -> AsyncIterator[tuple[list[openai.AsyncOpenAI], ScriptedWorker]]:
    """A router with a folder for files, its worker, and a client for each key, or one."""
    settings = BatchLimits(folder=str(folder), **limits)
    worker = ScriptedWorker("w1", answers=[ANSWER])
    async with AsyncExitStack() as stack:
        server = await stack.enter_async_context(serving(http=HttpSettings(api_keys=keys, batches=settings)))
        await stack.enter_async_context(worker.joined(server.grpc_port, access_to(server)))
        url = f"http://127.0.0.1:{server.http_port}/v1"
        yield (
            [
                await stack.enter_async_context(openai.AsyncOpenAI(base_url=url, api_key=key, max_retries=0))
                for key in keys or ("none",)
            ],
            worker,
        )


async def over(client: openai.AsyncOpenAI, batch: openai.types.Batch) -> openai.types.Batch:
    async with asyncio.timeout(30):
        while batch.status not in OVER:
            await asyncio.sleep(0.02)
            batch = await client.batches.retrieve(batch.id)
    return batch


async def results(client: openai.AsyncOpenAI, file_id: str | None) -> list[dict[str, Any]]:
    assert file_id is not None
    return [json.loads(one) for one in (await client.files.content(file_id)).text.splitlines()]


def names(folder: Path) -> list[str]:
    return sorted(path.name for path in folder.iterdir())


@pytest.mark.parametrize("url", [COMPLETIONS, RESPONSES])
async def test_a_batch_is_answered(tmp_path: Path, url: Any) -> None:
    async with batching(tmp_path / "files") as ((client,), worker):
        limit = "max_output_tokens" if url == RESPONSES else "max_tokens"
        content = lines(url, 9, **{limit: 3}) + b"\n" + lines(url, 10, model="no").splitlines()[-1]
        expiry: Any = {"anchor": "created_at", "seconds": 3600}
        file = await client.files.create(file=("in.jsonl", content), purpose="batch", expires_after=expiry)
        assert (file.bytes, file.filename, file.purpose) == (len(content), "in.jsonl", "batch")
        assert file.expires_at == file.created_at + 3600
        made = await client.batches.create(
            input_file_id=file.id, endpoint=url, completion_window="24h", metadata={"a": "b"}
        )
        assert (made.endpoint, made.metadata, made.output_file_id) == (url, {"a": "b"}, None)
        batch = await over(client, made)
        assert (batch.status, batch.request_counts) == (
            "completed",
            openai.types.BatchRequestCounts(completed=9, failed=1, total=10),
        )
        assert batch.expires_at == batch.created_at + 24 * 3600
        assert None not in (batch.in_progress_at, batch.finalizing_at, batch.completed_at)
        answers = await results(client, batch.output_file_id)
        assert sorted(one["custom_id"] for one in answers) == [f"l{index}" for index in range(9)]
        assert {one["response"]["status_code"] for one in answers} == {200}
        (failed,) = await results(client, batch.error_file_id)
        assert failed["response"]["status_code"] == 404
        assert failed["error"]["message"] == "model is 'no'; allowed: 'tiny'"
        specs = [command.spec for command in worker.commands if isinstance(command, Generate)]
        assert [spec.priority for spec in specs] == [4] * 9
        if url == RESPONSES:
            with pytest.raises(openai.NotFoundError):
                await client.responses.retrieve(answers[0]["response"]["body"]["id"])

        whole = [one.id async for one in client.files.list(order="asc")]
        assert whole == sorted([file.id, str(batch.output_file_id), str(batch.error_file_id)])
        assert [one.id async for one in client.files.list(order="asc", limit=1)] == whole
        inputs = await client.files.list(purpose="batch")
        assert [one.id for one in inputs.data] == [file.id]
        assert (await client.files.content(file.id)).content == content
        latest_first = client.files.list(limit=1)
        deleted = [one.id async for one in latest_first if (await client.files.delete(one.id)).deleted]
        assert deleted == whole[::-1]
        with pytest.raises(openai.NotFoundError, match="file_id is "):
            await client.files.retrieve(file.id)


async def test_lines_of_several_prompts_are_not_taken_for_requests_of_others(tmp_path: Path) -> None:
    with patch.object(line_pace, "QUIET_S", 1000.0):
        async with batching(tmp_path, max_inflight=1, lines_beside=0.0) as ((client,), _):
            content = lines(COMPLETIONS, 3, prompt=["Hello!", "Hi!"], max_tokens=3)
            file = await client.files.create(file=content, purpose="batch")
            made = await client.batches.create(
                input_file_id=file.id, endpoint=COMPLETIONS, completion_window="24h"
            )
            batch = await over(client, made)
            assert (batch.status, len(await results(client, batch.output_file_id))) == ("completed", 3)


async def test_files_and_batches_are_apart_by_key(tmp_path: Path) -> None:
    async with batching(tmp_path, ("first", "second")) as ((first, second), _):
        file = await first.files.create(file=b"", purpose="batch")
        window: Any = {"endpoint": CHAT, "completion_window": "24h"}
        made = await first.batches.create(input_file_id=file.id, **window)
        batch = await over(first, made)
        assert (batch.status, batch.errors and batch.errors.data and batch.errors.data[0].code) == (
            "failed",
            "empty_file",
        )
        for call in (
            second.files.retrieve(file.id),
            second.files.content(file.id),
            second.files.delete(file.id),
            second.batches.retrieve(batch.id),
            second.batches.cancel(batch.id),
            second.batches.create(input_file_id=file.id, **window),
        ):
            with pytest.raises(openai.NotFoundError, match="made with the same key"):
                await call
        assert (await second.files.list()).data == []
        assert (await second.batches.list()).data == []
        more = [await over(first, await first.batches.create(input_file_id=file.id, **window))]
        pages = [one.id async for one in first.batches.list(limit=1)]
        assert pages == [more[0].id, batch.id]
        async with httpx.AsyncClient(base_url=str(first.base_url)) as nobody:
            for route in BATCH_ROUTES:
                path = route.path.removeprefix("/v1")
                assert (await nobody.request(route.method, path)).status_code == 401, path


async def test_wrong_calls_are_refused_by_name(tmp_path: Path) -> None:
    limits = {"max_file_bytes": 100, "max_age_s": 2_592_000.0}
    settings = BatchLimits(folder=str(tmp_path), **limits)
    async with http_cluster(http=HttpSettings(batches=settings)) as client:

        async def uploaded(fields: dict[str, str], content: bytes = b"a", name: str = "file") -> Any:
            files = {name: ("a", content)}
            return await client.post("/v1/files", data=fields, files=files)

        batch = {"purpose": "batch"}
        file_id = (await uploaded(batch)).json()["id"]
        lost = (await uploaded(batch)).json()["id"]
        (tmp_path / lost).unlink()
        assert error_of(await client.get(f"/v1/files/{lost}/content"))[:2] == (404, "file_id")
        age = "expires_after[seconds]"
        for reply, param, text in (
            (await uploaded({}), "purpose", "purpose is null; allowed: batch"),
            (await uploaded({"purpose": "vision"}), "purpose", "purpose is 'vision'; allowed: batch"),
            (await uploaded(batch, b"a" * 101), "file", "at most 100 bytes (--max-file-bytes)"),
            (await uploaded(batch, name="other"), "file", "file is 'missing'; allowed: a part with"),
            (await uploaded({**batch, age: "2592001"}), age, "allowed: 3600 to 2592000 (--max-file-age)"),
            (await uploaded({**batch, age: "-1"}), age, "allowed: 3600 to 2592000 (--max-file-age)"),
            (await client.get("/v1/files?limit=0"), "limit", "limit is 0; allowed: an integer from 1"),
            (await client.get("/v1/files?order=x"), "order", "order is 'x'; allowed: asc, desc"),
            (await client.get("/v1/files?after=x"), "after", "after is 'x'; allowed: the id of"),
            (await client.get("/v1/batches?limit=101"), "limit", "an integer from 1 to 100"),
        ):
            assert error_of(reply)[:2] == (400, param), reply.text
            assert text in error_of(reply)[2]
        reply = await client.post("/v1/files", json={"purpose": "batch"})
        assert error_of(reply)[0] == 415
        good = {"input_file_id": file_id, "endpoint": CHAT, "completion_window": "24h"}
        for wrong, status, param in (
            ({"endpoint": "/v1/messages"}, 400, "endpoint"),
            ({"completion_window": "1h"}, 400, "completion_window"),
            ({"input_file_id": "../lock"}, 404, "input_file_id"),
            ({"metadata": {"a": "b" * 513}}, 400, "metadata"),
            (
                {"output_expires_after": {"anchor": "created_at", "seconds": 1}},
                400,
                "output_expires_after.seconds",
            ),
        ):
            reply = await client.post("/v1/batches", json={**good, **wrong})
            assert error_of(reply)[:2] == (status, param), reply.text
    assert not list(tmp_path.glob("*.tmp"))


async def test_a_full_disk_is_told_and_nothing_stays_on_it(tmp_path: Path) -> None:
    settings = BatchLimits(folder=str(tmp_path))
    async with http_cluster(http=HttpSettings(batches=settings)) as client:

        async def uploaded() -> httpx.Response:
            form = {"file": ("a", lines(COMPLETIONS, 2))}
            return await client.post("/v1/files", data={"purpose": "batch"}, files=form)

        async def begun() -> httpx.Response:
            return await client.post("/v1/batches", json=body)

        body = {"input_file_id": "", "endpoint": COMPLETIONS, "completion_window": "24h"}
        body["input_file_id"] = (await uploaded()).json()["id"]
        kept = names(tmp_path)
        with full_disk():
            for ask, what, param in ((uploaded, "file", "file"), (begun, "the batch", None)):
                status, named, text = error_of(await ask())
                assert (status, named) == (507, param), text
                assert text.startswith(f"{what} cannot be kept: File too large; allowed: where ")
        assert names(tmp_path) == kept
        batch = (await begun()).json()
        with patch.object(Path, "touch", side_effect=OSError(28, "No space left on device")):
            reply = await client.post(f"/v1/batches/{batch['id']}/cancel")
        assert error_of(reply)[0] == 507
        assert error_of(reply)[2].startswith("the cancellation cannot be kept: No space left on device")


async def test_a_path_below_a_served_route_is_not_said_to_lack_a_flag(tmp_path: Path) -> None:
    settings = HttpSettings(batches=BatchLimits(folder=str(tmp_path)))
    async with http_cluster(http=settings) as client:
        message = error_of(await client.get("/v1/files/a/b"))[2]
        assert message == "path is '/v1/files/a/b'; allowed: those in /openapi.json"


async def test_without_a_folder_the_routes_say_which_flag_is_missing() -> None:
    async with http_cluster() as client:
        for path in ("/v1/files", "/v1/files/file-1/content", "/v1/batches", "/v1/batches/batch_1/cancel"):
            reply = await client.post(path)
            assert error_of(reply)[0] == 404
            assert "this router runs without --files-directory" in error_of(reply)[2]
