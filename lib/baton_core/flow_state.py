"""The states of a request at the router, and what moves it from one to another."""

from __future__ import annotations

from enum import StrEnum
from typing import Final


class FlowState(StrEnum):
    WAITING = "waiting"
    """No worker has it."""
    LOCAL = "local"
    """One worker computes the prompt and will decode."""
    SPLIT = "split"
    """A prefill worker computes the prompt; a decode worker was asked to reserve."""
    DECODING = "decoding"
    HOMELESS = "homeless"
    """It has its first token and blocks held for it, but the decode worker refused and no other is free."""
    FINISHED = "finished"
    FAILED = "failed"


class FlowInput(StrEnum):
    PLACED_LOCAL = "placed_local"
    PLACED_SPLIT = "placed_split"
    UNPLACED = "unplaced"
    FIRST_TOKEN = "first_token"  # noqa: S105
    DECODER_REFUSED = "decoder_refused"
    DECODER_FOUND = "decoder_found"
    FINISH = "finish"
    FAIL = "fail"


_S, _I = FlowState, FlowInput
TRANSITIONS: Final[dict[tuple[FlowState, FlowInput], FlowState]] = {
    (_S.WAITING, _I.PLACED_LOCAL): _S.LOCAL,
    (_S.WAITING, _I.PLACED_SPLIT): _S.SPLIT,
    (_S.WAITING, _I.FAIL): _S.FAILED,
    (_S.LOCAL, _I.FIRST_TOKEN): _S.DECODING,
    (_S.LOCAL, _I.UNPLACED): _S.WAITING,
    (_S.LOCAL, _I.FAIL): _S.FAILED,
    (_S.SPLIT, _I.FIRST_TOKEN): _S.DECODING,
    (_S.SPLIT, _I.UNPLACED): _S.WAITING,
    (_S.SPLIT, _I.FAIL): _S.FAILED,
    (_S.DECODING, _I.DECODER_REFUSED): _S.HOMELESS,
    (_S.DECODING, _I.FINISH): _S.FINISHED,
    (_S.DECODING, _I.FAIL): _S.FAILED,
    (_S.HOMELESS, _I.DECODER_FOUND): _S.DECODING,
    (_S.HOMELESS, _I.FINISH): _S.FINISHED,
    (_S.HOMELESS, _I.FAIL): _S.FAILED,
}
TERMINAL: Final = frozenset({FlowState.FINISHED, FlowState.FAILED})
