"""How requests end on real models: end tokens, stop tokens, lengths; and when their first token comes."""

from __future__ import annotations

import json
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any

import pytest

from baton_core.requests.finish import FinishReason
from baton_core.requests.sampling_params import SamplingParams
from baton_core.sessions.router_messages import RequestSpec
from baton_router.core.router_events import FinishRequest
from baton_router.requests.request_reader import bounded
from baton_simulator.outcome import Outcome
from tests.models import make_model
from tests.reference import Reference
from tests.sim.checks import check_finished
from tests.sim.torch_cluster import Backend, Shape, TorchCluster

BACKENDS = [None, "in_process", "shared_memory"]
NUM_TOKENS = 40


@dataclass(frozen=True, slots=True)
class Case:
    reference: Reference
    prompts: list[tuple[int, ...]]
    tokens: list[list[int]]
    """The tokens that follow each prompt when nothing ends it."""
    eos_token_ids: list[int]
    """The first follows prompt 0 at once, the second and third end prompts 1 and 2 on the way."""

    @property
    def folder(self) -> Path:
        return self.reference.folder

    def spec(self, number: int, **params: Any) -> RequestSpec:
        defaults = {"temperature": 0.0, "seed": 0, "max_tokens": NUM_TOKENS}
        return RequestSpec(
            request_id=f"q{number}",
            prompt_token_ids=self.prompts[number],
            params=SamplingParams(**{**defaults, **params}),
        )


@pytest.fixture(scope="module")
def case(tmp_path_factory: pytest.TempPathFactory) -> Case:
    folder = make_model(tmp_path_factory.mktemp("models") / "llama", "llama")
    reference = Reference(folder)
    drawn = reference.draw_all_greedy([(length, ()) for length in (70, 33, 5)], NUM_TOKENS)
    prompts, tokens = [prompt for prompt, _ in drawn], [tokens for _, tokens in drawn]
    eos_token_ids = [tokens[0][0], _own_token(tokens, 1), _own_token(tokens, 2)]
    _set_eos(folder / "config.json", eos_token_ids[:2])
    _set_eos(folder / "generation_config.json", eos_token_ids[2:])
    return Case(reference, prompts, tokens, eos_token_ids)


def _own_token(streams: list[list[int]], number: int) -> int:
    """The first token of a stream after some others that no other stream has."""
    others = {token for other, tokens in enumerate(streams) if other != number for token in tokens}
    return next(token for token in streams[number][8:] if token not in others)


def _set_eos(path: Path, eos_token_ids: list[int]) -> None:
    path.write_text(json.dumps({**json.loads(path.read_text()), "eos_token_id": eos_token_ids}))


def serve(
    case: Case, backend: Backend | None, *specs: RequestSpec, shape: Shape | None = None
) -> list[Outcome]:
    with TorchCluster(case.folder, backend, shape or Shape()) as cluster:
        return cluster.serve(specs)


@pytest.mark.parametrize("backend", BACKENDS)
def test_every_end_token_ends_a_sequence(backend: Backend | None, case: Case) -> None:
    outcomes = serve(case, backend, *(case.spec(number) for number in range(3)))
    for number, outcome in enumerate(outcomes):
        expected, _ = case.reference.generate(case.prompts[number], NUM_TOKENS, case.eos_token_ids)
        assert expected[-1] in case.eos_token_ids
        check_finished(outcome, [expected])
        assert outcome.finish_reasons == {0: FinishReason.STOP}
    assert outcomes[0].tokens == {0: case.eos_token_ids[:1]}
    assert {tokens[-1] for outcome in outcomes for tokens in outcome.tokens.values()} == set(
        case.eos_token_ids
    )


@pytest.mark.parametrize("backend", BACKENDS)
def test_end_tokens_can_be_ignored(backend: Backend | None, case: Case) -> None:
    outcomes = serve(case, backend, *(case.spec(number, ignore_eos=True) for number in range(3)))
    for outcome, tokens in zip(outcomes, case.tokens, strict=True):
        check_finished(outcome, [tokens])
        assert outcome.finish_reasons == {0: FinishReason.LENGTH}


@pytest.mark.parametrize("backend", BACKENDS)
def test_stop_tokens_end_a_sequence_that_ignores_end_tokens(backend: Backend | None, case: Case) -> None:
    stop = case.tokens[1][10]
    spec = case.spec(1, ignore_eos=True, stop_token_ids=(stop, 500))
    (outcome,) = serve(case, backend, spec)
    check_finished(outcome, [case.tokens[1][: case.tokens[1].index(stop) + 1]])
    assert outcome.finish_reasons == {0: FinishReason.STOP}


@pytest.mark.parametrize("backend", BACKENDS)
@pytest.mark.parametrize(
    ("number", "params", "reason"),
    [(0, {}, FinishReason.STOP), (1, {"max_tokens": 1}, FinishReason.LENGTH)],
    ids=["end token", "max_tokens"],
)
def test_a_first_token_that_ends_the_request_needs_no_transfer(
    number: int, params: dict[str, Any], reason: FinishReason, backend: Backend | None, case: Case
) -> None:
    with TorchCluster(case.folder, backend, pull_delay_s=2.0) as cluster:
        (outcome,) = cluster.serve([case.spec(number, **params)])
    end = check_finished(outcome, [case.tokens[number][:1]])
    assert outcome.finish_reasons == {0: reason}
    assert cluster.sim.router.transferred_s == {}
    assert all(engine.num_pulled_blocks == 0 for engine in cluster.engines.values())
    workers = (end.timings.prefill_worker, end.timings.decode_worker)
    is_split = reason is FinishReason.STOP
    assert workers == (("p", "" if is_split else "p") if backend else ("m", "m"))
    assert end.timings.transferred_bytes == 0


@pytest.mark.parametrize("backend", BACKENDS)
@pytest.mark.parametrize("max_tokens", [None, 1000])
def test_a_sequence_ends_at_max_model_len(
    max_tokens: int | None, backend: Backend | None, case: Case
) -> None:
    """As routers read it: `max_tokens` that do not fit are those that do."""
    limit = len(case.prompts[1]) + 17
    spec = bounded(case.spec(1, ignore_eos=True, max_tokens=max_tokens), limit)
    (outcome,) = serve(case, backend, spec, shape=Shape(max_model_len=limit))
    check_finished(outcome, [case.tokens[1][:17]])
    assert outcome.finish_reasons == {0: FinishReason.LENGTH}


@pytest.mark.parametrize("backend", ["in_process", "shared_memory"])
def test_the_first_token_does_not_wait_for_the_transfer(backend: Backend, case: Case) -> None:
    with TorchCluster(case.folder, backend, pull_delay_s=3.0) as cluster:
        (outcome,) = cluster.serve([replace(case.spec(1), request_id="slow")])
    assert outcome.first_token_s is not None
    assert outcome.first_token_s < 0.1
    assert cluster.sim.router.transferred_s["slow"] > outcome.first_token_s + 0.5
    (end,) = outcome.ends
    assert isinstance(end, FinishRequest)
    assert end.timings.first_token_s < end.timings.transfer_s
