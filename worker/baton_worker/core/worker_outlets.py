"""The outlets of a worker's core, which carry out its effects: the worker process, and both simulators."""

from __future__ import annotations

from collections.abc import Iterable
from typing import Protocol, assert_never

from baton_core.sessions.peer_messages import ToConsumer, ToProducer
from baton_core.sessions.router_messages import KVSource, ToRouter
from baton_core.worker.worker_events import (
    AbortPull,
    CacheChanged,
    CompileGrammar,
    ComputeChecksums,
    DropAdapter,
    LoadAdapter,
    Pull,
    RunControl,
    SendToConsumer,
    SendToProducer,
    SendToRouter,
    WorkerEffect,
)


class WorkerOutlets(Protocol):
    """Carries out effects without waiting; what it begins ends with an event, also where it fails."""

    def send_to_router(self, router_id: str, message: ToRouter) -> None:
        """Send to a router, unless its session is over."""
        ...

    def send_to_consumer(self, peer_id: bytes, message: ToConsumer) -> None:
        """Send to a worker that pulls blocks from this one."""
        ...

    def send_to_producer(self, source: KVSource, message: ToProducer) -> None:
        """Send to the worker that has a prompt's blocks."""
        ...

    def transfer(self, effect: ComputeChecksums | Pull | AbortPull) -> None:
        """Begin, or end, the work of a KV-transfer connector."""
        ...

    def compile_grammar(self, effect: CompileGrammar) -> None:
        """Begin to compile a grammar; `GrammarCompiled` follows."""
        ...

    def load_adapter(self, effect: LoadAdapter) -> None:
        """Begin to load an adapter; `AdapterLoaded` follows."""
        ...

    def drop_adapter(self, effect: DropAdapter) -> None:
        """Forget an adapter."""
        ...

    def run_control(self, effect: RunControl) -> None:
        """Have the engine do what an operator asks; `ControlDone` follows."""
        ...

    def cache_changed(self, effect: CacheChanged) -> None:
        """Tell those who follow the cache elsewhere than over a session."""
        ...


def carry_out(effects: Iterable[WorkerEffect], outlets: WorkerOutlets) -> None:
    """Carry out effects in their order."""
    for effect in effects:
        match effect:
            case SendToRouter(router_id=router_id, message=message):
                outlets.send_to_router(router_id, message)
            case SendToConsumer(peer_id=peer_id, message=message):
                outlets.send_to_consumer(peer_id, message)
            case SendToProducer(source=source, message=message):
                outlets.send_to_producer(source, message)
            case ComputeChecksums() | Pull() | AbortPull():
                outlets.transfer(effect)
            case CompileGrammar():
                outlets.compile_grammar(effect)
            case LoadAdapter():
                outlets.load_adapter(effect)
            case DropAdapter():
                outlets.drop_adapter(effect)
            case RunControl():
                outlets.run_control(effect)
            case CacheChanged():
                outlets.cache_changed(effect)
            case _:
                assert_never(effect)
