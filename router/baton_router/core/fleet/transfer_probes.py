"""Probes the transfer between each pair of workers: one computes a short prompt, the other pulls it.

A pair whose blocks do not arrive is broken: no request is split between the two until a later probe succeeds.
The router's shell drives it and sends its messages. For workers a probe is a normal request, with lease,
transport and checksums. Its blocks are free again at its end.
"""

from __future__ import annotations

from collections import deque
from collections.abc import Callable
from dataclasses import dataclass, replace
from typing import Final

from baton_core.requests.attempt_names import PROBE_MARK, is_probe
from baton_core.requests.sampling_params import SamplingParams
from baton_core.sessions.router_messages import (
    Cancel,
    Failed,
    FirstToken,
    FirstTokenOf,
    KVSource,
    Prefill,
    Refused,
    RequestSpec,
    Reserve,
    Start,
    TokenBatch,
    ToRouter,
    Transferred,
)
from baton_core.sessions.worker_info import WorkerInfo
from baton_router.core.router_events import SendToWorker

MAX_OPEN: Final = 2
"""Maximum number of open probes."""
PREFILL_WITHIN_S: Final = 30.0
PULL_WITHIN_S: Final = 10.0
"""Limit of a pull, longer than the consumer's own."""
AGAIN_AFTER_S: Final = 30.0
"""Time until the next probe of a pair that is broken or had no room."""


@dataclass(frozen=True, slots=True)
class Pair:
    prefill: str
    decode: str


@dataclass(frozen=True, slots=True, kw_only=True)
class _Probe:
    pair: Pair
    spec: RequestSpec
    deadline: float
    is_pulling: bool = False


class TransferProbes:
    """The probes of one router; `name` distinguishes them from those of other routers.

    Args:
        source: returns the KV source of a worker.
        on_result: gets a pair and the reason for which it is broken; empty where it is not.
    """

    def __init__(
        self, name: str, source: Callable[[str], KVSource], on_result: Callable[[Pair, str], None]
    ) -> None:
        self._name = name
        self._source = source
        self._on_result = on_result
        self._workers: dict[str, WorkerInfo] = {}
        self._waiting: deque[Pair] = deque()
        self._later: deque[tuple[float, Pair]] = deque()
        self._open: dict[str, _Probe] = {}
        self._num_probes = 0
        self._is_held = False

    @property
    def num_open(self) -> int:
        """Probes that have begun and not ended."""
        return len(self._open)

    def hold(self) -> None:
        """Begin no probe until `resume`; those that are open end."""
        self._is_held = True

    def resume(self, now: float) -> list[SendToWorker]:
        """Begin probes again."""
        self._is_held = False
        return self._begin(now)

    def join(self, now: float, info: WorkerInfo) -> list[SendToWorker]:
        """Add a worker and probe it with each of the others."""
        for other in self._workers.values():
            for one, two in ((info, other), (other, info)):
                if one.role.can_prefill and two.role.can_decode:
                    self._waiting.append(Pair(one.worker_id, two.worker_id))
        self._workers[info.worker_id] = info
        return self._begin(now)

    def leave(self, now: float, worker_id: str) -> list[SendToWorker]:
        """Remove a worker and its probes."""
        self._workers.pop(worker_id, None)
        self._waiting = deque(pair for pair in self._waiting if worker_id not in (pair.prefill, pair.decode))
        self._later = deque(one for one in self._later if worker_id not in (one[1].prefill, one[1].decode))
        sent: list[SendToWorker] = []
        for probe in list(self._open.values()):
            if worker_id in (probe.pair.prefill, probe.pair.decode):
                sent += self._end(probe)
        return sent + self._begin(now)

    def is_own(self, message: ToRouter) -> bool:
        """Return True if a message answers only probes."""
        if isinstance(message, TokenBatch):
            return all(is_probe(output.request_id) for output in message.outputs)
        return is_probe(getattr(message, "request_id", ""))

    def on_message(self, now: float, worker_id: str, message: ToRouter) -> list[SendToWorker]:
        """Take an answer; a late one has no effect."""
        probe = self._open.get(getattr(message, "request_id", ""))
        if probe is None or worker_id != (probe.pair.decode if probe.is_pulling else probe.pair.prefill):
            return []
        match message:
            case FirstToken(outputs=outputs) if not probe.is_pulling:
                return self._pull(now, probe, outputs[0].token_ids[0])
            case Transferred(num_blocks=num_blocks, num_recomputed_tokens=num_lost):
                if num_lost:
                    return self._conclude(
                        now, probe, f"{num_blocks} blocks arrived, {num_lost} tokens did not"
                    )
                return self._conclude(now, probe, "")
            case Failed(message=text) if probe.is_pulling:
                return self._conclude(now, probe, text)
            case Failed() | Refused():
                return self._retry_later(now, probe)
            case _:
                return []

    def next_deadline(self) -> float | None:
        """Time at which `on_deadline` is due."""
        deadlines = [probe.deadline for probe in self._open.values()] + [
            at for at, _ in list(self._later)[:1]
        ]
        return min(deadlines, default=None)

    def on_deadline(self, now: float) -> list[SendToWorker]:
        """End probes that take too long; start those that are due again."""
        sent: list[SendToWorker] = []
        for probe in [probe for probe in self._open.values() if probe.deadline <= now]:
            if probe.is_pulling:
                sent += self._conclude(now, probe, f"no blocks arrived within {PULL_WITHIN_S:g} s")
            else:
                sent += self._retry_later(now, probe)
        while self._later and self._later[0][0] <= now:
            self._waiting.append(self._later.popleft()[1])
        return sent + self._begin(now)

    # --- steps ---

    def _begin(self, now: float) -> list[SendToWorker]:
        sent: list[SendToWorker] = []
        while self._waiting and len(self._open) < MAX_OPEN and not self._is_held:
            pair = self._waiting.popleft()
            self._num_probes += 1
            spec = _make_spec(f"{PROBE_MARK}{self._name}.{self._num_probes}", self._workers[pair.prefill])
            self._open[spec.request_id] = _Probe(pair=pair, spec=spec, deadline=now + PREFILL_WITHIN_S)
            sent.append(SendToWorker(worker_id=pair.prefill, message=Prefill(spec=spec)))
        return sent

    def _pull(self, now: float, probe: _Probe, token_id: int) -> list[SendToWorker]:
        """Start the pull of the computed prompt, with a deadline of its own."""
        request_id, decode = probe.spec.request_id, probe.pair.decode
        self._open[request_id] = replace(probe, is_pulling=True, deadline=now + PULL_WITHIN_S)
        reserve = Reserve(spec=probe.spec, source=self._source(probe.pair.prefill))
        start = Start(request_id=request_id, first_tokens=(FirstTokenOf(index=0, token_id=token_id),))
        return [
            SendToWorker(worker_id=decode, message=reserve),
            SendToWorker(worker_id=decode, message=start),
        ]

    def _conclude(self, now: float, probe: _Probe, why_broken: str) -> list[SendToWorker]:
        self._on_result(probe.pair, why_broken)
        if why_broken:
            return self._retry_later(now, probe)
        return self._end(probe) + self._begin(now)

    def _retry_later(self, now: float, probe: _Probe) -> list[SendToWorker]:
        self._later.append((now + AGAIN_AFTER_S, probe.pair))
        return self._end(probe) + self._begin(now)

    def _end(self, probe: _Probe) -> list[SendToWorker]:
        del self._open[probe.spec.request_id]
        cancel = Cancel(request_id=probe.spec.request_id)
        there = [name for name in (probe.pair.prefill, probe.pair.decode) if name in self._workers]
        return [SendToWorker(worker_id=worker_id, message=cancel) for worker_id in there]


def _make_spec(request_id: str, info: WorkerInfo) -> RequestSpec:
    """Return a request with a prompt of less than a block, which no cache keeps."""
    num_tokens = max(1, min(info.identity.block_size, info.max_model_len) - 1)
    prompt = tuple(number % info.vocab_size for number in range(num_tokens))
    params = SamplingParams(temperature=0.0, max_tokens=2, ignore_eos=True, seed=0)
    return RequestSpec(request_id=request_id, prompt_token_ids=prompt, params=params)
