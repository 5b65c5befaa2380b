"""Log-probabilities of drawn tokens: each with its token, from the step to the client."""

from __future__ import annotations

from baton_core.errors import ErrorCode
from baton_core.requests.logprobs import PositionLogprobs
from baton_core.sessions.router_messages import FirstToken, Prefill, SequenceOutput, TokenBatch
from baton_core.worker.step_plan import StepResult
from baton_core.worker.worker_events import StepDone
from baton_router.core.placement.placement_config import SplitMode
from tests.builders import make_logprobs, make_request
from tests.unit.core.routers import Client, batch, first_token, refused, tokens
from tests.unit.core.workers import Pair, Worker, make_worker


def told(worker: Worker) -> dict[tuple[str, int], list[PositionLogprobs]]:
    """By request and index, what the router was told of each sequence."""
    entries: dict[tuple[str, int], list[PositionLogprobs]] = {}
    for message in worker.told:
        if isinstance(message, FirstToken | TokenBatch):
            for output in message.outputs:
                entries.setdefault((output.request_id, output.index), []).extend(output.logprobs)
    return entries


def test_each_token_comes_with_its_own() -> None:
    worker = make_worker()
    worker.generate(make_request("a", prompt=6, max_tokens=2, logprobs=1))
    worker.generate(make_request("b", prompt=5, first=100, max_tokens=2))
    worker.generate(make_request("c", prompt=4, first=200, n=2, max_tokens=2, logprobs=1))
    for token_id in (500, 501):
        worker.step(token_id=token_id)
    assert told(worker) == {
        ("a", 0): [make_logprobs(500, 6), make_logprobs(501, 7)],
        ("b", 0): [],
        ("c", 0): [make_logprobs(500, 4), make_logprobs(501, 5)],
        ("c", 1): [make_logprobs(500, 4), make_logprobs(501, 5)],
    }


def test_sequences_drawn_together_get_each_its_own() -> None:
    worker = make_worker()
    worker.generate(make_request(n=2, logprobs=1))
    plan = worker.plan()
    both = (make_logprobs(500, 8), make_logprobs(501, 8))
    result = StepResult(step_id=plan.step_id, sampled=((500, 501),), logprobs={0: both})
    worker.feed(StepDone(result=result))
    (first,) = worker.heard(FirstToken)
    assert [output.logprobs for output in first.outputs] == [(both[0],), (both[1],)]


def test_those_of_a_sequence_that_is_over_reach_nobody_else() -> None:
    worker = make_worker()
    for name, first in (("a", 1), ("b", 100)):
        worker.generate(make_request(name, first=first, logprobs=1))
    plan = worker.plan()
    worker.cancel("a")
    entries = {0: (make_logprobs(1, 8),), 1: (make_logprobs(2, 8),)}
    result = StepResult(step_id=plan.step_id, sampled=((1,), (2,)), logprobs=entries)
    worker.feed(StepDone(result=result))
    assert told(worker) == {("b", 0): [make_logprobs(2, 8)]}


def test_they_go_on_after_the_hand_over() -> None:
    pair = Pair()
    pair.hand_over(make_request(prompt=8, logprobs=1))
    pair.d.step(token_id=501)
    assert told(pair.p) == {("r", 0): [make_logprobs(500, 8)]}
    assert told(pair.d) == {("r", 0): [make_logprobs(501, 9)]}


# --- at the router ---


def with_logprobs(index: int, token_id: int) -> SequenceOutput:
    entry = make_logprobs(token_id, index)
    return SequenceOutput(request_id="r", index=index, token_ids=(token_id,), logprobs=(entry,))


def test_first_tokens_that_come_in_parts_are_one_first_token() -> None:
    client = Client("m", split=SplitMode.NEVER)
    client.submit(n=3, logprobs=1)
    for index in (1, 0):
        client.says("m", first_token("r", with_logprobs(index, 5 + index)))
        assert not client.emitted
    client.says("m", first_token("r", with_logprobs(2, 7)))
    assert client.emitted == [(1, (6,)), (0, (5,)), (2, (7,))]
    client.says("m", batch(tokens("r", 1)))
    assert client.emitted[-1] == (1, (6,))


def test_parts_of_an_earlier_placement_do_not_count() -> None:
    client = Client("p", "d", "p2", "d2")
    client.submit(n=2)
    (old, _), _ = client.sent
    client.says(old, first_token("r", tokens("r", 0, 5)))
    client.says(old, refused())
    (anew,) = [message.spec.request_id for _, message in client.sent if isinstance(message, Prefill)][1:]
    new = client.sent[-2][0]
    client.says(new, first_token(anew, tokens(anew, 1, 8)))
    assert not client.emitted
    client.says(new, first_token(anew, tokens(anew, 0, 9)))
    assert client.emitted == [(1, (8,)), (0, (9,))]


def test_a_sequence_with_two_first_tokens_ends_the_request() -> None:
    client = Client("m", split=SplitMode.NEVER)
    client.submit(n=3)
    client.says("m", first_token("r", tokens("r", 0, 5)))
    client.says("m", first_token("r", tokens("r", 0, 6)))
    assert client.code is ErrorCode.INTERNAL
    assert "first tokens of sequences [0], not [0, 1, 2]" in client.terminal.message
