"""A logits processor class that keeps state by request: the same tokens, whatever happens to the requests."""

from __future__ import annotations

from pathlib import Path
from typing import Any, Final

import pytest
import torch
from msgspec import structs
from torch import Tensor

from baton import LLM, SamplingParams
from baton.logits_processors import BatchUpdate, LogitsProcessor, MoveDirectionality
from baton_core.errors import InvalidConfigError, InvalidRequestError
from baton_core.sessions.router_messages import RequestSpec
from tests.integration.tiny_llm import PROMPT, greedy, tiny_args
from tests.models import make_prompt
from tests.sim.checks import check_finished
from tests.sim.torch_cluster import Shape, TorchCluster

HERE: Final = "tests.integration.test_processor_classes"
NUM_TOKENS: Final = 30
CLASS: Final = (f"{HERE}:Digests",)
SMALL: Final = Shape(num_blocks=14, max_num_batched_tokens=48, max_num_seqs=16, logits_processors=CLASS)
"""Too small for all sequences at once."""


class Digests(LogitsProcessor):
    """Favours tokens by a digest of the output, which it keeps by request and continues with each token."""

    def __init__(self, vllm_config: Any, device: torch.device, is_pin_memory: bool) -> None:
        assert vllm_config.scheduler_config.max_num_seqs > 0
        self.outputs: dict[int, list[int]] = {}
        self.digests: dict[int, tuple[int, int]] = {}
        """By index: tokens read, and their digest."""

    @classmethod
    def validate_params(cls, sampling_params: SamplingParams) -> None:
        if (sampling_params.extra_args or {}).get("every", 5) < 1:
            raise ValueError("every is below 1")

    def is_argmax_invariant(self) -> bool:
        return False

    def update_state(self, batch_update: BatchUpdate | None) -> None:
        for index in () if batch_update is None else batch_update.removed:
            del self.outputs[index], self.digests[index]
        for index, _, _, output in () if batch_update is None else batch_update.added:
            self.outputs[index], self.digests[index] = output, (0, 0)
        for source, target, direction in () if batch_update is None else batch_update.moved:
            assert direction is MoveDirectionality.UNIDIRECTIONAL
            for states in (self.outputs, self.digests):
                states[target] = states.pop(source)  # type: ignore[attr-defined]
        for index, output in self.outputs.items():
            num_read, digest = self.digests[index]
            for token_id in output[num_read:]:
                digest = (31 * digest + token_id) % 1009
            self.digests[index] = (len(output), digest)

    def apply(self, logits: Tensor) -> Tensor:
        assert sorted(self.digests) == list(range(len(logits)))
        for index, (_, digest) in self.digests.items():
            logits[index, digest % 7 :: 7] += 20.0
        return logits


def digested(output_token_ids: list[int], logits: Tensor) -> Tensor:
    """Favour the same tokens, from the whole output."""
    digest = 0
    for token_id in output_token_ids:
        digest = (31 * digest + token_id) % 1009
    logits[digest % 7 :: 7] += 20.0
    return logits


def specs(**params: Any) -> list[RequestSpec]:
    return [
        RequestSpec(
            request_id=f"{number}",
            prompt_token_ids=tuple(make_prompt(30 + 9 * number, seed=number, vocab_size=200)),
            params=SamplingParams(
                n=1 + number % 2,
                seed=number,
                temperature=0.8 * (number % 3),
                max_tokens=NUM_TOKENS,
                ignore_eos=True,
                **params,
            ).frozen(),
        )
        for number in range(6)
    ]


@pytest.fixture(scope="module")
def expected(folder: Path) -> list[list[list[int]]]:
    """Tokens of a function that keeps nothing, one request at a time."""
    shape = Shape(logits_processors=(f"{HERE}:digested",))
    with TorchCluster(folder, None, shape) as cluster:
        served = [cluster.serve([spec])[0] for spec in specs(logits_processors=[f"{HERE}:digested"])]
    return [[outcome.tokens[index] for index in sorted(outcome.tokens)] for outcome in served]


def test_preempted_requests_are_added_again(folder: Path, expected: list[list[list[int]]]) -> None:
    with TorchCluster(folder, None, SMALL) as cluster:
        for outcome, tokens in zip(cluster.serve(specs()), expected, strict=True):
            check_finished(outcome, tokens)
        assert cluster.num_preemptions > 0
    assert len({token_id for sequences in expected for ids in sequences for token_id in ids}) > 20


def test_a_request_that_is_handed_over_and_then_moves_is_added_where_it_goes(
    folder: Path, expected: list[list[list[int]]]
) -> None:
    with TorchCluster(folder, "in_process", Shape(logits_processors=CLASS), others=("d2",)) as cluster:
        for spec in specs():
            cluster.submit(spec)
        sim = cluster.sim
        sim.clock.run(sim.clock.now + 0.01)
        outcomes = [sim.router.outcomes[spec.request_id] for spec in specs()]
        while sum(len(ids) for one in outcomes for ids in one.tokens.values()) < 90:
            sim.clock.run(sim.clock.now + 0.01)
        sim.crash("d")
        cluster.run_to_end(0.01)
        for outcome, tokens in zip(outcomes, expected, strict=True):
            check_finished(outcome, tokens)


@pytest.mark.parametrize("given", [Digests, f"{HERE}:Digests"])
def test_an_llm_takes_a_class_or_its_name(given: str | type, folder: Path) -> None:
    params = [greedy(12), SamplingParams(seed=3, max_tokens=12, ignore_eos=True)]
    with LLM.from_engine_args(tiny_args(folder)) as plain:
        functions = [structs.replace(one, logits_processors=(digested,)) for one in params]
        of_functions = plain.generate([PROMPT, PROMPT], functions, use_tqdm=False)
    with LLM.from_engine_args(tiny_args(folder, logits_processors=[given])) as llm:
        outputs = llm.generate([PROMPT, PROMPT], params, use_tqdm=False)
        tokens = [output.outputs[0].token_ids for output in outputs]
        assert tokens == [output.outputs[0].token_ids for output in of_functions]
        with pytest.raises(InvalidRequestError, match=r"extra_args is .*takes \(every is below 1\)"):
            llm.generate([PROMPT] * 2, [greedy(2), greedy(2, extra_args={"every": 0})], use_tqdm=False)
        assert not llm.llm_engine.has_unfinished_requests()
        assert llm.generate(PROMPT, greedy(12), use_tqdm=False)[0].outputs[0].token_ids == tokens[0]


def test_a_class_that_no_other_process_can_import_is_refused_before_any_work(folder: Path) -> None:
    class Local(Digests):
        pass

    with pytest.raises(
        InvalidConfigError, match=r"logits_processors has .*Local.*allowed: classes at the level"
    ):
        tiny_args(folder, logits_processors=[Local])
    script = type("Script", (Digests,), {"__module__": "__main__"})
    import __main__

    __main__.Script = script
    assert tiny_args(folder, logits_processors=[script]).logits_processors == ("__main__:Script",)
    with pytest.raises(
        InvalidConfigError, match=r"allowed: classes of modules that worker processes can import"
    ):
        tiny_args(folder, logits_processors=[script], decode_workers=1)
