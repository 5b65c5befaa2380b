"""The tokens that the client of a resumed request has, after which its stream continues."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Final

import msgspec

from baton_core.errors import InvalidRequestError
from baton_core.requests.vocabulary import check_token_ids
from baton_core.sessions.router_messages import OutputSoFar, SequenceOutput
from baton_router.requests.generation import Delta, ReceivedSequence, Resumption

_FIELD: Final = "num_received_tokens"
_IDS_FIELD: Final = "received_token_ids"


class ReceivedTokens:
    """Splits each sequence into the part that its client has and the new part."""

    def __init__(self, counts: Sequence[int]) -> None:
        self.counts = tuple(counts)
        self._num_emitted = [0] * len(counts)

    def split(self, output: SequenceOutput) -> tuple[tuple[SequenceOutput, bool], ...]:
        """Split an output where its client's tokens end; each part says whether the client has it."""
        num_old = max(0, self.counts[output.index] - self._num_emitted[output.index])
        if not num_old:
            return ((output, False),)
        if num_old >= len(output.token_ids):
            return ((output, True),)
        ids, logprobs = output.token_ids, output.logprobs
        old = msgspec.structs.replace(
            output,
            token_ids=ids[:num_old],
            logprobs=logprobs[:num_old],
            finish_reason=None,
            stop_token_id=None,
        )
        new = msgspec.structs.replace(output, token_ids=ids[num_old:], logprobs=logprobs[num_old:])
        return ((old, True), (new, False))

    def note(self, delta: Delta) -> None:
        """Count the tokens of a delta.

        Raises:
            InvalidRequestError: the sequence ends with fewer tokens than its client claims to have.
        """
        self._num_emitted[delta.index] += len(delta.token_ids)
        num_emitted = self._num_emitted[delta.index]
        if delta.finish_reason is not None and num_emitted < self.counts[delta.index]:
            allowed = f"at most {num_emitted} of sequence {delta.index}, all that it has"
            raise InvalidRequestError(_FIELD, list(self.counts), allowed)


def read_resumption(
    token: str, num_received_tokens: Sequence[int], received: Sequence[ReceivedSequence] = ()
) -> Resumption | None:
    """Return a client's resumption of its broken stream; None where it starts a new request.

    Raises:
        InvalidRequestError: received tokens without a resume token, or received tokens beside their numbers.
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
    """Return the outputs after which workers continue.

    Empty where they generate from the beginning: no sequence continues, or one has no token yet.

    Raises:
        InvalidRequestError: a token is not the model's, or a sequence that is to continue has ended.
    """
    for one in received:
        check_token_ids(_IDS_FIELD, one.token_ids, vocab_size)
        if not one.is_finished and len(one.token_ids) >= max_tokens:
            raise already_finished(len(one.token_ids))
    going = [(index, one) for index, one in enumerate(received) if not one.is_finished]
    if not all(one.token_ids for _, one in going):
        return ()
    return tuple(OutputSoFar(index=index, token_ids=one.token_ids) for index, one in going)


def already_finished(num_tokens: int) -> InvalidRequestError:
    """Return the error for tokens that end a sequence which is to continue."""
    return InvalidRequestError(_IDS_FIELD, f"{num_tokens} tokens, which end it", "with is_finished")
