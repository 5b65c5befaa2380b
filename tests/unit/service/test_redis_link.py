from __future__ import annotations

import asyncio

import pytest

from baton_service.redis.link import RedisLink
from baton_service.redis.redis_settings import RedisSettings


@pytest.mark.parametrize(
    "refusal",
    [
        "READONLY You can't write against a read only replica. script: f, on @user_script:3.",
        "ERR Error running script (call to f): @user_script:3: @user_script: 3: -READONLY You can't write",
    ],
    ids=["Redis 7", "Redis 6"],
)
async def test_a_call_leaves_a_server_that_has_become_a_replica(refusal: str) -> None:
    """The server's first connection stands for the old master, and later ones for the new one."""
    answers = iter([f"-{refusal}"])

    async def answer(reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        to_script = next(answers, ":1")
        while head := await reader.readline():
            words = []
            for _ in range(int(head[1:])):
                size = int((await reader.readline())[1:])
                words.append((await reader.readexactly(size + 2))[:-2])
            text = to_script if words[0] == b"EVALSHA" else "+OK"
            writer.write(f"{text}\r\n".encode())
        writer.close()

    async with await asyncio.start_server(answer, "127.0.0.1", 0) as server:
        port = server.sockets[0].getsockname()[1]
        link = RedisLink(RedisSettings(url=f"redis://127.0.0.1:{port}"))
        assert await link.script("return 1")((), ()) == 1

        async def nothing() -> None: ...

        await link.close(nothing)
