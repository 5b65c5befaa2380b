from __future__ import annotations

import asyncio
from pathlib import Path

import pytest

from baton_core.errors import ErrorCode, InvalidRequestError, RequestError
from baton_proto.v1.baton_pb2 import GenerateRequest, TokenIds
from baton_router.model_folder import read_model_folder
from baton_router.prompt_reader import PromptReader
from baton_router.tokenization import Tokenizer
from tests.unit.router.folders import write_model_folder


def make_reader(folder: Path, *, max_waiting: int = 4) -> PromptReader:
    model = read_model_folder(write_model_folder(folder))
    return PromptReader("tiny", model, Tokenizer(model), max_waiting=max_waiting)


def test_a_request_gets_its_tokens_and_a_name_and_a_seed_of_its_own(tmp_path: Path) -> None:
    async def scenario() -> None:
        reader = make_reader(tmp_path)
        specs = [await reader.read(GenerateRequest(text="hello"), max_model_len=128) for _ in range(2)]
        reader.close()
        tokenizer = Tokenizer(read_model_folder(tmp_path))
        assert [spec.prompt_token_ids for spec in specs] == [tokenizer.encode("hello")] * 2
        assert len({spec.request_id for spec in specs}) == len({spec.params.seed for spec in specs}) == 2

    asyncio.run(scenario())


def test_a_prompt_that_leaves_no_room_is_refused(tmp_path: Path) -> None:
    async def scenario() -> None:
        reader = make_reader(tmp_path)
        request = GenerateRequest(token_ids=TokenIds(ids=[5] * 16))
        with pytest.raises(InvalidRequestError, match="prompt is '16 tokens'; allowed: 1 to 15 tokens"):
            await reader.read(request, max_model_len=16)
        reader.close()

    asyncio.run(scenario())


def test_more_prompts_than_may_wait_are_refused_and_a_cancelled_one_counts_until_it_is_done(
    tmp_path: Path,
) -> None:
    async def scenario() -> None:
        reader = make_reader(tmp_path, max_waiting=2)
        request = GenerateRequest(text="hello " * 20_000)
        readings = [asyncio.create_task(reader.read(request, max_model_len=2**20)) for _ in range(2)]
        await asyncio.sleep(0)
        readings[0].cancel()
        await asyncio.sleep(0)
        with pytest.raises(RequestError, match="2 prompts wait to be tokenized; allowed: 2") as caught:
            await reader.read(GenerateRequest(text="hello"), max_model_len=128)
        assert caught.value.code is ErrorCode.OVERLOADED
        await readings[1]
        reader.close()
        await asyncio.sleep(0)
        after = make_reader(tmp_path, max_waiting=1)
        for _ in range(3):
            await after.read(GenerateRequest(text="hello"), max_model_len=128)
        after.close()

    asyncio.run(scenario())
