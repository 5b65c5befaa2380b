"""A simulated router: the production core, the sessions of its workers, and what its clients saw."""

from __future__ import annotations

from itertools import count
from typing import Any

import msgspec

from baton_core.kv_events.cache_delta import CacheDelta
from baton_core.requests.attempt_names import name_at_client
from baton_core.sessions.control_messages import Control, ControlAction, ControlResult
from baton_core.sessions.handshake import HelloAnswer, answer_hello
from baton_core.sessions.router_messages import (
    Generate,
    Prefill,
    PromptLogprobs,
    RequestCommand,
    RequestSpec,
    ToWorker,
    Transferred,
)
from baton_core.sessions.status_arguments import SetRoleArgument
from baton_router.core.flow.router_core import RouterConfig, RouterCore
from baton_router.core.router_driver import RouterDriver
from baton_router.core.router_events import (
    ClientGone,
    EmitTokens,
    FailRequest,
    FinishRequest,
    FromWorker,
    RouterEvent,
    SetRole,
    Submit,
    WorkerJoined,
    WorkerLeft,
    WorkerReported,
)
from baton_simulator.clock import NodeClock
from baton_simulator.interfaces import Surroundings
from baton_simulator.network import BROKEN, ENDED, Stream
from baton_simulator.node import Node
from baton_simulator.outcome import Outcome
from baton_simulator.session_end import Frames, Hello, SessionEnd, Welcome


class SimRouter(Node):
    """Args: epoch: of its first session; it counts up from there and is new at every start."""

    def __init__(
        self, cluster: Surroundings, name: str, clock: NodeClock, config: RouterConfig, *, epoch: int = 1
    ) -> None:
        super().__init__(cluster, name, clock)
        self.core = RouterCore(config)
        self._driver = RouterDriver(self.core, self, lambda: self.now)
        self.config = config
        self.epoch = epoch
        self.sessions: dict[str, SessionEnd] = {}
        self.outcomes: dict[str, Outcome] = {}
        self.transferred_s: dict[str, float] = {}
        """Arrival of all blocks at the decode worker, by attempt and by the router's clock."""
        self.open_controls: set[int] = set()
        """Controls without an answer."""
        self.results: list[ControlResult] = []
        self._streams: dict[Stream, str] = {}
        """Streams on which workers said hello, and the workers."""
        self._placed: set[str] = set()
        """Requests that a worker was given."""
        self._next_epoch = epoch
        self._control_ids = count(1)

    def deadlines(self) -> list[float | None]:
        sessions = [session.machine.next_deadline() for session in self.sessions.values()]
        return [self.core.next_deadline(), *sessions]

    def on_wake(self) -> None:
        for session in list(self.sessions.values()):
            session.on_deadline()
        deadline = self.core.next_deadline()
        if deadline is not None and deadline <= self.now:
            self._driver.on_deadline()
            self.core.check_invariants()
        self.settle()

    def crash(self) -> None:
        self.is_alive = False
        for stream in self._streams:
            stream.crash(self.name)
        for outcome in self.outcomes.values():
            outcome.is_router_lost = not outcome.ends

    def on_event(self, event: RouterEvent) -> None:
        self._driver.on_event(event)
        self.core.check_invariants()

    def handle(self, event: RouterEvent) -> None:
        """Take what happens outside of the sessions."""
        self.on_event(event)
        self.settle()

    def ask(self, spec: RequestSpec, timeout_s: float, outcome: Outcome) -> None:
        """A client asks; while the router is frozen, what it asks for waits at its door."""
        self.outcomes[spec.request_id] = outcome
        outcome.router = self.name
        self.take(lambda: self.submit(spec, timeout_s, outcome))

    def submit(self, spec: RequestSpec, timeout_s: float, outcome: Outcome | None = None) -> None:
        """Take a client's request; `outcome` is what its client writes down."""
        self.outcomes[spec.request_id] = outcome = outcome or Outcome(spec)
        outcome.router = self.name
        outcome.submitted_s, outcome.timeout_s = self.cluster.clock.now, timeout_s
        self.cluster.log.add(self.name, "takes", spec.request_id)
        self.handle(Submit(spec=spec, timeout_s=timeout_s))

    def cancel(self, request_id: str) -> None:
        self.cluster.log.add(self.name, "loses the client of", request_id)
        self.handle(ClientGone(request_id=request_id))

    def control(self, worker_id: str, action: ControlAction, argument_json: str = "{}") -> None:
        """Ask a worker what an operator may."""
        self._ask(worker_id, action, argument_json)
        self.settle()

    def settle(self) -> None:
        """Write what is to be written, and keep the timer."""
        for session in list(self.sessions.values()):
            session.settle()
        self.arm()

    # --- sessions ---

    def on_frame(self, stream: Stream, frame: Any) -> None:
        """Take a frame from a worker."""
        self.take(lambda: self._take(stream, frame))

    def _take(self, stream: Stream, frame: Any) -> None:
        if isinstance(frame, Hello):
            self._on_hello(stream, frame)
        elif (worker_id := self._streams.get(stream)) is not None:
            session = self.sessions.get(worker_id)
            self._on_stream(
                stream, worker_id, session if session and session.stream is stream else None, frame
            )
        self.settle()

    def _on_stream(self, stream: Stream, worker_id: str, session: SessionEnd | None, frame: Any) -> None:
        if frame in (ENDED, BROKEN):
            stream.crash(self.name)
            del self._streams[stream]
            if session is not None and frame == ENDED:
                session.close(f"worker {worker_id} ended the session")
            elif session is not None:
                session.detach(stream)
        elif isinstance(frame, Frames) and session is not None:
            if frame.load is not None:
                self.on_event(WorkerReported(worker_id=worker_id, load=frame.load))
            session.on_frames(stream, frame)

    def _on_hello(self, stream: Stream, hello: Hello) -> None:
        """Resume the worker's session with this stream, or end it and begin another."""
        info = hello.info
        session = self.sessions.get(info.worker_id)
        answer = answer_hello(
            info.epoch,
            hello.router_epoch,
            session_epoch=None if session is None else session.epoch,
            known_epoch=None if session is None else session.machine.peer_epoch,
        )
        if answer is HelloAnswer.REFUSE:
            stream.crash(self.name)
            return
        self._streams[stream] = info.worker_id
        if session is not None and answer is HelloAnswer.RESUME:
            if self._welcome(session, stream, hello, "resumes"):
                self.cluster.coverage["sessions resumed"] += 1
                return
        elif session is not None:
            session.close(f"worker {info.worker_id} began a new session")
        session = self.sessions[info.worker_id] = self._new_session(info.worker_id)
        self.on_event(WorkerJoined(info=info))
        self._welcome(session, stream, hello, "begins")

    def _welcome(self, session: SessionEnd, stream: Stream, hello: Hello, what: str) -> bool:
        """Use a stream for a session; False if the session is over instead."""
        worker_id, received = hello.info.worker_id, session.machine.received

        def answer() -> None:
            self.cluster.log.add(self.name, what, f"its session with {worker_id} (epoch {hello.info.epoch})")
            stream.send(self.name, Welcome(router_id=self.name, epoch=session.epoch, received=received))

        heard = hello.received if what == "resumes" else 0
        return session.attach(stream, hello.info.epoch, heard, answer)

    def _new_session(self, worker_id: str) -> SessionEnd:
        def on_over(reason: str) -> None:
            del self.sessions[worker_id]
            self.cluster.log.add(self.name, f"loses {worker_id}:", reason)
            self.on_event(WorkerLeft(worker_id=worker_id, reason=reason))

        epoch, self._next_epoch = self._next_epoch, self._next_epoch + 1
        return SessionEnd(
            self,
            f"worker {worker_id}",
            epoch,
            self.cluster.conditions.timings,
            on_message=lambda message: self._on_message(worker_id, message),
            on_over=on_over,
        )

    def _on_message(self, worker_id: str, message: Any) -> None:
        if not isinstance(message, CacheDelta):
            self.cluster.log.add(self.name, f"hears from {worker_id}", message)
        if isinstance(message, Transferred):
            self.transferred_s[message.request_id] = self.now
        if isinstance(message, ControlResult):
            self.open_controls.discard(message.control_id)
            self.results.append(message)
        self.on_event(FromWorker(worker_id=worker_id, message=message))

    # --- effects ---

    def send_to_worker(self, worker_id: str, message: RequestCommand) -> None:
        self._note_attempt(message)
        self._send(worker_id, message)

    def set_role(self, change: SetRole) -> None:
        argument = SetRoleArgument(role=change.role, is_fixed=False)
        self._ask(change.worker_id, ControlAction.SET_ROLE, msgspec.json.encode(argument).decode())

    def emit_tokens(self, tokens: EmitTokens) -> bool:
        self.cluster.log.add(self.name, f"emits {tokens.request_id}", tokens.output)
        self.outcomes[tokens.request_id].take_tokens(self.now, tokens)
        return False

    def emit_prompt_logprobs(self, prompt_logprobs: PromptLogprobs) -> None:
        self.outcomes[prompt_logprobs.request_id].take_prompt_logprobs(prompt_logprobs)

    def finish(self, finished: FinishRequest) -> None:
        self.cluster.log.add(self.name, "finishes", finished.request_id)
        self.outcomes[finished.request_id].take_end(self.cluster.clock.now, finished)

    def fail(self, failed: FailRequest) -> None:
        self.cluster.log.add(self.name, f"fails {failed.request_id} ({failed.code}):", failed.message)
        self.outcomes[failed.request_id].take_end(self.cluster.clock.now, failed)

    def give_up(self, request_id: str, error: Exception) -> ClientGone:
        raise error

    def _note_attempt(self, message: ToWorker) -> None:
        if isinstance(message, Generate | Prefill):
            request_id = name_at_client(message.spec.request_id)
            self.cluster.coverage["requests placed again"] += request_id in self._placed
            self.cluster.coverage["requests resumed"] += bool(message.spec.resumed)
            self._placed.add(request_id)

    def _ask(self, worker_id: str, action: ControlAction, argument_json: str) -> None:
        number = next(self._control_ids)
        self.open_controls.add(number)
        control = Control(control_id=number, action=action, argument_json=argument_json, timeout_s=60.0)
        self._send(worker_id, control)

    def _send(self, worker_id: str, message: ToWorker) -> None:
        if (session := self.sessions.get(worker_id)) is not None:
            self.cluster.log.add(self.name, f"tells {worker_id}", message)
            session.machine.send(message)
