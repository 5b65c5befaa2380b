"""The grammar and the LoRA adapter that a request waits for before it can be computed."""

from __future__ import annotations

from collections.abc import Iterable

from baton_core.sessions.router_messages import RequestSpec
from baton_core.worker.sequence import Sequence
from baton_core.worker.worker_events import AdapterLoaded, GrammarCompiled, WorkerEffect
from baton_worker.core.adapter_cache import AdapterCache
from baton_worker.core.grammar_compilations import GrammarCompilations


class Preparations:
    """The requests of one worker that are being prepared; an adapter stays with its request until it ends."""

    def __init__(self, within_s: float, max_cpu_loras: int) -> None:
        self.grammars = GrammarCompilations(within_s)
        self.adapters = AdapterCache(max_cpu_loras, within_s)

    def __contains__(self, request_id: object) -> bool:
        """Say whether a request waits for something."""
        return request_id in self.grammars or request_id in self.adapters

    def begin(self, now: float, spec: RequestSpec) -> list[WorkerEffect]:
        """Take a request, which waits for what it needs."""
        if spec.adapter is not None:
            self.adapters.begin(now, spec.request_id, spec.adapter)
        if (grammar := spec.params.structured_outputs) is None:
            return []
        return [self.grammars.begin(now, spec.request_id, grammar, spec.tenant)]

    def end(self, event: GrammarCompiled | AdapterLoaded) -> tuple[str, ...]:
        """Take an answer; returns the requests that waited for it."""
        if isinstance(event, AdapterLoaded):
            return self.adapters.end(event)
        request_id = self.grammars.end(event.compilation_id)
        return () if request_id is None else (request_id,)

    def drop(self, request_id: str) -> None:
        """Forget a request that is over."""
        self.grammars.drop(request_id)
        self.adapters.drop(request_id)

    def load_adapters(
        self, now: float, in_flight: Iterable[Sequence]
    ) -> tuple[list[WorkerEffect], list[str]]:
        """Begin to load what has a place now, in that of adapters that no sequence in flight has.

        Returns what is to be done, and the requests that wait no longer for an adapter.
        """
        return self.adapters.advance(now, {seq.adapter_digest for seq in in_flight})

    def next_deadline(self) -> float | None:
        """The time when `overdue` names somebody."""
        deadlines = (self.grammars.next_deadline(), self.adapters.next_deadline())
        return min((one for one in deadlines if one is not None), default=None)

    def overdue(self, now: float) -> list[tuple[str, str]]:
        """Requests that waited too long, each once, with what for; they wait until they are dropped."""
        late = dict(self.grammars.overdue(now))
        return [*late.items(), *(one for one in self.adapters.overdue(now) if one[0] not in late)]

    def check_invariants(self, request_ids: Iterable[str]) -> None:
        """Raise AssertionError when somebody waits who is none of these."""
        self.grammars.check_invariants(request_ids)
        self.adapters.check_invariants(request_ids)
