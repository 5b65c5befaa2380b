"""Log-probabilities of the prompt: every chunk's at once, each position once, whatever happens to it."""

from __future__ import annotations

from typing import Any

import pytest

from baton_core.blocks.block_hash import block_hashes, root_hash
from baton_core.errors import ErrorCode
from baton_core.kv_events.cache_delta import CacheDelta
from baton_core.sessions.router_messages import FirstToken, Prefill, PromptLogprobs
from baton_core.worker.step_plan import LogprobsSpec
from baton_core.worker.worker_events import StepDone
from baton_router.core.placement.placement_config import SplitMode
from baton_router.core.router_events import EmitPromptLogprobs
from tests.builders import (
    BLOCK_SIZE,
    make_identity,
    make_logprobs,
    make_prompt,
    make_request,
    make_sequence,
    step_result,
)
from tests.unit.core.routers import Client, first_token, refused
from tests.unit.core.scheduling import make_scheduler, plan_step, run_steps, shape
from tests.unit.core.workers import Pair, Worker, make_worker


def positions(worker: Worker) -> list[tuple[int, int]]:
    """(first, last) position of each message; each entry is of the token that stands there."""
    spans = []
    for message in worker.heard(PromptLogprobs):
        end = message.start + len(message.entries)
        prompt = make_prompt(64)
        assert message.entries == tuple(make_logprobs(prompt[at], at) for at in range(message.start, end))
        spans.append((message.start, end - 1))
    return spans


# --- at the worker ---


def test_each_chunk_tells_its_own_before_the_first_token() -> None:
    worker = make_worker(max_num_batched_tokens=6)
    worker.generate(make_request(prompt=14, prompt_logprobs=2))
    for _ in range(3):
        worker.step()
    assert positions(worker) == [(1, 6), (7, 12), (13, 13)]
    assert [type(message) for message in worker.told] == [*[PromptLogprobs] * 3, FirstToken]


def test_the_engine_is_asked_for_the_tokens_that_follow_each_other() -> None:
    worker = make_worker(max_num_batched_tokens=6)
    worker.generate(make_request(prompt=8, prompt_logprobs=2))
    asked = []
    for _ in range(2):
        plan = worker.plan()
        asked.append((plan.slices[0].prompt_targets, plan.slices[0].prompt_logprobs))
        worker.feed(StepDone(result=step_result(plan)))
    assert asked == [((2, 3, 4, 5, 6, 7), LogprobsSpec(num_top=2)), ((8,), LogprobsSpec(num_top=2))]


def test_nobody_is_asked_who_does_not_want_them() -> None:
    worker = make_worker()
    worker.generate(make_request(prompt=8, logprobs=2))
    plan = worker.plan()
    assert (plan.slices[0].prompt_targets, plan.slices[0].prompt_logprobs) == ((), None)


def test_a_prompt_of_one_token_has_none() -> None:
    worker = make_worker()
    worker.generate(make_request(prompt=1, prompt_logprobs=0))
    worker.step()
    assert [type(message) for message in worker.told] == [FirstToken]


@pytest.mark.parametrize(("wanted", "chunk"), [(-1, 4), (99_999, 10), (20, 14), (None, 14)])
def test_a_step_tells_no_more_than_memory_holds(wanted: int | None, chunk: int) -> None:
    worker = make_worker(vocab_size=262_143, num_blocks=64, max_num_batched_tokens=64)
    worker.generate(make_request(prompt=14, prompt_logprobs=wanted))
    assert worker.plan().slices[0].num_scheduled_tokens == chunk


@pytest.mark.parametrize("changes", [{"prompt_logprobs": 0}, {"skip_reading_prefix_cache": True}])
def test_cached_blocks_are_not_read(changes: dict[str, Any]) -> None:
    worker = make_worker()
    worker.generate(make_request("a", prompt=14, max_tokens=1))
    worker.step()
    worker.take_told()
    worker.generate(make_request("b", prompt=14, max_tokens=1, **changes))
    worker.step()
    assert positions(worker) == ([(1, 13)] if "prompt_logprobs" in changes else [])
    assert worker.heard(FirstToken)[0].num_cached_tokens == 0
    worker.generate(make_request("c", prompt=14, max_tokens=1))
    worker.step()
    assert worker.heard(FirstToken)[1].num_cached_tokens == 12


def test_it_does_not_wait_for_a_prefix_that_it_would_not_read() -> None:
    limits = {"max_num_partial_prefills": 3, "max_long_partial_prefills": 3}
    scheduler, _ = make_scheduler(budget=12, long_prefill_token_threshold=4, **limits)
    scheduler.add(make_sequence("first", prompt=12))
    scheduler.add(make_sequence("waits", prompt=12, arrival_s=1.0))
    scheduler.add(make_sequence("reads nothing", prompt=12, arrival_s=2.0, prompt_logprobs=0))
    run_steps(scheduler, 1)
    assert scheduler.num_running == 2
    assert [name for name, _, _ in shape(plan_step(scheduler))] == ["first", "reads nothing"]


def test_what_it_computes_is_waited_for_and_read() -> None:
    scheduler, _ = make_scheduler(budget=8)
    first = make_sequence("first", prompt=12, prompt_logprobs=0)
    later = make_sequence("later", prompt=12, arrival_s=1.0)
    scheduler.add(first)
    scheduler.add(later)
    run_steps(scheduler, 2)
    assert later.num_cached_tokens == 8


def test_after_preemption_nothing_is_told_twice() -> None:
    worker = make_worker(num_blocks=6, max_num_batched_tokens=24)
    worker.generate(make_request("a", prompt=7, first=100, max_tokens=8))
    worker.generate(make_request("r", prompt=14, prompt_logprobs=0, max_tokens=9), now=1.0)
    for _ in range(9):
        worker.step()
    assert worker.core.scheduler.num_preemptions == 1
    worker.run()
    assert positions(worker) == [(1, 13)]


def test_a_prompt_that_was_told_is_computed_anew_at_once() -> None:
    seq = make_sequence(prompt=12, prompt_logprobs=0, max_chunk_tokens=4)
    entries = tuple(make_logprobs(token_id, at) for at, token_id in enumerate(seq.token_ids))
    for end in (4, 8, 12):
        assert seq.max_chunk_tokens == 4
        seq.num_computed_tokens = end
        seq.take_prompt_logprobs(entries[end - 3 : end + 1])
    assert seq.max_chunk_tokens > 12


def test_a_prompt_that_is_computed_anew_in_other_chunks_goes_on_where_it_was() -> None:
    seq = make_sequence(prompt=12, prompt_logprobs=0)
    entries = tuple(make_logprobs(token_id, at) for at, token_id in enumerate(seq.token_ids))
    told = []
    for start, end in ((0, 5), (0, 4), (4, 9), (9, 12), (0, 12)):
        targets = seq.prompt_targets(start, end)
        assert targets in ((), tuple(seq.token_ids[start + 1 : end + 1]))
        seq.num_computed_tokens = end
        told.append(seq.take_prompt_logprobs(entries[start + 1 :][: len(targets)]) if targets else None)
    assert told == [(1, entries[1:6]), None, (6, entries[6:10]), (10, entries[10:12]), None]


def test_the_prefill_worker_tells_them_and_the_decode_worker_does_not() -> None:
    pair = Pair(max_num_batched_tokens=8)
    spec = make_request(prompt=14, prompt_logprobs=0)
    pair.hand_over(spec)
    pair.d.step()
    assert positions(pair.p) == [(1, 8), (9, 13)]
    assert positions(pair.d) == []


def test_a_decode_worker_that_computes_the_prompt_itself_tells_nothing_and_takes_no_more_steps() -> None:
    pair = Pair(vocab_size=262_143)
    pair.broken_blocks = {0}
    pair.hand_over(make_request(prompt=14, prompt_logprobs=-1))
    plan = pair.d.plan()
    assert (plan.slices[0].num_scheduled_tokens, plan.slices[0].prompt_targets) == (15, ())


def test_one_message_tells_those_of_several_sequences() -> None:
    worker = make_worker()
    worker.generate(make_request(prompt=6, n=3, prompt_logprobs=0))
    worker.step()
    worker.step()
    assert positions(worker) == [(1, 5)]


# --- at the router ---


class Listener(Client):
    """Keeps what the client hears of the prompt."""

    def __init__(self, *worker_ids: str, **changes: Any) -> None:
        self.heard: list[tuple[int, int]] = []
        super().__init__(*worker_ids, **changes)

    def _file(self, effects: list[Any]) -> list[tuple[str, Any]]:
        for effect in effects:
            if isinstance(effect, EmitPromptLogprobs):
                told = effect.prompt_logprobs
                assert told.request_id == "r"
                end = told.start + len(told.entries)
                assert told.entries == told_of(told.start, end - 1).entries
                self.heard.append((told.start, end - 1))
        return super()._file(effects)


def told_of(first: int, last: int, request_id: str = "r") -> PromptLogprobs:
    entries = tuple(make_logprobs(at, at) for at in range(first, last + 1))
    return PromptLogprobs(request_id=request_id, start=first, entries=entries)


def test_the_client_hears_them_under_its_own_name() -> None:
    client = Listener("m", split=SplitMode.NEVER, router_name="east")
    client.submit(prompt=8, prompt_logprobs=0)
    ((_, sent),) = client.sent
    assert sent.spec.request_id != "r"
    client.says("m", told_of(1, 4, sent.spec.request_id))
    client.says("m", told_of(5, 7, sent.spec.request_id))
    assert client.heard == [(1, 4), (5, 7)]


def test_a_request_that_is_placed_anew_tells_each_position_once() -> None:
    client = Listener("p", "d", "p2")
    client.submit(prompt=10, prompt_logprobs=0)
    old = client.sent[0][0]
    client.says(old, told_of(1, 5))
    client.says(old, refused())
    (new, prefill), _ = client.sent[-2:]
    assert isinstance(prefill, Prefill)
    assert new != old
    name = prefill.spec.request_id
    client.says(old, told_of(6, 9))
    for first, last in ((1, 3), (4, 7), (8, 9)):
        client.says(new, told_of(first, last, name))
    assert client.heard == [(1, 5), (6, 7), (8, 9)]


@pytest.mark.parametrize(
    ("told", "message"),
    [
        (told_of(3, 4), "prompt log-probabilities of tokens 3 to 4; allowed: from 2 at most to 7"),
        (told_of(2, 8), "prompt log-probabilities of tokens 2 to 8; allowed: from 2 at most to 7"),
    ],
)
def test_a_worker_that_leaves_a_gap_ends_the_request(told: PromptLogprobs, message: str) -> None:
    client = Listener("m", split=SplitMode.NEVER)
    client.submit(prompt=8, prompt_logprobs=0)
    client.says("m", told_of(1, 1))
    client.says("m", told)
    assert client.code is ErrorCode.INTERNAL
    assert client.terminal.message == f"worker m gave {message}"


def test_a_first_token_before_the_last_of_them_ends_the_request() -> None:
    client = Listener("m", split=SplitMode.NEVER)
    client.submit(prompt=8, prompt_logprobs=0)
    client.says("m", told_of(1, 6))
    client.says("m", first_token())
    assert client.code is ErrorCode.INTERNAL
    assert not client.emitted


def test_what_nobody_asked_for_or_another_worker_says_is_dropped() -> None:
    client = Listener("m", "m2", split=SplitMode.NEVER)
    client.submit(prompt=8)
    client.says("m2", told_of(1, 7))
    client.submit("other", prompt=8, prompt_logprobs=0)
    client.says("m2", told_of(1, 7, "other"))
    assert [worker_id for worker_id, _ in client.sent] == ["m2", "m"]
    assert (client.heard, client.ends) == ([], [])


@pytest.mark.parametrize(("changes", "is_split"), [({}, False), ({"prompt_logprobs": 0}, True)])
def test_a_prompt_that_reads_no_cache_is_placed_as_if_nothing_were_cached(
    changes: dict[str, Any], is_split: bool
) -> None:
    client = Client("p", "d", split=SplitMode.AUTO)
    root = root_hash(make_identity())
    stored = tuple(block_hashes(root, make_prompt(4000), BLOCK_SIZE))
    client.says("d", CacheDelta(stored=stored))
    client.submit(prompt=3000, **changes)
    assert any(isinstance(message, Prefill) for _, message in client.sent) is is_split
