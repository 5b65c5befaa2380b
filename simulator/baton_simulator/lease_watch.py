"""Checks the promises of KV producers: announced blocks stay until their lease is over."""

from __future__ import annotations

from baton_core.sessions.peer_messages import (
    BlocksReady,
    Confirm,
    Confirmed,
    LeaseGone,
    ToConsumer,
    ToProducer,
)
from baton_core.worker.worker_events import SendToConsumer, WorkerEffect
from baton_simulator.interfaces import WorkerNode


class LeaseWatch:
    """The checks of one producer, from its start to its end."""

    def __init__(self, producer: WorkerNode) -> None:
        self._producer = producer
        self._announced: dict[str, dict[int, int]] = {}
        """Announced blocks with their generations, by transfer."""
        self._asked: dict[str, tuple[tuple[int, int], ...]] = {}
        """Blocks that the last Confirm named, by transfer."""

    def on_asked(self, message: ToProducer, effects: list[WorkerEffect], num_open: tuple[int, int]) -> None:
        """A consumer's message was taken; `num_open` are offers and early subscriptions before it was."""
        leases = self._producer.core.leases
        if message.producer_epoch != self._producer.info.epoch:
            what = f"{self._producer.name}: a message for epoch {message.producer_epoch}"
            answers = [effect.message for effect in effects if isinstance(effect, SendToConsumer)]
            assert all(isinstance(answer, LeaseGone) for answer in answers), f"{what} was answered {answers}"
            assert answers, f"{what} was not answered"
            assert num_open == (leases.num_open, leases.num_early), f"{what} changed the leases"
        if isinstance(message, Confirm):
            asked = tuple((offer.block_id, offer.generation) for offer in message.offers)
            self._asked[message.transfer_id] = asked

    def on_answer(self, message: ToConsumer) -> None:
        """The producer says something: it must be true now."""
        match message:
            case BlocksReady(transfer_id=name, offers=offers):
                announced = self._announced.setdefault(name, {})
                announced.update((offer.block_id, offer.generation) for offer in offers)
                self._require_held(name, tuple(announced.items()), "renewed or announced")
            case Confirmed(transfer_id=name, is_held=True):
                self._require_held(name, self._asked.get(name, ()), "confirmed")
            case LeaseGone(transfer_id=name):
                self._announced.pop(name, None)

    def _require_held(self, name: str, blocks: tuple[tuple[int, int], ...], what: str) -> None:
        pool = self._producer.core.pool
        for block_id, generation in blocks:
            is_held = pool.generation(block_id) == generation and pool.num_references(block_id) > 0
            assert is_held, (
                f"{self._producer.name} {what} the lease of {name}, but block {block_id} is "
                f"{pool.state(block_id)} in generation {pool.generation(block_id)}, not {generation}"
            )
