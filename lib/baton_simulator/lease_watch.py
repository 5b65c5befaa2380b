"""What holders promise, checked by one who sees all: what was announced stays until its lease is over."""

from __future__ import annotations

from typing import TYPE_CHECKING

from baton_core.blocks.peer_messages import BlocksReady, Confirm, Confirmed, LeaseGone, ToHolder, ToPuller
from baton_core.worker.worker_events import SendToPuller, WorkerEffect

if TYPE_CHECKING:
    from baton_simulator.sim_worker import SimWorker


class LeaseWatch:
    """Of one holder, from its start to its end."""

    def __init__(self, holder: SimWorker) -> None:
        self._holder = holder
        self._announced: dict[str, dict[int, int]] = {}
        """By transfer: block to its generation."""
        self._asked: dict[str, tuple[tuple[int, int], ...]] = {}
        """By transfer: what its last Confirm named."""

    def on_asked(self, message: ToHolder, effects: list[WorkerEffect], num_open: tuple[int, int]) -> None:
        """A puller's message was taken; `num_open` are offers and early subscriptions before it was."""
        leases = self._holder.core.leases
        if message.holder_epoch != self._holder.info.epoch:
            answers = [effect.message for effect in effects if isinstance(effect, SendToPuller)]
            assert all(isinstance(answer, LeaseGone) for answer in answers), (
                f"{self._holder.name}: a message for epoch {message.holder_epoch} was answered {answers}"
            )
            assert answers, (
                f"{self._holder.name}: a message for epoch {message.holder_epoch} was not answered"
            )
            assert num_open == (leases.num_open, leases.num_early), (
                f"{self._holder.name}: a message for epoch {message.holder_epoch} changed the leases"
            )
        if isinstance(message, Confirm):
            asked = tuple((offer.block_id, offer.generation) for offer in message.offers)
            self._asked[message.transfer_id] = asked

    def on_answer(self, message: ToPuller) -> None:
        """The holder says something: it must be true now."""
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
        pool = self._holder.core.pool
        for block_id, generation in blocks:
            is_held = pool.generation(block_id) == generation and pool.num_references(block_id) > 0
            assert is_held, (
                f"{self._holder.name} {what} the lease of {name}, but block {block_id} is "
                f"{pool.state(block_id)} in generation {pool.generation(block_id)}, not {generation}"
            )
