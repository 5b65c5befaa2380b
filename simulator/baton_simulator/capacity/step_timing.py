"""How long a model's steps take: a sum over what a step computes, with constants from a measured run.

`bench/calibrate.py` measures them; the simulator and the timers of `bench` take them for granted.
"""

from __future__ import annotations

from collections.abc import Iterable
from pathlib import Path
from typing import Annotated, Final

import msgspec

from baton_core.errors import InvalidConfigError
from baton_core.worker.step_plan import SequenceSlice

DECODES_TOGETHER: Final = 4
"""Sequences that share a step, as loads are estimated."""
_Seconds = Annotated[float, msgspec.Meta(ge=0, le=3600)]


class StepTiming(msgspec.Struct, frozen=True, kw_only=True, forbid_unknown_fields=True):
    """Seconds that parts of a step take. A slice of one token is a decode, a longer one part of a prompt."""

    step_s: _Seconds
    """Each step, whatever it computes."""
    prompt_token_s: _Seconds
    prompt_pair_s: _Seconds
    """A prompt's token and one of the tokens that it sees, itself included."""
    decode_s: _Seconds
    decode_context_s: _Seconds
    """A decode and one of the tokens that it sees."""

    def seconds(self, slices: Iterable[SequenceSlice]) -> float:
        """How long a step of these slices takes."""
        return sum(cost * amount for cost, amount in zip(self.costs(), work(slices), strict=True))

    def request_seconds(self, prompt_len: int, num_cached: int, num_tokens: int, *, chunk: int) -> float:
        """How long a request keeps an engine busy.

        Its prompt is computed in chunks, alone; its tokens share their steps with three other sequences.
        """
        num_computed, seen = prompt_len - num_cached, num_tokens // 2 + prompt_len
        pairs = num_computed * num_cached + num_computed * (num_computed + 1) / 2
        num_steps = -(-num_computed // chunk)
        prefill_s = num_steps * self.step_s + num_computed * self.prompt_token_s + pairs * self.prompt_pair_s
        decode_s = self.step_s / DECODES_TOGETHER + self.decode_s + seen * self.decode_context_s
        return prefill_s + num_tokens * decode_s

    def costs(self) -> tuple[float, ...]:
        """In the order of `work`."""
        return msgspec.structs.astuple(self)


class TimingProfile(msgspec.Struct, frozen=True, kw_only=True, forbid_unknown_fields=True):
    """The timing of one model on one machine."""

    model: str
    machine: str
    is_measured: bool
    """False: an assumption, made to stand for a machine that was not there."""
    source: str
    """The command that measured it, or what was assumed."""
    kv_bytes_per_token: Annotated[int, msgspec.Meta(ge=1)]
    timing: StepTiming
    mean_error: float = 0.0
    """Mean relative error of the fit to the measured steps."""

    def __str__(self) -> str:
        kind = "timer calibrated on a measured run" if self.is_measured else "ASSUMED timer, not measured"
        return f"{kind}: {self.model} on {self.machine} ({self.source})"


def work(slices: Iterable[SequenceSlice]) -> tuple[float, ...]:
    """Return the work of a step: 1, prompt tokens, prompt pairs, decodes, their contexts."""
    tokens = pairs = decodes = contexts = 0
    for piece in slices:
        count, start = piece.num_scheduled_tokens, piece.start
        if count == 1:
            decodes += 1
            contexts += start + 1
        else:
            tokens += count
            pairs += count * start + count * (count + 1) // 2
    return (1, tokens, pairs, decodes, contexts)


def read_profile(path: Path) -> TimingProfile:
    """Read a file that `bench/calibrate.py` wrote.

    Raises:
        InvalidConfigError: there is none, or it is no profile.
    """
    try:
        return msgspec.json.decode(path.read_bytes(), type=TimingProfile)
    except OSError as error:
        raise InvalidConfigError(f"{path} is no readable file: {error}") from None
    except msgspec.DecodeError as error:
        raise InvalidConfigError(f"{path} is no profile of a machine: {error}") from None


def write_profile(path: Path, profile: TimingProfile) -> None:
    path.write_bytes(msgspec.json.format(msgspec.json.encode(profile), indent=2) + b"\n")
