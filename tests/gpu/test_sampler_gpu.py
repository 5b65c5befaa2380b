"""Rules, draws and log-probabilities on a GPU against those on the CPU, and beside captured decode steps."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import pytest
import torch
from torch import Tensor

from baton_core.requests.sampling_rules import ThinkingBudget
from baton_core.worker.step_plan import LogprobsSpec, SampleSpec, SamplingHistory
from baton_engine.sampling.logits_rules import LogitsRules, unpack_bits
from baton_engine.sampling.sampler import Sampler, SamplerOutput
from baton_engine.sampling.sampling_state import SamplingStates
from baton_engine.sampling.token_logprobs import LogprobsMode
from baton_kernels.selection import select_kernels
from tests.gpu.test_decode_graphs_gpu import load
from tests.models import make_model, make_prompt, reference_logits
from tests.unit.engine.steps import make_history, make_plan, make_slice, make_spec
from tests.unit.engine.test_sampling_state import GRAMMAR, Grammars

pytestmark = [
    pytest.mark.gpu,
    pytest.mark.skipif(not torch.cuda.is_available(), reason="needs a CUDA device"),
]

VOCAB_SIZE = 40
RULES: list[dict[str, Any]] = [
    {"repetition_penalty": 1.3, "frequency_penalty": 0.5, "presence_penalty": -0.25},
    {"allowed_token_ids": (0, 5, 31, 32, 39), "bad_words": ((5,), (3, 31)), "logit_bias": {0: 1.5, 39: 2.0}},
    {"min_tokens": 9, "ending": (3, 4)},
    {"thinking": ThinkingBudget(num_tokens=1, start_token_ids=(), end_token_ids=(7, 8))},
    {"structured_outputs": GRAMMAR},
    {"logits_processors": (lambda output, logits: logits.index_fill(0, logits.argmax(), -torch.inf),)},
    {"allowed_token_ids": (5,), "bad_words": ((5,),), "ending": (11,)},
]
ASKED = [LogprobsSpec(num_top=5), LogprobsSpec(num_top=-1), LogprobsSpec(token_ids=(8, 3)), LogprobsSpec()]


def histories() -> dict[int, SamplingHistory]:
    return {row: make_history((2, 3), name=f"{row}", **rules) for row, rules in enumerate(RULES)}


def random_logits() -> Tensor:
    return torch.randn(len(RULES) + 1, VOCAB_SIZE, generator=torch.Generator().manual_seed(0)) * 2


def draw(logits: Tensor, mode: LogprobsMode) -> SamplerOutput:
    specs: list[SampleSpec] = [
        make_spec(
            row,
            seed=row,
            temperature=0.8 if row % 2 else 0.0,
            top_k=9,
            logprobs=ASKED[row % len(ASKED)],
            history=histories().get(row),
        )
        for row in range(len(logits))
    ]
    kernels = select_kernels(logits.device, torch.float32).sampling
    return Sampler(kernels, LogitsRules(SamplingStates(grammars=Grammars())), mode).sample(logits, specs)


def test_bits_are_unpacked_as_on_the_cpu() -> None:
    words = torch.randint(-(2**31), 2**31, (3, 5), dtype=torch.int32)
    assert torch.equal(unpack_bits(words.cuda()).cpu(), unpack_bits(words))


def test_rules_change_the_logits_as_on_the_cpu() -> None:
    on_cpu = random_logits()
    on_gpu = on_cpu.cuda()
    for logits in (on_cpu, on_gpu):
        assert LogitsRules(SamplingStates(grammars=Grammars())).apply(logits, histories()) == {}
    torch.testing.assert_close(on_gpu.cpu(), on_cpu, atol=1e-6, rtol=1e-6)


@pytest.mark.parametrize("mode", LogprobsMode)
def test_tokens_and_logprobs_are_those_of_the_cpu(mode: LogprobsMode) -> None:
    on_cpu, on_gpu = draw(random_logits(), mode), draw(random_logits().cuda(), mode)
    assert on_gpu.token_ids.tolist() == on_cpu.token_ids.tolist()
    assert on_gpu.failures == on_cpu.failures == {}
    for row, expected in on_cpu.logprobs.items():
        found = on_gpu.logprobs[row]
        assert (found.token_ids, found.ranks) == (expected.token_ids, expected.ranks)
        assert found.logprobs == pytest.approx(expected.logprobs, abs=1e-5)


@pytest.mark.parametrize("enforce_eager", [False, True], ids=["captured", "eager"])
def test_logprobs_equal_those_of_transformers(enforce_eager: bool, tmp_path: Path) -> None:
    folder, prompt = make_model(tmp_path / "model", "llama"), make_prompt(12, seed=3)
    runner = load(folder, enforce_eager=enforce_eager)
    asked = LogprobsSpec(num_top=3)
    first = make_slice(prompt, (0, 1, 2), prompt_targets=prompt[1:], prompt_logprobs=asked)
    told = list(runner.execute(make_plan(first)).prompt_logprobs[0])
    spec = make_spec(13, logprobs=asked, history=make_history((9,), prompt=prompt, logit_bias={5: 100.0}))
    decode = make_slice([9], (0, 1, 2), start=12, samples=(spec,))
    result = runner.execute(make_plan(decode))
    assert result.sampled == ((5,),)
    told += result.logprobs[0]
    expected = reference_logits(folder, [*prompt, 9]).float().log_softmax(dim=-1)
    rows = [*range(11), 12]
    for found, row in zip(told, rows, strict=True):
        assert found.logprobs == pytest.approx(expected[row, list(found.token_ids)].tolist(), abs=1e-4)
        assert list(found.token_ids[1:]) == expected[row].topk(3).indices.tolist()
