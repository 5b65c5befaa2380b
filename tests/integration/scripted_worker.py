"""A worker that speaks the real session protocol and answers with the tokens it was given."""

from __future__ import annotations

import asyncio
from collections.abc import AsyncIterator, Callable, Iterable, Sequence
from contextlib import asynccontextmanager
from pathlib import Path

from baton_core.errors import IncompatibleWorkerError
from baton_core.requests.attempt_names import name_at_client
from baton_core.requests.finish import FinishReason, finish_reason
from baton_core.sessions.router_messages import (
    Cancel,
    FirstToken,
    Generate,
    Prefill,
    RequestSpec,
    Reserve,
    Reserved,
    SequenceOutput,
    Start,
    TokenBatch,
    ToWorker,
    Transferred,
)
from baton_core.sessions.session import DEFAULT_TIMINGS, SessionTimings
from baton_core.sessions.worker_info import Role, WorkerLoad
from baton_router.text.model_folder import read_model_folder
from baton_router.text.model_to_serve import read_served_model
from baton_service.router_access import RouterAccess
from baton_worker.session_client import RouterCallbacks, SessionClient
from tests.builders import make_identity, make_worker_info

EOS_TOKEN_IDS = frozenset({0, 2})
MODEL = Path(__file__).parents[2] / "api" / "baton" / "bundled"


async def until(condition: Callable[[], bool], within_s: float = 30.0) -> None:
    async with asyncio.timeout(within_s):
        while not condition():  # noqa: ASYNC110 (what is waited for raises no event)
            await asyncio.sleep(0.005)


class ScriptedWorker:
    """Answers sequence `index` of every request with `answers[index]`, a token a step.

    Args:
        num_steps: tokens it sends of each sequence before it waits for `go_on`; None for all.
        num_tokens_per_output: tokens that one output after the first carries.
        model: the folder that it says it has loaded.
        timings: of its sessions.
    """

    def __init__(
        self,
        name: str,
        role: Role = Role.MIXED,
        answers: Sequence[Sequence[int]] = ((5,),),
        *,
        num_steps: int | None = None,
        num_tokens_per_output: int = 1,
        model: Path = MODEL,
        timings: SessionTimings = DEFAULT_TIMINGS,
        **info: object,
    ) -> None:
        served = read_served_model(read_model_folder(model))
        described = {
            "identity": make_identity(description=served.description),
            "vocab_size": served.vocab_size,
        }
        self.info = make_worker_info(name, role, **{**described, **info})
        self.commands: list[ToWorker] = []
        self.load = WorkerLoad(num_available_blocks=self.info.num_blocks)
        """The load that its heartbeats report."""
        self.client: SessionClient
        self._answers = answers
        self._num_steps = num_steps
        self._num_tokens_per_output = num_tokens_per_output
        self._timings = timings
        self.specs: dict[str, RequestSpec] = {}
        self._router_id = ""

    @property
    def router_id(self) -> str:
        """Return the router's name in the session; empty before it has joined."""
        return self._router_id

    @property
    def has_joined(self) -> bool:
        return bool(self._router_id)

    def num_cancels(self, request_id: str) -> int:
        """Commands to stop the whole of a request."""
        whole = [command for command in self.commands if isinstance(command, Cancel) and not command.indices]
        return sum(name_at_client(command.request_id) == request_id for command in whole)

    def pause(self, num_steps: int) -> None:
        """Hold later requests back after so many tokens."""
        self._num_steps = num_steps

    def go_on(self, request_id: str, num_more_steps: int | None = None) -> None:
        """Send what `num_steps` held back: all of it, or the next `num_more_steps`."""
        assert self._num_steps is not None
        begin = self._num_steps
        self._num_steps = None if num_more_steps is None else begin + num_more_steps
        spec = next(s for name, s in self.specs.items() if name_at_client(name) == request_id)
        self._decode(spec, range(spec.params.n), begin=begin)

    @asynccontextmanager
    async def joined(self, port: int, access: RouterAccess | None = None) -> AsyncIterator[ScriptedWorker]:
        self.client = SessionClient(
            f"127.0.0.1:{port}", self.info, lambda: self.load, self._callbacks(), self._timings, access=access
        )
        running = asyncio.create_task(self.client.run())
        try:
            await until(lambda: self.has_joined or self.client.refusal is not None)
            if self.client.refusal is not None:
                raise IncompatibleWorkerError(self.client.refusal.message)
            yield self
        finally:
            await self.client.close()
            await running

    def _callbacks(self) -> RouterCallbacks:
        return RouterCallbacks(
            on_joined=self._on_joined, on_message=self._on_message, on_lost=lambda router_id: None
        )

    def _on_joined(self, router_id: str, _has_locality: bool) -> None:
        self._router_id = router_id

    def _on_message(self, router_id: str, message: ToWorker) -> None:
        self.commands.append(message)
        match message:
            case Generate(spec=spec):
                self.specs[spec.request_id] = spec
                self._say_first(spec)
                self._decode(spec, range(spec.params.n))
            case Prefill(spec=spec):
                self._say_first(spec)
            case Reserve(spec=spec):
                self.specs[spec.request_id] = spec
                self._send(Reserved(request_id=spec.request_id, num_cached_tokens=0))
            case Start(request_id=request_id, first_tokens=first_tokens):
                self._send(Transferred(request_id=request_id, num_blocks=1, num_bytes=4096, transfer_s=0.25))
                self._decode(self.specs[request_id], (first.index for first in first_tokens))
            case Cancel():
                pass

    def _say_first(self, spec: RequestSpec) -> None:
        outputs = tuple(self._output(spec, index, 0, 1) for index in range(spec.params.n))
        self._send(
            FirstToken(
                request_id=spec.request_id, outputs=outputs, num_cached_tokens=3, queue_s=0.5, prefill_s=0.125
            )
        )

    def _decode(self, spec: RequestSpec, indices: Iterable[int], *, begin: int = 1) -> None:
        for index in indices:
            end = len(self._answers[index]) if self._num_steps is None else self._num_steps
            for start in range(begin, end, self._num_tokens_per_output):
                output = self._output(spec, index, start, min(start + self._num_tokens_per_output, end))
                self._send(TokenBatch(outputs=(output,)))
                if output.finish_reason is not None:
                    break

    def _output(self, spec: RequestSpec, index: int, start: int, end: int) -> SequenceOutput:
        token_ids = tuple(self._answers[index][start:end])
        reason = finish_reason(
            spec.params,
            token_id=token_ids[-1],
            num_output_tokens=end,
            num_tokens=len(spec.prompt_token_ids) + end,
            eos_token_ids=EOS_TOKEN_IDS,
            max_model_len=self.info.max_model_len,
        )
        return SequenceOutput(
            request_id=spec.request_id,
            index=index,
            token_ids=token_ids,
            finish_reason=reason,
            stop_token_id=token_ids[-1] if reason is FinishReason.STOP else None,
        )

    def _send(self, message: Reserved | FirstToken | TokenBatch | Transferred) -> None:
        self.client.send(self._router_id, message)
