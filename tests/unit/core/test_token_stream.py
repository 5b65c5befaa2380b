"""A client sees each token of its sequences once, and none after the end."""

from __future__ import annotations

from baton_core.requests.finish import FinishReason
from baton_core.sessions.router_messages import FirstToken, OutputSoFar, SequenceOutput
from baton_router.core.flow.token_stream import TokenStream
from baton_router.core.router_events import EmitTokens
from tests.builders import make_request


def output(index: int = 0, *token_ids: int, reason: FinishReason | None = None) -> SequenceOutput:
    return SequenceOutput(request_id="r#1", index=index, token_ids=token_ids or (5,), finish_reason=reason)


def test_tokens_go_out_under_the_name_that_the_client_gave() -> None:
    (effect,) = TokenStream(0.0, make_request("r")).take(1.0, output(0, 5, 6))
    assert isinstance(effect, EmitTokens)
    assert (effect.request_id, effect.output.token_ids) == ("r", (5, 6))


def test_the_first_tokens_of_a_sequence_bring_the_number_of_cached_prompt_tokens() -> None:
    stream = TokenStream(0.0, make_request(n=2))
    for num_cached_tokens in (3, 0):  # a second attempt computes what the first one has found
        stream.begin_attempt("weights")
        outputs = (output(0), output(1))
        first = FirstToken(
            request_id="r#1", outputs=outputs, num_cached_tokens=num_cached_tokens, queue_s=0.0, prefill_s=0.0
        )
        assert stream.collect_first(first) == outputs
    effects = [effect for one in (*outputs, *outputs) for effect in stream.take(1.0, one)]
    assert [getattr(effect, "num_cached_tokens", "") for effect in effects] == [3, 3, None, None]


def test_a_stream_is_over_when_all_its_sequences_are() -> None:
    stream = TokenStream(0.0, make_request(n=2))
    stream.take(1.0, output(0, reason=FinishReason.STOP))
    assert not stream.is_over
    assert stream.stop(1)
    assert stream.is_over
    assert not stream.stop(1)


def test_tokens_after_a_stop_are_counted_as_waste() -> None:
    stream = TokenStream(0.0, make_request(n=2))
    stream.take(1.0, output(0))
    stream.stop(0)
    assert stream.take(2.0, output(0, 7, 8)) == []
    assert (stream.num_tokens, stream.num_wasted_tokens) == (1, 2)


def test_first_tokens_are_kept_of_the_sequences_that_go_on() -> None:
    stream = TokenStream(0.0, make_request(n=3))
    stream.take(1.0, output(0, 5))
    stream.take(1.0, output(1, 6, reason=FinishReason.STOP))
    stream.take(1.0, output(2, 7))
    stream.take(2.0, output(0, 8))
    assert stream.first_tokens == {0: 5, 2: 7}
    stream.stop(2)
    assert stream.first_tokens == {0: 5}


def test_time_per_token_is_that_of_the_longest_sequence() -> None:
    stream = TokenStream(0.0, make_request(n=2))
    assert stream.per_token_s == 0.0
    stream.take(1.0, output(0))
    stream.take(1.0, output(1))
    assert stream.per_token_s == 0.0
    stream.take(2.0, output(1))
    stream.take(5.0, output(1, 8, 9))
    assert stream.per_token_s == 4.0 / 3


def test_times_are_those_of_the_tokens_of_this_call() -> None:
    given = (OutputSoFar(index=1, token_ids=(5, 6, 7, 8)), OutputSoFar(index=2, token_ids=(5,)))
    stream = TokenStream(10.0, make_request(n=3, resumed=given))
    assert (stream.first_s, stream.per_token_s) == (10.0, 0.0)
    stream.take(12.0, output(1))
    for seconds in range(3):
        stream.take(13.0 + seconds, output(2))
    assert (stream.first_s, stream.per_token_s) == (12.0, 1.0)
