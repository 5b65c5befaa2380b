from __future__ import annotations

import asyncio
from collections.abc import Iterator
from pathlib import Path

import pytest

from baton_core.errors import InvalidRequestError
from baton_proto.v1.baton_pb2 import GenerateRequest, TokenIds
from baton_proto.v1.baton_pb2 import SamplingParams as Params
from baton_router.model_folder import read_model_folder
from baton_router.prompt_reader import PromptReader
from baton_router.tokenization import Tokenizer
from baton_router.tokenizing_threads import TokenizingThreads
from tests.unit.router.folders import write_model_folder


def make_reader(folder: Path, threads: TokenizingThreads) -> PromptReader:
    model = read_model_folder(write_model_folder(folder))
    return PromptReader(("tiny",), model, Tokenizer(model), threads)


@pytest.fixture
def threads() -> Iterator[TokenizingThreads]:
    threads = TokenizingThreads()
    yield threads
    threads.close()


def test_a_request_gets_its_tokens_and_a_name_and_a_seed_of_its_own(
    tmp_path: Path, threads: TokenizingThreads
) -> None:
    async def scenario() -> None:
        reader = make_reader(tmp_path, threads)
        requests = [GenerateRequest(text="hello", sampling_params=Params(seed=seed)) for seed in (None, -1)]
        specs = [await reader.read(request, max_model_len=128) for request in requests]
        tokenizer = Tokenizer(read_model_folder(tmp_path))
        assert [spec.prompt_token_ids for spec in specs] == [tokenizer.encode("hello")] * 2
        assert len({spec.request_id for spec in specs}) == len({spec.params.seed for spec in specs}) == 2
        assert all(spec.params.seed is not None and spec.params.seed >= 0 for spec in specs)

    asyncio.run(scenario())


def test_a_prompt_that_leaves_no_room_is_refused(tmp_path: Path, threads: TokenizingThreads) -> None:
    async def scenario() -> None:
        request = GenerateRequest(token_ids=TokenIds(ids=[5] * 16))
        with pytest.raises(InvalidRequestError, match="prompt is '16 tokens'; allowed: 1 to 15 tokens"):
            await make_reader(tmp_path, threads).read(request, max_model_len=16)

    asyncio.run(scenario())
