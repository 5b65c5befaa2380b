"""The other ranks of a group, as its leader starts, tells and watches them.

A rank that dies or freezes takes the whole group with it: what the others compute is worth nothing without
its part. Whoever runs the leader starts a new group.
"""

from __future__ import annotations

import json
import logging
import time
from collections.abc import Callable, Iterator, Sequence
from concurrent.futures import Future, InvalidStateError
from contextlib import contextmanager, suppress
from dataclasses import replace
from functools import partial
from queue import Empty, SimpleQueue
from threading import TIMEOUT_MAX
from typing import Any, Final, TypeVar

import torch

from baton_core.errors import BatonError, ErrorCode, RequestError
from baton_core.model.model_description import ModelDescription
from baton_core.ranks.rank_layout import RankPlace
from baton_core.ranks.transfer_plan import require_separable
from baton_core.worker.step_plan import StepPlan
from baton_engine.checkpoint.folder_description import describe_folder
from baton_engine.checkpoint.model_source import resolve_model
from baton_engine.device import use_device
from baton_engine.engine_settings import EngineSettings
from baton_engine.models.divisible import require_divisible
from baton_engine.models.registry import read_model_config
from baton_engine.ranks.ranks import Ranks
from baton_kernels.cpu.shared_queue import SharedQueue
from baton_kernels.interface.collectives import RankLostError
from baton_kv.transfer_thread import TransferEffect
from baton_worker.ranks.follower import Follower
from baton_worker.ranks.group_transfers import GroupTransfers
from baton_worker.ranks.links import SharedLinks, StoreLinks, deadline_s, lead_links, step_deadline_s
from baton_worker.ranks.rank_channel import (
    AdapterFrame,
    AnswerFrame,
    CallFrame,
    PoolFrame,
    Pools,
    StartFrame,
    StepFrame,
    StopFrame,
    TransferFrame,
    encode_frame,
    error_of,
    own_machine,
)
from baton_worker.ranks.rank_starter import RankStarter
from baton_worker.ranks.rank_watch import LOST_AFTER_S, RankWatch

ANSWER_WITHIN_S: Final = 600.0
_STOP_WITHIN_S: Final = 5.0
_log = logging.getLogger(__name__)
T = TypeVar("T")


class RankGroup:
    """Has every rank started but the leader's, which is this process.

    They load the model while the leader loads its part.

    Args:
        shares_pool: True if all ranks map one KV pool where they can.
        transfers: moves blocks between the ranks' own pools and those of other workers, if any do.

    Raises:
        InvalidModelError: the model cannot be found or read.
        InvalidConfigError: it cannot be divided so, or the ranks cannot be started so.
        RequestError: UNAVAILABLE, the ranks have not started in time.
    """

    def __init__(
        self,
        settings: EngineSettings,
        starter: RankStarter,
        *,
        shares_pool: bool = True,
        transfers: GroupTransfers | None = None,
    ) -> None:
        sizes = settings.parallel
        folder = resolve_model(settings.model)
        config = read_model_config(
            folder,
            settings.kv_cache.max_model_len,
            settings.config_overrides,
            disable_sliding_window=settings.disable_sliding_window,
        )
        require_divisible(config, sizes)
        if transfers is not None:
            require_separable(config.kv_spec(settings.block_size, "float32"), sizes)
        self._place = RankPlace(sizes=sizes, rank=sizes.leader)
        self._starter = starter
        self._transfers = transfers
        if transfers is not None:
            transfers.attach(self._tell_transfer)
        self.lost: Future[None] = Future()
        """Fails with a BatonError when a rank is lost; whatever is computed meanwhile fails too."""
        self._queue: SharedQueue | None = None
        started = starter.start(sizes.leader_first[1:])
        self._followers = [Follower(one) for one in sorted(started, key=lambda one: one.rank)]
        self._apart = self._followers
        self._num_threads = max(1, torch.get_num_threads() // starter.num_on_host)
        torch.set_num_threads(self._num_threads)
        try:
            self.device = use_device(settings.device, starter.device_index)
            settings = replace(settings, device=self.device.type)
            shares_memory = starter.shares_memory and self.device.type == "cpu"
            self.pools = Pools.SHARED if shares_memory and shares_pool else Pools.OWN
            machines = self.in_order(own_machine(), [one.channel.machine for one in self._followers])
            self._links = lead_links(
                sizes, self.device, settings.cpu_kernels, starter.host, machines, shares_memory=shares_memory
            )
            self._tell_start(settings, describe_folder(folder, config, settings.config_overrides))
            step_within_s = step_deadline_s(sizes, self.device)
            self._watch = RankWatch(self._followers, transfers, step_within_s, self.lost, self.end)
        except BaseException:
            for one in self._followers:
                one.started.kill()
            starter.close()
            raise

    def link(self) -> Ranks:
        """Link this rank to the others.

        Raises:
            BatonError: a rank is lost.
        """
        if isinstance(self._links, StoreLinks):
            # Who waits at the store does not learn that another one will never come.
            self._take_answers([one.answers for one in self._followers])
        ranks = self._links.open(self._place, self._announce)
        self._queue = self._links.open_queue(self._place.rank)
        if self._queue is not None:
            self._apart = [one for one in self._followers if one.started.rank not in self._queue.readers]
        return ranks

    @property
    def own_pool_place(self) -> RankPlace | None:
        """The leader's place, if its KV pool has its part of each block alone."""
        return self._place if self.pools is Pools.OWN else None

    def on_loaded(self) -> None:
        """Expect every rank to answer soon from now on: the model is loaded."""
        self._watch.on_loaded()

    @contextmanager
    def loading(self) -> Iterator[None]:
        """Take long silences of ranks that load weights again."""
        self._watch.on_loading()
        try:
            yield
        finally:
            self._watch.on_loaded()

    def lend(self, descriptor: int) -> None:
        """Let every other rank map the KV pool, which lies in the memory of this descriptor.

        Does nothing where each rank has a pool of its own.
        """
        if self.pools is Pools.OWN:
            return
        for one in self._followers:
            one.channel.send_with(descriptor, PoolFrame())

    def call(self, action: str, argument_json: str, within_s: float) -> Callable[[], list[Any]]:
        """Have every other rank do what an operator asks; what is returned waits for their answers, by rank.

        An answer is a value, or the error that the rank raised.

        Raises:
            BatonError: a rank is lost.
        """
        self._tell_in_order(CallFrame(action=action, argument_json=argument_json))
        return partial(self._take_answers, [one.answers for one in self._followers], within_s)

    def change_adapter(self, digest: str, path: str = "") -> None:
        """Have every other rank load a LoRA adapter beside its steps, or without `path` forget it.

        One thread calls it.

        Raises:
            BatonError: a rank cannot read the folder, or is lost.
        """
        self._tell(encode_frame(AdapterFrame(digest=digest, path=path)))
        answers = self._take_answers([one.adapter_answers for one in self._followers])
        for one, answer in zip(self._followers, answers, strict=True):
            if isinstance(answer, BatonError):
                raise RequestError(answer.code, f"rank {one.started.rank}: {answer}")

    def in_order(self, own: T, others: list[T]) -> list[T]:
        """Return what the leader has and what the others have, by rank."""
        return [*others[: self._place.rank], own, *others[self._place.rank :]]

    @contextmanager
    def explaining(self) -> Iterator[None]:
        """Tell the end of an exchange by the reason why the rank was lost.

        Raises:
            BatonError: a rank is lost.
        """
        try:
            yield
        except RankLostError as error:
            with suppress(TimeoutError):
                self.lost.result(LOST_AFTER_S)
            self.end(str(error))
        except Exception:
            if not self.lost.done():
                raise
        if self.lost.done():
            self.lost.result()

    @contextmanager
    def leading(self) -> Iterator[None]:
        """Lead a step: if this rank fails within it, the others have gone on without it, and the group ends.

        Raises:
            BatonError: a rank is lost, and what was computed is worth nothing.
        """
        self._watch.step_began_s = time.monotonic()
        try:
            with self.explaining():
                yield
        except BaseException as error:
            self.end(f"the leader of the model's ranks failed: {type(error).__name__}: {error}")
            raise
        finally:
            self._watch.step_began_s = None

    def end(self, reason: str, error: BatonError | None = None) -> None:
        """End the group: nobody waits for a rank any more. Does nothing once it has ended."""
        if self.lost.done():
            return
        error = error or RequestError(ErrorCode.UNAVAILABLE, reason)
        _log.error("%s", error)
        with suppress(InvalidStateError):
            self.lost.set_exception(error)  # before waits end: their results are wrong
        for one in self._followers:
            one.started.kill()
        self._links.abort()
        for one in self._followers:
            one.expect_no_answers()

    def close(self) -> None:
        """End all ranks; those that do not end are killed."""
        self._watch.expect_ends()
        for one in self._followers:
            with suppress(OSError):
                one.channel.send(StopFrame())
        for one in self._followers:
            if not one.started.has_ended(_STOP_WITHIN_S):
                one.started.kill()
                one.started.has_ended(_STOP_WITHIN_S)
        self._watch.close()
        for one in self._followers:
            one.channel.close()
        self._starter.close()

    def _tell_start(self, settings: EngineSettings, description: ModelDescription) -> None:
        links = self._links
        for one in self._followers:
            start = StartFrame(
                rank=one.started.rank,
                settings=settings,
                num_threads=self._num_threads,
                store=links.address if isinstance(links, StoreLinks) else None,
                machines=links.machines if isinstance(links, StoreLinks) else (),
                pools=self.pools,
                endpoint=self._transfers.endpoint if self._transfers else None,
                description=description,
            )
            try:
                if isinstance(links, SharedLinks):
                    one.channel.send_with(links.descriptor, start)
                else:
                    one.channel.send(start)
            except OSError as error:
                text = f"rank {one.started.rank} of the model's ranks has ended at its start ({error})"
                raise RequestError(ErrorCode.UNAVAILABLE, text) from error
        if isinstance(links, SharedLinks):
            links.close_descriptor()

    def _announce(self, plan: StepPlan) -> None:
        self._tell_in_order(StepFrame.of(plan, self.pools))

    def _tell_in_order(self, frame: StepFrame | CallFrame) -> None:
        """Tell all ranks, after what has been told in this way before: one thread calls it."""
        content = encode_frame(frame)
        self._tell(content, self._apart)
        if self._queue is not None:
            with self.explaining():
                self._queue.put(content, deadline_s(self._place.sizes))

    def _tell_transfer(self, rank: int, effect: TransferEffect) -> None:
        told = [one for one in self._followers if one.started.rank == rank]
        self._tell(encode_frame(TransferFrame.of(effect)), told)

    def _tell(self, content: bytes, told: Sequence[Follower] | None = None) -> None:
        if self.lost.done():
            self.lost.result()
        for one in self._followers if told is None else told:
            try:
                one.channel.send_encoded(content)
            except OSError:
                self._watch.lose(one, "its process is gone")
                self.lost.result()

    def _take_answers(
        self, queues: Sequence[SimpleQueue[AnswerFrame | None]], within_s: float = ANSWER_WITHIN_S
    ) -> list[Any]:
        """Wait for one answer of each: a value, or the error that it raised."""
        answers: list[Any] = []
        for one, queue in zip(self._followers, queues, strict=True):
            answer = None
            try:
                answer = queue.get(timeout=min(within_s, TIMEOUT_MAX))
            except Empty:
                self._watch.lose(one, f"it has not answered within {within_s:g} s")
            if answer is None:
                self.lost.result()
            elif answer.code:
                answers.append(error_of(answer.code, answer.message))
            else:
                answers.append(json.loads(answer.result_json))
        return answers
