"""What a client already has of the sequences of a request that runs again from its beginning."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import replace
from typing import Final

from baton_core.errors import InvalidRequestError
from baton_core.sessions.router_messages import OutputSoFar, SequenceOutput
from baton_router.generation import Delta, ReceivedSequence, Resumption
from baton_router.validation import check_token_ids

_FIELD: Final = "num_received_tokens"
_IDS_FIELD: Final = "received_token_ids"


class ReceivedTokens:
    """Finds the place in each sequence where what is new to its client begins."""

    def __init__(self, counts: Sequence[int]) -> None:
        self.counts = tuple(counts)
        self._num_told = [0] * len(counts)

    def split(self, output: SequenceOutput) -> tuple[tuple[SequenceOutput, bool], ...]:
        """Cut an output where its client's tokens end; each part with whether the client has it."""
        num_old = max(0, self.counts[output.index] - self._num_told[output.index])
        if not num_old:
            return ((output, False),)
        if num_old >= len(output.token_ids):
            return ((output, True),)
        ids, logprobs = output.token_ids, output.logprobs
        old = replace(
            output,
            token_ids=ids[:num_old],
            logprobs=logprobs[:num_old],
            finish_reason=None,
            stop_token_id=None,
        )
        return ((old, True), (replace(output, token_ids=ids[num_old:], logprobs=logprobs[num_old:]), False))

    def note(self, delta: Delta) -> None:
        """Count what was made of an output.

        Raises:
            InvalidRequestError: the sequence ends with fewer tokens than its client says to have.
        """
        self._num_told[delta.index] += len(delta.token_ids)
        num_told = self._num_told[delta.index]
        if delta.finish_reason is not None and num_told < self.counts[delta.index]:
            allowed = f"at most {num_told} of sequence {delta.index}, all that it has"
            raise InvalidRequestError(_FIELD, list(self.counts), allowed)


def read_resumption(
    token: str, num_received_tokens: Sequence[int], received: Sequence[ReceivedSequence] = ()
) -> Resumption | None:
    """Return what a client says of its broken stream; None where it says nothing.

    Raises:
        InvalidRequestError: it has received tokens, but has no token; or it tells them and their numbers.
    """
    if num_received_tokens and not token:
        raise InvalidRequestError(_FIELD, list(num_received_tokens), "nothing, unless resume_token is given")
    if received and (num_received_tokens or not token):
        allowed = "beside resume_token, and instead of num_received_tokens"
        raise InvalidRequestError(_IDS_FIELD, f"of {len(received)} sequences", allowed)
    if not token:
        return None
    return Resumption(token=token, num_received_tokens=tuple(num_received_tokens), received=tuple(received))


def checked_counts(resumption: Resumption, n: int, max_tokens: int) -> tuple[int, ...]:
    """Return the tokens received of each of `n` sequences, none of any where nothing is given.

    Raises:
        InvalidRequestError: there are not as many numbers as sequences, or one is not 0 to `max_tokens`.
    """
    lengths = tuple(len(one.token_ids) for one in resumption.received)
    given = resumption.num_received_tokens or lengths
    counts = given or (0,) * n
    if len(counts) != n or not all(0 <= count <= max_tokens for count in counts):
        field = _IDS_FIELD if lengths else _FIELD
        what = f"lengths {list(lengths)}" if lengths else list(given)
        raise InvalidRequestError(field, what, f"{n} of them, one a sequence, each 0 to {max_tokens} tokens")
    return counts


def outputs_so_far(
    received: Sequence[ReceivedSequence], vocab_size: int, max_tokens: int
) -> tuple[OutputSoFar, ...]:
    """Return what workers need to go on behind these tokens.

    Empty where they cannot, and generate from the beginning: no sequence goes on, or one has no token yet.

    Raises:
        InvalidRequestError: a token is none of the model's, or a sequence is over that is said to go on.
    """
    for one in received:
        check_token_ids(_IDS_FIELD, one.token_ids, vocab_size)
        if not one.is_finished and len(one.token_ids) >= max_tokens:
            raise over_already(len(one.token_ids))
    going = [(index, one) for index, one in enumerate(received) if not one.is_finished]
    if not all(one.token_ids for _, one in going):
        return ()
    return tuple(OutputSoFar(index=index, token_ids=one.token_ids) for index, one in going)


def over_already(num_tokens: int) -> InvalidRequestError:
    """The refusal of tokens that end a sequence which is said to go on."""
    return InvalidRequestError(_IDS_FIELD, f"{num_tokens} tokens, which end it", "with is_finished")
