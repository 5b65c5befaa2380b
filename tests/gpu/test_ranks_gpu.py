"""Ranks on GPUs: the tokens of one process, and one end for all of them."""

from __future__ import annotations

import os
import signal
import threading
from pathlib import Path
from typing import Any

import pytest
import torch

from baton import LLM, SamplingParams
from baton_core.errors import RequestError
from tests.e2e.processes import until
from tests.integration.test_ranks import followers
from tests.integration.tiny_llm import greedy, tiny_args
from tests.models import make_model, make_prompt

pytestmark = [
    pytest.mark.gpu,
    pytest.mark.skipif(not torch.cuda.is_available(), reason="needs a CUDA device"),
]

SIZES = ({"tensor_parallel_size": 2}, {"pipeline_parallel_size": 2})
PROMPTS = [make_prompt(length, seed=length) for length in (30, 3, 70)]
PARAMS = [
    greedy(12, logprobs=2),
    SamplingParams(max_tokens=12, seed=1, temperature=0.8, n=3, ignore_eos=True),
    greedy(12),
]


def backends() -> list[str]:
    """Return what starts ranks here: of one GPU through the host, of two by NCCL."""
    several = ["mp"] if torch.cuda.device_count() > 1 else []
    return ["tests.gpu.one_gpu.OneGpu", *several]


def load(folder: Path, **settings: Any) -> LLM:
    return LLM.from_engine_args(tiny_args(folder, device="cuda", dtype="float32", **settings))


def tokens_of(llm: LLM) -> list[list[tuple[int, ...]]]:
    outputs = llm.generate(PROMPTS, PARAMS, use_tqdm=False)
    return [[tuple(one.token_ids) for one in output.outputs] for output in outputs]


@pytest.fixture(scope="module")
def folder(tmp_path_factory: pytest.TempPathFactory) -> Path:
    return make_model(tmp_path_factory.mktemp("ranks") / "model", "llama")


@pytest.fixture(scope="module")
def expected(folder: Path) -> list[list[tuple[int, ...]]]:
    with load(folder) as llm:
        return tokens_of(llm)


@pytest.mark.parametrize("backend", backends())
@pytest.mark.parametrize("sizes", SIZES, ids=["tensor", "pipeline"])
def test_ranks_generate_the_tokens_of_one_process(
    sizes: dict[str, int], backend: str, folder: Path, expected: list[list[tuple[int, ...]]]
) -> None:
    with load(folder, distributed_executor_backend=backend, **sizes) as llm:
        assert tokens_of(llm) == expected


@pytest.mark.parametrize("backend", backends())
def test_a_killed_rank_ends_its_group(backend: str, folder: Path) -> None:
    llm = load(folder, distributed_executor_backend=backend, tensor_parallel_size=2)
    (follower,) = followers()
    threading.Timer(0.5, os.kill, (follower, signal.SIGKILL)).start()
    with pytest.raises(RequestError, match=r"rank 1 of the model's ranks is lost"):
        llm.generate(PROMPTS * 60, greedy(200), use_tqdm=False)
    llm.close()
    until(lambda: not followers(), 10.0, "end of the other rank")
