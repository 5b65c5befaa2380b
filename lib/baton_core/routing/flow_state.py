"""The states of a request at the router, and what moves it from one to another."""

from __future__ import annotations

from enum import StrEnum
from typing import Final


class FlowState(StrEnum):
    WAITING = "waiting"
    """No worker has had it."""
    LOCAL = "local"
    """One worker computes the prompt and will decode."""
    SPLIT = "split"
    """A prefill worker computes the prompt; a decode worker was asked to reserve."""
    DECODING = "decoding"
    """Its tokens come from the decode worker, which may have to compute first what another one lost."""
    HOMELESS = "homeless"
    """It has its first token and blocks held for it, but no decode worker."""
    MOVING = "moving"
    """A worker that had it is lost or gave it back, and no other has it yet."""
    FINISHED = "finished"
    FAILED = "failed"


class FlowInput(StrEnum):
    PLACED_LOCAL = "placed_local"
    PLACED_SPLIT = "placed_split"
    RESUMED_LOCAL = "resumed_local"
    """Placed at one worker, with the tokens that it has so far."""
    UNPLACED = "unplaced"
    FIRST_TOKEN = "first_token"  # noqa: S105
    DECODER_LOST = "decoder_lost"
    """The decode worker refused or is lost, and the blocks are still held."""
    DECODER_FOUND = "decoder_found"
    MOVE = "move"
    FINISH = "finish"
    FAIL = "fail"


_S, _I = FlowState, FlowInput
TRANSITIONS: Final[dict[tuple[FlowState, FlowInput], FlowState]] = {
    (_S.WAITING, _I.PLACED_LOCAL): _S.LOCAL,
    (_S.WAITING, _I.PLACED_SPLIT): _S.SPLIT,
    (_S.WAITING, _I.RESUMED_LOCAL): _S.DECODING,
    (_S.WAITING, _I.FAIL): _S.FAILED,
    (_S.LOCAL, _I.FIRST_TOKEN): _S.DECODING,
    (_S.LOCAL, _I.UNPLACED): _S.WAITING,
    (_S.LOCAL, _I.MOVE): _S.MOVING,
    (_S.LOCAL, _I.FAIL): _S.FAILED,
    (_S.SPLIT, _I.FIRST_TOKEN): _S.DECODING,
    (_S.SPLIT, _I.UNPLACED): _S.WAITING,
    (_S.SPLIT, _I.MOVE): _S.MOVING,
    (_S.SPLIT, _I.FINISH): _S.FINISHED,
    (_S.SPLIT, _I.FAIL): _S.FAILED,
    (_S.DECODING, _I.DECODER_LOST): _S.HOMELESS,
    (_S.DECODING, _I.MOVE): _S.MOVING,
    (_S.DECODING, _I.FINISH): _S.FINISHED,
    (_S.DECODING, _I.FAIL): _S.FAILED,
    (_S.HOMELESS, _I.DECODER_FOUND): _S.DECODING,
    (_S.HOMELESS, _I.FINISH): _S.FINISHED,
    (_S.HOMELESS, _I.MOVE): _S.MOVING,
    (_S.HOMELESS, _I.FAIL): _S.FAILED,
    (_S.MOVING, _I.PLACED_LOCAL): _S.LOCAL,
    (_S.MOVING, _I.PLACED_SPLIT): _S.SPLIT,
    (_S.MOVING, _I.RESUMED_LOCAL): _S.DECODING,
    (_S.MOVING, _I.FINISH): _S.FINISHED,
    (_S.MOVING, _I.FAIL): _S.FAILED,
}
TERMINAL: Final = frozenset({FlowState.FINISHED, FlowState.FAILED})
PREFILLING: Final = frozenset({FlowState.LOCAL, FlowState.SPLIT})
"""Its prompt, or what it has generated elsewhere as well, is computed."""
WITHOUT_WORKER: Final = frozenset({FlowState.HOMELESS, FlowState.MOVING})
"""It looks for one before those that wait."""
