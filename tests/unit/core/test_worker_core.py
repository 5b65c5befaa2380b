"""One worker on its own: what it accepts, what it reports, how its requests end."""

from __future__ import annotations

from typing import Any

import pytest

from baton_core.errors import ErrorCode
from baton_core.kv_events.cache_delta import CacheDelta
from baton_core.requests.finish import FinishReason
from baton_core.requests.sampling_rules import ThinkingBudget
from baton_core.sessions.router_messages import Cancel, Failed, FirstToken, Refused, TokenBatch
from baton_core.worker.worker_events import (
    FromRouter,
    RouterJoined,
    RouterLost,
    SendToRouter,
    StepDone,
    StepFailed,
)
from baton_worker.core.worker_core import WorkerCore
from tests.builders import EOS_TOKEN_ID, VOCAB_SIZE, make_request, make_worker_config, step_result
from tests.unit.core.workers import ROUTER, Worker, make_worker


def make_thinking(start: int = 1, end: int = 2) -> ThinkingBudget:
    return ThinkingBudget(num_tokens=3, start_token_ids=(start,), end_token_ids=(end,))


def outputs(worker: Worker) -> list[tuple[str, int, int, FinishReason | None]]:
    """(request, index, token, reason) of every token told since the last call."""
    return [
        (output.request_id, output.index, output.token_ids[0], output.finish_reason)
        for message in worker.take_told()
        if isinstance(message, FirstToken | TokenBatch)
        for output in message.outputs
    ]


# --- generating ---


def test_a_request_is_decoded_to_its_last_token() -> None:
    worker = make_worker()
    worker.generate(make_request(prompt=6, max_tokens=3))
    for _ in range(3):
        worker.step()
    assert outputs(worker) == [("r", 0, 500, None), ("r", 0, 500, None), ("r", 0, 500, FinishReason.LENGTH)]
    assert (worker.core.num_requests, worker.core.pool.num_used) == (0, 0)
    assert worker.core.schedule(0.0) is None


def test_the_end_token_ends_it_at_once() -> None:
    worker = make_worker()
    worker.generate(make_request())
    worker.step(token_id=EOS_TOKEN_ID)
    assert outputs(worker) == [("r", 0, EOS_TOKEN_ID, FinishReason.STOP)]
    assert worker.core.num_requests == 0


def test_the_first_token_tells_where_the_time_went() -> None:
    worker = make_worker(max_num_batched_tokens=8)
    worker.generate(make_request("a"))
    worker.step()
    worker.take_told()
    worker.generate(make_request("b", prompt=10), now=1.0)
    worker.step(now=3.0)
    worker.step(now=4.0)
    first = next(message for message in worker.told if isinstance(message, FirstToken))
    assert (first.num_cached_tokens, first.queue_s, first.prefill_s) == (8, 2.0, 0.0)


def test_several_sequences_share_one_prompt() -> None:
    worker = make_worker()
    worker.generate(make_request(prompt=6, n=3, max_tokens=2))
    plan = worker.plan()
    assert [(len(piece.token_ids), len(piece.samples)) for piece in plan.slices] == [(6, 3)]
    assert len({sample.seed for sample in plan.slices[0].samples}) == 3
    worker.feed(StepDone(result=step_result(plan)))
    plan = worker.plan()
    assert plan.block_copies == ((1, 2), (1, 3), (1, 4))
    assert [piece.block_tables[0] for piece in plan.slices] == [(0, 2), (0, 3), (0, 4)]
    worker.feed(StepDone(result=step_result(plan)))
    assert [index for _, index, _, _ in outputs(worker)] == [0, 1, 2, 0, 1, 2]
    assert worker.core.num_requests == 0


def test_one_sequence_of_several_can_be_cancelled() -> None:
    worker = make_worker()
    worker.generate(make_request(n=2))
    worker.step()
    worker.take_told()
    worker.cancel("r", 0)
    worker.step()
    assert [index for _, index, _, _ in outputs(worker)] == [1]
    worker.cancel("r", 1)
    assert (worker.core.num_requests, worker.core.pool.num_used) == (0, 0)


def test_all_tokens_of_a_step_travel_in_one_message() -> None:
    worker = make_worker()
    for name in "ab":
        worker.generate(make_request(name, prompt=3))
    worker.step()
    worker.take_told()
    worker.step()
    (message,) = worker.told
    assert [output.request_id for output in message.outputs] == ["a", "b"]


# --- refusing ---


@pytest.mark.parametrize(
    ("prompt_token_ids", "message"),
    [
        ((), "prompt is '0 tokens'; allowed: 1 to 63 tokens, one less than max_model_len"),
        ((1,) * 64, "prompt is '64 tokens'; allowed: 1 to 63 tokens, one less than max_model_len"),
        ((1, VOCAB_SIZE), f"prompt_token_ids is {VOCAB_SIZE}; allowed: token ids from 0 to {VOCAB_SIZE - 1}"),
        ((1, -1), f"prompt_token_ids is -1; allowed: token ids from 0 to {VOCAB_SIZE - 1}"),
    ],
)
def test_a_prompt_that_does_not_fit_the_model_is_refused(
    prompt_token_ids: tuple[int, ...], message: str
) -> None:
    worker = make_worker()
    spec = make_request()
    for command in (worker.generate, worker.prefill, worker.reserve):
        command(type(spec)(request_id="r", prompt_token_ids=prompt_token_ids, params=spec.params))
        refused = Refused(request_id="r", code=ErrorCode.INVALID_REQUEST, message=message)
        assert worker.take_told() == [refused]
    assert worker.core.num_requests == 0


@pytest.mark.parametrize(
    ("changes", "message"),
    [
        (
            {"stop_token_ids": (5, VOCAB_SIZE)},
            f"stop_token_ids is {VOCAB_SIZE}; allowed: token ids from 0 to {VOCAB_SIZE - 1}",
        ),
        (
            {"allowed_token_ids": (VOCAB_SIZE,)},
            f"allowed_token_ids is {VOCAB_SIZE}; allowed: token ids from 0 to 999",
        ),
        (
            {"logprob_token_ids": (VOCAB_SIZE,)},
            f"logprob_token_ids is {VOCAB_SIZE}; allowed: token ids from 0 to 999",
        ),
        ({"logit_bias": {VOCAB_SIZE: 1.0}}, f"logit_bias is {VOCAB_SIZE}; allowed: token ids from 0 to 999"),
        (
            {"bad_word_ids": ((5,), (6, VOCAB_SIZE))},
            f"bad_words is {VOCAB_SIZE}; allowed: token ids from 0 to 999",
        ),
        (
            {"thinking": make_thinking(start=VOCAB_SIZE)},
            f"thinking is {VOCAB_SIZE}; allowed: token ids from 0 to 999",
        ),
        (
            {"thinking": make_thinking(end=VOCAB_SIZE)},
            f"thinking is {VOCAB_SIZE}; allowed: token ids from 0 to 999",
        ),
        ({"logprobs": VOCAB_SIZE + 1}, f"logprobs is {VOCAB_SIZE + 1}; allowed: -1 to {VOCAB_SIZE}"),
        ({"prompt_logprobs": VOCAB_SIZE + 1}, "prompt_logprobs is 1001; allowed: -1 to 1000"),
        ({"logits_processors": ("m:a", "m:c")}, "logits_processors is 'm:c'; allowed: m:a, m:b"),
    ],
)
def test_what_the_model_or_the_worker_lacks_is_refused_by_name(changes: dict[str, Any], message: str) -> None:
    worker = make_worker(logits_processors=frozenset({"m:b", "m:a"}))
    worker.generate(make_request(**changes))
    assert worker.told == [Refused(request_id="r", code=ErrorCode.INVALID_REQUEST, message=message)]


def test_a_worker_without_logits_processors_says_so() -> None:
    worker = make_worker()
    worker.generate(make_request(logits_processors=("m:a",)))
    assert worker.told[0].message == "logits_processors is 'm:a'; allowed: none at this worker"


def test_log_probabilities_that_no_message_holds_are_refused() -> None:
    worker = make_worker(vocab_size=400_000)
    worker.generate(make_request(logprobs=-1))
    worker.generate(make_request(logprobs=290_001))
    assert [refused.message for refused in worker.told] == [
        "logprobs is -1; allowed: 0 to 290000",
        "logprobs is 290001; allowed: 0 to 290000",
    ]


def test_all_that_may_be_asked_for_is_taken() -> None:
    worker = make_worker(logits_processors=frozenset({"m:a"}))
    everything = {
        "stop_token_ids": (VOCAB_SIZE - 1,),
        "allowed_token_ids": (0, VOCAB_SIZE - 1),
        "logit_bias": {VOCAB_SIZE - 1: 1.0},
        "logprobs": -1,
        "prompt_logprobs": VOCAB_SIZE,
        "logits_processors": ("m:a", lambda *args: None),
        "thinking": make_thinking(start=0, end=VOCAB_SIZE - 1),
    }
    worker.generate(make_request(**everything))
    assert (worker.told, worker.core.num_requests) == ([], 1)


def test_the_longest_prompt_that_is_allowed_is_computed() -> None:
    worker = make_worker()
    worker.generate(make_request(prompt=63))
    worker.step()
    assert outputs(worker) == [("r", 0, 500, FinishReason.LENGTH)]


def test_a_name_in_use_is_refused() -> None:
    worker = make_worker()
    worker.generate(make_request())
    worker.reserve(make_request())
    (refused,) = worker.told
    assert (refused.code, worker.core.num_requests) == (ErrorCode.INVALID_REQUEST, 1)


def test_too_many_requests_are_refused() -> None:
    worker = make_worker(max_num_requests=1)
    worker.generate(make_request("a"))
    worker.generate(make_request("b"))
    assert worker.told == [
        Refused(request_id="b", code=ErrorCode.OVERLOADED, message="this worker has 1 requests, its maximum")
    ]


def test_a_pool_smaller_than_the_context_of_the_model_is_no_worker() -> None:
    with pytest.raises(AssertionError, match="max_model_len exceeds the pool"):
        WorkerCore(make_worker_config(num_blocks=4, max_model_len=17))


# --- ending ---


def test_a_cancel_during_a_step_frees_blocks_after_it() -> None:
    worker = make_worker()
    worker.generate(make_request())
    plan = worker.plan()
    worker.cancel("r")
    assert (worker.core.num_requests, worker.core.pool.num_used) == (0, 2)
    worker.feed(StepDone(result=step_result(plan)))
    assert (worker.core.pool.num_used, worker.told) == (0, [])


def test_a_name_can_be_used_again_while_its_cancelled_step_is_in_flight() -> None:
    worker = make_worker()
    worker.generate(make_request())
    plan = worker.plan()
    worker.cancel("r")
    worker.generate(make_request())
    worker.feed(StepDone(result=step_result(plan)))
    assert outputs(worker) == []
    worker.step()
    assert outputs(worker) == [("r", 0, 500, None)]


def test_cancelling_the_unknown_changes_nothing() -> None:
    worker = make_worker()
    assert worker.cancel("x") == []
    assert worker.start("x", 5) == []
    assert worker.told == []


def test_a_failed_step_fails_its_requests_and_no_other() -> None:
    worker = make_worker(max_num_batched_tokens=8)
    worker.generate(make_request("a"))
    worker.generate(make_request("b", first=100), now=1.0)
    assert worker.core.schedule(1.0) is not None
    worker.feed(StepFailed(message="out of memory"))
    assert worker.told == [Failed(request_id="a", code=ErrorCode.INTERNAL, message="out of memory")]
    worker.take_told()
    worker.step()
    assert outputs(worker) == [("b", 0, 500, None)]


def test_a_failed_step_fails_a_request_once_whatever_its_number_of_sequences() -> None:
    worker = make_worker()
    worker.generate(make_request(n=2))
    worker.step()
    worker.take_told()
    assert worker.core.schedule(0.0) is not None
    worker.feed(StepFailed(message="out of memory"))
    assert [type(message) for message in worker.told] == [Failed]
    assert (worker.core.num_requests, worker.core.pool.num_available) == (0, 16)


def test_a_lost_router_takes_its_requests_along() -> None:
    worker = make_worker()
    worker.generate(make_request("a"))
    worker.feed(FromRouter(router_id="other", message=Cancel(request_id="x")))
    worker.feed(RouterLost(router_id="other"))
    assert worker.core.num_requests == 1
    worker.feed(RouterLost(router_id=ROUTER))
    assert (worker.core.num_requests, worker.core.schedule(0.0)) == (0, None)


# --- reporting ---


def test_routers_hear_which_blocks_are_cached() -> None:
    worker = make_worker()
    worker.feed(RouterJoined(router_id="early"))
    worker.generate(make_request(prompt=8))
    effects = worker.core.on_event(0.0, StepDone(result=step_result(worker.plan())))
    (delta,) = [effect for effect in effects if isinstance(effect.message, CacheDelta)]  # type: ignore[union-attr]
    assert isinstance(delta, SendToRouter)
    assert isinstance(delta.message, CacheDelta)
    assert (delta.router_id, len(delta.message.stored)) == ("early", 2)
    snapshot = CacheDelta(stored=delta.message.stored, number=1, is_snapshot=True)
    assert worker.core.on_event(0.0, RouterJoined(router_id="late")) == [
        SendToRouter(router_id="late", message=snapshot)
    ]


def test_a_router_that_hears_of_caches_elsewhere_is_told_nothing() -> None:
    worker = make_worker()
    worker.feed(RouterJoined(router_id=ROUTER, has_locality=True))
    worker.generate(make_request(prompt=8))
    worker.step()
    assert worker.heard(CacheDelta) == []


def test_the_load_is_what_a_router_needs_to_know() -> None:
    worker = make_worker(max_num_batched_tokens=8)
    worker.generate(make_request("a", prompt=7))
    worker.generate(make_request("b", prompt=9, first=100), now=0.5)
    worker.core.schedule(1.0)
    load = worker.core.load(3.0)
    assert (load.num_running, load.num_waiting, load.num_queued_tokens) == (2, 0, 6 + 8)
    assert (load.num_available_blocks, load.step_age_s) == (13, 2.0)
