from __future__ import annotations

import pytest

from baton_core.errors import InvalidRequestError
from baton_core.requests.finish import FinishReason
from baton_core.requests.logprobs import PositionLogprobs
from baton_core.sessions.router_messages import OutputSoFar, SequenceOutput
from baton_router.requests.generation import Delta, ReceivedSequence, Resumption
from baton_router.requests.resumption import ReceivedTokens, checked_counts, outputs_so_far, read_resumption


def entry(token_id: int) -> PositionLogprobs:
    return PositionLogprobs(token_ids=(token_id,), logprobs=(-1.0,), ranks=(1,))


def output(*token_ids: int, index: int = 0, reason: FinishReason | None = None) -> SequenceOutput:
    logprobs = tuple(map(entry, token_ids))
    return SequenceOutput(
        request_id="r", index=index, token_ids=token_ids, finish_reason=reason, logprobs=logprobs
    )


def delta(num_tokens: int, index: int = 0, reason: str | None = None) -> Delta:
    return Delta(index=index, text="", token_ids=(5,) * num_tokens, finish_reason=reason)


def test_an_output_is_cut_where_the_clients_tokens_end() -> None:
    received = ReceivedTokens((2,))
    last = output(5, 6, 7, reason=FinishReason.STOP)
    assert received.split(last) == ((output(5, 6), True), (output(7, reason=FinishReason.STOP), False))


def test_what_was_told_before_counts() -> None:
    received = ReceivedTokens((0, 3))
    assert received.split(output(5)) == ((output(5), False),)
    first = output(5, 6, index=1)
    assert received.split(first) == ((first, True),)
    received.note(delta(2, index=1))
    assert received.split(output(7, 8, index=1)) == ((output(7, index=1), True), (output(8, index=1), False))
    received.note(delta(2, index=1))
    assert received.split(output(9, index=1)) == ((output(9, index=1), False),)


def test_an_end_that_the_client_has_stays_in_the_part_that_it_has() -> None:
    last = output(5, 6, reason=FinishReason.LENGTH)
    assert ReceivedTokens((2,)).split(last) == ((last, True),)


def test_a_client_cannot_have_more_than_there_is() -> None:
    received = ReceivedTokens((0, 4))
    received.note(delta(2, index=1))
    with pytest.raises(InvalidRequestError) as caught:
        received.note(delta(1, index=1, reason="stop"))
    text = "num_received_tokens is [0, 4]; allowed: at most 3 of sequence 1, all that it has"
    assert str(caught.value) == text


def test_without_numbers_nothing_was_received() -> None:
    assert checked_counts(Resumption(token="t"), 3, 16) == (0, 0, 0)


@pytest.mark.parametrize("given", [(1,), (1, 2, 3), (17, 0), (-1, 0)])
def test_numbers_that_cannot_be_are_refused(given: tuple[int, ...]) -> None:
    with pytest.raises(InvalidRequestError) as caught:
        checked_counts(Resumption(token="t", num_received_tokens=given), 2, 16)
    allowed = "2 of them, one a sequence, each 0 to 16 tokens"
    assert str(caught.value) == f"num_received_tokens is {list(given)}; allowed: {allowed}"


def test_tokens_are_received_of_a_request_that_has_a_token() -> None:
    assert read_resumption("", ()) is None
    assert read_resumption("t", (3,)) == Resumption(token="t", num_received_tokens=(3,))
    with pytest.raises(InvalidRequestError, match=r"num_received_tokens is \[3\]; allowed: nothing, unless"):
        read_resumption("", [3])
    with pytest.raises(InvalidRequestError, match="received_token_ids is 'of 1 sequences'; allowed: beside"):
        read_resumption("t", [3], [ReceivedSequence(token_ids=(5, 6, 7))])
    with pytest.raises(InvalidRequestError, match="received_token_ids"):
        read_resumption("", (), [ReceivedSequence(token_ids=())])


def test_workers_go_on_with_the_sequences_that_are_not_over() -> None:
    over, going = ReceivedSequence(token_ids=(5, 6), is_finished=True), ReceivedSequence(token_ids=(7,))
    assert outputs_so_far([over, going], 10, 3) == (OutputSoFar(index=1, token_ids=(7,)),)
    assert outputs_so_far([over, over], 10, 3) == ()
    assert outputs_so_far([going, ReceivedSequence(token_ids=())], 10, 3) == (), "one has not begun"


def test_tokens_that_cannot_be_gone_on_with_are_refused() -> None:
    with pytest.raises(InvalidRequestError, match="received_token_ids is 10; allowed: token ids from 0 to 9"):
        outputs_so_far([ReceivedSequence(token_ids=(10,))], 10, 3)
    with pytest.raises(InvalidRequestError, match="'3 tokens, which end it'; allowed: with is_finished"):
        outputs_so_far([ReceivedSequence(token_ids=(5, 5, 5))], 10, 3)
    with pytest.raises(InvalidRequestError, match=r"received_token_ids is 'lengths \[4\]'; allowed: 1 of"):
        checked_counts(Resumption(token="t", received=(ReceivedSequence(token_ids=(5,) * 4),)), 1, 3)
