"""Every path that a CPU may take, on this one: natively where it can, else emulated. The tokens are
Transformers'.

A path is a build of the C++ kernels, with what it leaves to torch and oneDNN: linear layers of bfloat16 with
AMX, linear layers of float32 without AVX2, everything without a build.
"""

from __future__ import annotations

import json
import os
import subprocess
import sys
from dataclasses import dataclass
from itertools import cycle
from pathlib import Path
from typing import Final

import pytest
import torch

from baton import LLM
from baton_core.errors import InvalidConfigError
from baton_core.sessions.router_messages import Transferred
from baton_core.sessions.worker_info import Role
from baton_kernels.cpu.variants import EMULATED, TORCH, VARIANTS, cpu_flags
from tests.e2e.calls import answer
from tests.integration.cpu_paths import BUDGET, NUM_TOKENS, Prompts, generate
from tests.integration.tiny_llm import greedy, tiny_args
from tests.integration.worker_cluster import Said, routing, working
from tests.models import make_model, reference_model
from tests.reference import Reference
from tests.tiers import chosen, exhaustive

PATHS: Final = (*(variant.name for variant in VARIANTS), TORCH)
_EACH_TIME: Final = ("amx", "avx2")
SOME: Final = [path if path in _EACH_TIME else exhaustive(path) for path in PATHS]
PAIRS: Final = chosen(
    zip(PATHS, (*PATHS[1:], PATHS[0]), cycle(("float32", "bfloat16"))),
    lambda prefill, *_: prefill in _EACH_TIME,
)
"""Each path before another one, in one of both dtypes."""
LENGTHS: Final = (5, 33, 150, 20)
ROUNDING: Final = 0.12
"""A token that was drawn in bfloat16 has a logit in float32 that is less than the best by this at most."""


@dataclass(frozen=True, slots=True)
class Model:
    """A model whose linear layers are large enough to be packed, prompts, and what Transformers continues."""

    folder: Path
    prompts: Prompts
    expected: Prompts

    def assert_close_to_best(self, drawn: Prompts) -> None:
        """Check tokens drawn in bfloat16 by the logits of float32, each after those before it."""
        model = reference_model(self.folder)
        for prompt, tokens in zip(self.prompts, drawn, strict=True):
            assert len(tokens) == NUM_TOKENS
            with torch.inference_mode():
                logits = model(torch.tensor([prompt + tokens[:-1]])).logits[0, len(prompt) - 1 :]
            chosen = logits.gather(1, torch.tensor(tokens)[:, None])[:, 0]
            assert (logits.amax(dim=1) - chosen).max() < ROUNDING


@pytest.fixture(scope="module")
def llama(tmp_path_factory: pytest.TempPathFactory) -> Model:
    return make("llama", tmp_path_factory)


@pytest.fixture(scope="module")
def gemma2(tmp_path_factory: pytest.TempPathFactory) -> Model:
    return make("gemma2", tmp_path_factory)


@pytest.fixture(scope="module")
def gpt_oss(tmp_path_factory: pytest.TempPathFactory) -> Model:
    return make("gpt-oss", tmp_path_factory)


def make(variant: str, tmp_path_factory: pytest.TempPathFactory) -> Model:
    folder = make_model(tmp_path_factory.mktemp(variant), variant, hidden_size=512, head_dim=64)
    drawn = Reference(folder).draw_all_greedy([(length, ()) for length in LENGTHS], NUM_TOKENS)
    return Model(folder, [list(prompt) for prompt, _ in drawn], [tokens for _, tokens in drawn])


def had(path: str) -> str:
    """Return the name under which this CPU has a path; skips the test where it has it under none."""
    for variant in (*VARIANTS, *EMULATED):
        if variant.name in (path, f"{path}-emulated") and variant.needs <= cpu_flags():
            return variant.name
    if path == TORCH:
        return path
    pytest.skip(f"this CPU neither has nor emulates {path}")


@pytest.mark.parametrize("path", PATHS)
def test_chunked_prompts_and_recorded_batches_in_float32_are_transformers(
    path: str, gemma2: Model, caplog: pytest.LogCaptureFixture
) -> None:
    drawn = generate(gemma2.folder, gemma2.prompts, had(path), "float32")
    assert drawn == gemma2.expected * 2
    assert "eagerly" not in caplog.text


@pytest.mark.parametrize("path", SOME)
def test_so_they_are_in_bfloat16_but_for_rounding(
    path: str, llama: Model, caplog: pytest.LogCaptureFixture
) -> None:
    drawn = generate(llama.folder, llama.prompts, had(path), "bfloat16")
    llama.assert_close_to_best(drawn[: len(llama.prompts)])
    llama.assert_close_to_best(drawn[len(llama.prompts) :])
    assert "eagerly" not in caplog.text


@pytest.mark.parametrize("path", SOME)
def test_experts_and_attention_sinks_in_float32_are_transformers(path: str, gpt_oss: Model) -> None:
    assert generate(gpt_oss.folder, gpt_oss.prompts, had(path), "float32") == gpt_oss.expected * 2


def test_kernels_that_this_cpu_lacks_are_refused(llama: Model) -> None:
    lacking = [variant.name for variant in VARIANTS if not variant.needs <= cpu_flags()]
    for name in lacking:
        with pytest.raises(
            InvalidConfigError, match=rf"^cpu_kernels is '{name}'; allowed on this CPU: auto, "
        ):
            LLM.from_engine_args(tiny_args(llama.folder, cpu_kernels=name))
    with pytest.raises(InvalidConfigError, match=r"^cpu_kernels is 'sse'; allowed: auto, amx, avx512-bf16, "):
        tiny_args(llama.folder, cpu_kernels="sse")


@pytest.mark.parametrize(("prefill", "decode", "dtype"), PAIRS)
async def test_workers_on_two_kinds_of_cpu_hand_requests_over(
    said: Said, llama: Model, prefill: str, decode: str, dtype: str
) -> None:
    engine = {"model": str(llama.folder), "dtype": dtype}
    kinds = [{**engine, "cpu_kernels": had(path)} for path in (prefill, decode)]
    drawn: Prompts = []
    async with (
        routing(said, model=str(llama.folder)) as cluster,
        working(Role.PREFILL, cluster.port, engine=kinds[0], max_num_batched_tokens=BUDGET),
        working(Role.DECODE, cluster.port, engine=kinds[1], max_num_batched_tokens=BUDGET),
    ):
        await cluster.wait_for_idle("prefill", "decode")
        for prompt in llama.prompts:
            call = cluster.ask(f"{len(prompt)}", prompt, greedy(NUM_TOKENS))
            drawn.append(list(answer([event async for event in call])[0][0].token_ids))
            assert said.find(Transferred, f"{len(prompt)}").num_recomputed_tokens == 0
        await cluster.wait_for_idle("prefill", "decode")
    if dtype == "float32":
        assert drawn == llama.expected
    else:
        llama.assert_close_to_best(drawn)


@pytest.mark.parametrize("instructions", ["default/SSE41"])
def test_torch_on_other_cpus_computes_the_same(instructions: str, llama: Model) -> None:
    """A process of its own limits torch and oneDNN, which read their choice when they are loaded.

    What they choose by themselves, on most CPUs AVX512, is the path `torch` of the other tests.
    """
    for_torch, for_onednn = instructions.split("/")
    command = [sys.executable, "-m", generate.__module__, str(llama.folder), json.dumps(llama.prompts)]
    done = subprocess.run(
        command,
        env={**os.environ, "ATEN_CPU_CAPABILITY": for_torch, "ONEDNN_MAX_CPU_ISA": for_onednn},
        capture_output=True,
        text=True,
        timeout=250,
    )
    assert not done.returncode, done.stderr
    *_, result = done.stdout.splitlines()
    capability, *drawn = json.loads(result)
    assert capability.lower() == for_torch
    for tokens in drawn:
        assert tokens == llama.expected * 2
