"""The states of a request at the router, and the inputs that change them."""

from __future__ import annotations

from enum import StrEnum
from typing import Final


class FlowState(StrEnum):
    WAITING = "waiting"
    """It waits for its first worker."""
    LOCAL = "local"
    """One worker computes the prompt and will decode."""
    SPLIT = "split"
    """A prefill worker computes the prompt; a decode worker was asked to reserve."""
    DECODING = "decoding"
    """The decode worker generates its tokens, perhaps after recomputing lost blocks."""
    AWAITING_DECODE = "awaiting_decode"
    """It has its first token and blocks held for it, but no decode worker."""
    MIGRATING = "migrating"
    """It lost its worker, or the worker gave it back, and no other worker has it yet."""
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
    MIGRATE = "migrate"
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
    (_S.LOCAL, _I.MIGRATE): _S.MIGRATING,
    (_S.LOCAL, _I.FAIL): _S.FAILED,
    (_S.SPLIT, _I.FIRST_TOKEN): _S.DECODING,
    (_S.SPLIT, _I.UNPLACED): _S.WAITING,
    (_S.SPLIT, _I.MIGRATE): _S.MIGRATING,
    (_S.SPLIT, _I.FINISH): _S.FINISHED,
    (_S.SPLIT, _I.FAIL): _S.FAILED,
    (_S.DECODING, _I.DECODER_LOST): _S.AWAITING_DECODE,
    (_S.DECODING, _I.MIGRATE): _S.MIGRATING,
    (_S.DECODING, _I.FINISH): _S.FINISHED,
    (_S.DECODING, _I.FAIL): _S.FAILED,
    (_S.AWAITING_DECODE, _I.DECODER_FOUND): _S.DECODING,
    (_S.AWAITING_DECODE, _I.FINISH): _S.FINISHED,
    (_S.AWAITING_DECODE, _I.MIGRATE): _S.MIGRATING,
    (_S.AWAITING_DECODE, _I.FAIL): _S.FAILED,
    (_S.MIGRATING, _I.PLACED_LOCAL): _S.LOCAL,
    (_S.MIGRATING, _I.PLACED_SPLIT): _S.SPLIT,
    (_S.MIGRATING, _I.RESUMED_LOCAL): _S.DECODING,
    (_S.MIGRATING, _I.FINISH): _S.FINISHED,
    (_S.MIGRATING, _I.FAIL): _S.FAILED,
}
TERMINAL: Final = frozenset({FlowState.FINISHED, FlowState.FAILED})
PREFILLING: Final = frozenset({FlowState.LOCAL, FlowState.SPLIT})
"""States in which a worker computes the prompt and the tokens generated so far."""
NEEDED_HALVES: Final = {_S.DECODING: ("decode",), _S.AWAITING_DECODE: ("prefill",)}
"""Halves whose workers a request cannot do without, by its state; in all others both."""
WITHOUT_WORKER: Final = frozenset({FlowState.AWAITING_DECODE, FlowState.MIGRATING})
"""States in which a request is placed before those that wait."""
