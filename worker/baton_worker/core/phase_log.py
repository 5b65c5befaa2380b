"""The phases of one request at this worker, and the sources of its prompt tokens.

Grows with the steps that computed its prompt and with its copies, up to a maximum, and never with its tokens.
"""

from __future__ import annotations

from collections.abc import Set
from typing import Final

from baton_core.kv_layout.paging import NO_BLOCK
from baton_core.requests.phases import Phase, PhaseName, PhaseReport
from baton_core.sessions.router_messages import RequestSpec
from baton_core.worker.sequence import Sequence
from baton_core.worker.worker_events import Pull
from baton_worker.core.prompt_sources import PromptSources

MAX_PHASES: Final = 128
"""Chunks and copies that are reported for one request; the others are counted."""


class PhaseLog:
    """The phases of one attempt of a request, from when it was taken until it is reported."""

    def __init__(self, now: float, router_id: str, spec: RequestSpec, *, is_pulled: bool) -> None:
        self.router_id = router_id
        self._spec = spec
        self._num_prompt_tokens = len(spec.prompt_token_ids)
        self._is_pulled = is_pulled
        self._queued_s: float | None = None if is_pulled else now
        """Since when it waits for its first chunk; None where it does not."""
        self._ready_s: float | None = None
        """Since when it could decode; None before, and once it does."""
        self._decoding_s: float | None = None
        """Start of its first step of decoding."""
        self._num_decoded_tokens = self._num_drafted = self._num_accepted = 0
        self._copies: dict[int, tuple[float, Pull]] = {}
        self._phases: list[Phase] = []
        self._num_left_out = 0
        self._sources = PromptSources(self._num_prompt_tokens)

    def reserve(self, leader: Sequence, pending: Set[int], block_size: int) -> None:
        """Blocks of its tables that are not pending are here already."""
        for index in range(leader.tables.num_entries):
            blocks = {table[index] for table in leader.tables} - {NO_BLOCK}
            if blocks and blocks.isdisjoint(pending):
                self._sources.find(index * block_size, (index + 1) * block_size)

    def begin_copy(self, now: float, pull: Pull) -> None:
        self._copies[pull.pull_id] = (now, pull)

    def end_copy(self, now: float, pull_id: int, num_bytes: int) -> None:
        """End a copy: `num_bytes` arrived and are right."""
        start_s, pull = self._copies.pop(pull_id)
        self._add_copy(start_s, now, pull, num_bytes)

    def make_ready(self, now: float, leader: Sequence) -> None:
        """Its first tokens are known, and the blocks of its prompt that there will be are here."""
        if self._decoding_s is not None:
            return
        self._ready_s = now
        if self._is_pulled:
            self._sources.pull(0, leader.num_computed_tokens)
            self._sources.lose(leader.num_computed_tokens)

    def compute(self, start_s: float, now: float, start: int, end: int, num_initial: int) -> None:
        """A step computed the tokens from position `start` to `end`: of those given, or the first behind."""
        if self._queued_s is not None:
            self._phases.append(Phase(name=PhaseName.QUEUE, start_s=self._queued_s, end_s=start_s))
            self._queued_s = None
        self._sources.find(0, start)
        if start < num_initial:
            self._sources.compute(start, end)
            num_tokens = min(end, num_initial) - start
            self._add(Phase(name=PhaseName.PREFILL_CHUNK, start_s=start_s, end_s=now, num_tokens=num_tokens))
        if end > num_initial and self._ready_s is not None:
            self._phases.append(Phase(name=PhaseName.DECODE_QUEUE, start_s=self._ready_s, end_s=start_s))
            self._ready_s, self._decoding_s = None, start_s

    def verify(self, num_drafted: int, num_accepted: int) -> None:
        """A step verified so many drafted tokens, and so many of them were right."""
        self._num_drafted += num_drafted
        self._num_accepted += num_accepted

    def end_sequence(self, seq: Sequence) -> None:
        """The first token of a sequence is the end of its prompt; the others were decoded."""
        self._num_decoded_tokens += max(0, seq.num_tokens - seq.num_initial_tokens - 1)

    def report(self, now: float) -> PhaseReport:
        """Return the report; phases that have not ended end now."""
        for start_s, pull in self._copies.values():
            self._add_copy(start_s, now, pull, 0)
        open_phases = ((PhaseName.QUEUE, self._queued_s), (PhaseName.DECODE_QUEUE, self._ready_s))
        self._phases += [
            Phase(name=name, start_s=start_s, end_s=now)
            for name, start_s in open_phases
            if start_s is not None
        ]
        if self._decoding_s is not None:
            decode = Phase(
                name=PhaseName.DECODE,
                start_s=self._decoding_s,
                end_s=now,
                num_tokens=self._num_decoded_tokens,
                num_drafted=self._num_drafted,
                num_accepted=self._num_accepted,
            )
            self._phases.append(decode)
        return PhaseReport(
            request_id=self._spec.request_id,
            phases=tuple(sorted(self._phases, key=lambda phase: phase.start_s)),
            sources=self._sources.counts,
            num_left_out=self._num_left_out,
            sent_s=now,
            traceparent=self._spec.traceparent,
        )

    def _add_copy(self, start_s: float, now: float, pull: Pull, num_bytes: int) -> None:
        peer = pull.source.worker_id
        self._add(Phase(name=PhaseName.TRANSFER, start_s=start_s, end_s=now, num_bytes=num_bytes, peer=peer))

    def _add(self, phase: Phase) -> None:
        if len(self._phases) < MAX_PHASES:
            self._phases.append(phase)
        else:
            self._num_left_out += 1
