"""Tries each pair of workers once: a prompt of less than a block is computed at one and pulled by the other.

A pair whose blocks do not arrive is broken: no request is split between the two until a later try succeeds.
Fed by the router's shell, whose sessions carry what it sends. To the workers it is a request like any other,
so it meets what requests will meet: leases, transport, checksums. Its blocks are free again when it ends.
"""

from __future__ import annotations

from collections import deque
from collections.abc import Callable
from dataclasses import dataclass, replace
from typing import Final

from baton_core.requests.sampling_params import SamplingParams
from baton_core.routing.router_events import SendToWorker
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

CHECK_MARK: Final = "pair-check:"
"""What the names of these requests begin with."""
MAX_OPEN: Final = 2
"""Tries at a time."""
PREFILL_WITHIN_S: Final = 30.0
PULL_WITHIN_S: Final = 10.0
"""More than a puller takes to give up by itself."""
AGAIN_AFTER_S: Final = 30.0
"""When a pair is tried again that is broken, or one of which had no room."""


@dataclass(frozen=True, slots=True)
class Pair:
    prefill: str
    decode: str


@dataclass(frozen=True, slots=True, kw_only=True)
class _Try:
    pair: Pair
    spec: RequestSpec
    deadline: float
    is_pulling: bool = False


class PairChecks:
    """Of one router; `name` tells its tries from those of other routers at the same workers.

    Args:
        source: where blocks of a worker are pulled from.
        on_result: told of a pair, and why it is broken; an empty text where it is not.
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
        self._open: dict[str, _Try] = {}
        self._num_tries = 0

    def join(self, now: float, info: WorkerInfo) -> list[SendToWorker]:
        """A worker is there: try it with each of the others."""
        for other in self._workers.values():
            for one, two in ((info, other), (other, info)):
                if one.role.can_prefill and two.role.can_decode:
                    self._waiting.append(Pair(one.worker_id, two.worker_id))
        self._workers[info.worker_id] = info
        return self._begin(now)

    def leave(self, now: float, worker_id: str) -> list[SendToWorker]:
        """Forget what concerns a worker."""
        self._workers.pop(worker_id, None)
        self._waiting = deque(pair for pair in self._waiting if worker_id not in (pair.prefill, pair.decode))
        self._later = deque(one for one in self._later if worker_id not in (one[1].prefill, one[1].decode))
        sent: list[SendToWorker] = []
        for one in list(self._open.values()):
            if worker_id in (one.pair.prefill, one.pair.decode):
                sent += self._end(one)
        return sent + self._begin(now)

    def is_own(self, message: ToRouter) -> bool:
        """Whether a message is an answer to a try, and nothing else."""
        if isinstance(message, TokenBatch):
            return all(output.request_id.startswith(CHECK_MARK) for output in message.outputs)
        return getattr(message, "request_id", "").startswith(CHECK_MARK)

    def on_message(self, now: float, worker_id: str, message: ToRouter) -> list[SendToWorker]:
        """Take an answer; one that comes late changes nothing."""
        one = self._open.get(getattr(message, "request_id", ""))
        if one is None or worker_id != (one.pair.decode if one.is_pulling else one.pair.prefill):
            return []
        match message:
            case FirstToken(outputs=outputs) if not one.is_pulling:
                return self._pull(now, one, outputs[0].token_ids[0])
            case Transferred(num_blocks=num_blocks, num_recomputed_tokens=num_lost):
                if num_lost:
                    return self._verdict(now, one, f"{num_blocks} blocks arrived, {num_lost} tokens did not")
                return self._verdict(now, one, "")
            case Failed(message=text) if one.is_pulling:
                return self._verdict(now, one, text)
            case Failed() | Refused():
                return self._put_off(now, one)
            case _:
                return []

    def next_deadline(self) -> float | None:
        """When `on_deadline` is due."""
        deadlines = [one.deadline for one in self._open.values()] + [at for at, _ in list(self._later)[:1]]
        return min(deadlines, default=None)

    def on_deadline(self, now: float) -> list[SendToWorker]:
        """End what takes too long; begin again what was put off."""
        sent: list[SendToWorker] = []
        for one in [one for one in self._open.values() if one.deadline <= now]:
            if one.is_pulling:
                sent += self._verdict(now, one, f"no blocks arrived within {PULL_WITHIN_S:g} s")
            else:
                sent += self._put_off(now, one)
        while self._later and self._later[0][0] <= now:
            self._waiting.append(self._later.popleft()[1])
        return sent + self._begin(now)

    # --- steps ---

    def _begin(self, now: float) -> list[SendToWorker]:
        sent: list[SendToWorker] = []
        while self._waiting and len(self._open) < MAX_OPEN:
            pair = self._waiting.popleft()
            self._num_tries += 1
            spec = _make_spec(f"{CHECK_MARK}{self._name}.{self._num_tries}", self._workers[pair.prefill])
            self._open[spec.request_id] = _Try(pair=pair, spec=spec, deadline=now + PREFILL_WITHIN_S)
            sent.append(SendToWorker(worker_id=pair.prefill, message=Prefill(spec=spec)))
        return sent

    def _pull(self, now: float, one: _Try, token_id: int) -> list[SendToWorker]:
        """The prompt is computed, so what follows is the time of the transfer alone."""
        request_id, decode = one.spec.request_id, one.pair.decode
        self._open[request_id] = replace(one, is_pulling=True, deadline=now + PULL_WITHIN_S)
        reserve = Reserve(spec=one.spec, source=self._source(one.pair.prefill))
        start = Start(request_id=request_id, first_tokens=(FirstTokenOf(index=0, token_id=token_id),))
        return [
            SendToWorker(worker_id=decode, message=reserve),
            SendToWorker(worker_id=decode, message=start),
        ]

    def _verdict(self, now: float, one: _Try, why_broken: str) -> list[SendToWorker]:
        self._on_result(one.pair, why_broken)
        if why_broken:
            return self._put_off(now, one)
        return self._end(one) + self._begin(now)

    def _put_off(self, now: float, one: _Try) -> list[SendToWorker]:
        self._later.append((now + AGAIN_AFTER_S, one.pair))
        return self._end(one) + self._begin(now)

    def _end(self, one: _Try) -> list[SendToWorker]:
        del self._open[one.spec.request_id]
        cancel = Cancel(request_id=one.spec.request_id)
        there = [name for name in (one.pair.prefill, one.pair.decode) if name in self._workers]
        return [SendToWorker(worker_id=worker_id, message=cancel) for worker_id in there]


def _make_spec(request_id: str, info: WorkerInfo) -> RequestSpec:
    """A prompt of less than a block, which no cache keeps."""
    num_tokens = max(1, min(info.identity.block_size, info.max_model_len) - 1)
    prompt = tuple(number % info.vocab_size for number in range(num_tokens))
    params = SamplingParams(temperature=0.0, max_tokens=2, ignore_eos=True, seed=0)
    return RequestSpec(request_id=request_id, prompt_token_ids=prompt, params=params)
