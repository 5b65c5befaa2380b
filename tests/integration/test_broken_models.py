"""A model whose logits are not finite: requests end with the reason, and the worker stops taking them."""

from __future__ import annotations

import asyncio
from pathlib import Path

import grpc
import pytest
import torch
from safetensors.torch import load_file, save_file

from baton import LLM
from baton_core.errors import BatonError
from baton_core.sessions.worker_info import Role
from baton_worker.core.step_health import MAX_IN_A_ROW
from tests.integration.tiny_llm import PROMPT, greedy, tiny_args
from tests.integration.worker_cluster import Said, eventually, routing, working
from tests.models import make_model


def make_broken(folder: Path, value: float) -> Path:
    """A model whose last norm multiplies by `value` in one place."""
    make_model(folder)
    (path,) = folder.glob("*.safetensors")
    weights = load_file(path)
    weights["model.norm.weight"][5] = value
    save_file(weights, path, metadata={"format": "pt"})
    return folder


@pytest.mark.parametrize("kernels", ["auto", "torch"])
@pytest.mark.parametrize("value", [torch.nan, torch.inf])
@pytest.mark.parametrize("params", [{}, {"logprobs": 3}, {"logit_bias": {7: 1.0}}], ids=str)
def test_a_request_ends_with_the_reason(
    tmp_path: Path, value: float, params: dict[str, object], kernels: str
) -> None:
    folder = make_broken(tmp_path / "model", value)
    with (
        LLM.from_engine_args(tiny_args(folder, cpu_kernels=kernels)) as llm,
        pytest.raises(BatonError, match=r"the logits are (not numbers \(NaN\)|infinite)"),
    ):
        llm.generate([PROMPT], greedy(4, **params), use_tqdm=False)


async def test_a_worker_that_keeps_doing_it_takes_no_more_requests(tmp_path: Path, said: Said) -> None:
    folder = make_broken(tmp_path / "model", torch.nan)
    async with (
        routing(said, split="auto", model=str(folder)) as cluster,
        working(Role.MIXED, cluster.port, engine={"model": str(folder)}),
    ):
        await cluster.wait_for_idle("mixed")
        for number in range(MAX_IN_A_ROW):
            with pytest.raises(grpc.aio.AioRpcError, match=r"not numbers \(NaN\)") as failed:
                _ = [event async for event in cluster.ask(f"r{number}", PROMPT, greedy(4))]
            assert failed.value.code() is grpc.StatusCode.INTERNAL

        async def is_faulty() -> bool:
            return "in a row" in said.loads["mixed"].fault

        await eventually(is_faulty, 10.0)
        with pytest.raises(TimeoutError):  # it waits until the worker may be tried again
            async with asyncio.timeout(2.0):
                _ = [event async for event in cluster.ask("late", PROMPT, greedy(4))]
