"""The process of a rank that follows its group's leader: `python -m baton_worker.rank_process`.

It computes its part of each step that the leader announces, does what operators ask of all ranks, and ends
when the leader is gone.
"""

from __future__ import annotations

import argparse
import gc
import json
import logging
import mmap
import os
import signal
import socket
import sys
import threading
import time
from collections.abc import Mapping
from concurrent.futures import Future, ThreadPoolExecutor
from dataclasses import replace
from queue import SimpleQueue
from typing import Final

import torch
from torch import Tensor

from baton_core.errors import (
    BatonError,
    ErrorCode,
    IncompatibleWorkerError,
    InvalidConfigError,
    InvalidModelError,
    reason_of,
)
from baton_core.kv_layout.kv_spec import KVSpec
from baton_core.ranks.rank_layout import RankPlace
from baton_core.requests.adapter import Adapter
from baton_core.sessions.control_messages import ControlAction
from baton_core.worker.worker_events import ChecksumsFailed, ComputeChecksums, Pull, PullDone
from baton_engine.checkpoint.folder_description import describe_folder
from baton_engine.checkpoint.model_source import resolve_model
from baton_engine.device import resolve_device
from baton_engine.kernel_choice import choose_copy
from baton_engine.models.registry import read_model_config
from baton_engine.ranks.ranks import Ranks
from baton_kernels.cpu.selection import load_build
from baton_kernels.cpu.shared_queue import SharedQueue
from baton_kernels.interface.collectives import RankLostError
from baton_kv.pool_bytes import as_pool
from baton_kv.pool_memory import Lend
from baton_kv.row_copies import copy_rows
from baton_kv.transfer_thread import TransferEffect, TransferEvent, TransferThread
from baton_service.process import die_with_parent, exit_code, name_process
from baton_worker.controls.control_wire import decode_control, encode_result
from baton_worker.controls.engine_controls import EngineControls
from baton_worker.engine.resident_engine import ResidentEngine
from baton_worker.pool_placement import PoolPlacement
from baton_worker.ranks.group_transfers import rank_connector
from baton_worker.ranks.links import Links, SharedLinks, StoreLinks
from baton_worker.ranks.rank_channel import (
    AdapterFrame,
    AliveFrame,
    AnswerFrame,
    CallFrame,
    FailedFrame,
    PoolFrame,
    Pools,
    RankChannel,
    RefusedFrame,
    StartFrame,
    StepFrame,
    StopFrame,
    ToLeader,
    ToRank,
    TransferFrame,
    TransferredFrame,
    decode_to_rank,
)
from baton_worker.ranks.rank_listener import connect

ALIVE_EVERY_S: Final = 0.1
_CLOSE_WITHIN_S: Final = 2.0
_QUEUE_WITHIN_S: Final = 60.0
_LOOK_EVERY_S: Final = 0.5
_log = logging.getLogger(__name__)


class Rank:
    """One rank that follows."""

    def __init__(self, channel: RankChannel) -> None:
        self._channel = channel
        self._sending = threading.Lock()
        self._has_ended = threading.Event()
        self._frames: SimpleQueue[ToRank] = SimpleQueue()
        self._pool: Tensor | None = None
        self._transfers: TransferThread | None = None
        self._queue: SharedQueue | None = None
        self._engine: Future[ResidentEngine] = Future()
        self._adapters = ThreadPoolExecutor(1, "adapters")

    def run(self) -> None:
        """Follow the leader until it says so, or is gone.

        Raises:
            Exception: whatever a step ends with; the leader has been told.
        """
        threading.Thread(target=self._receive, name="leader", daemon=True).start()
        try:
            self._follow(self._start())
            self._end()
        except Exception as error:
            self._send(FailedFrame(code=_code_of(error), message=reason_of(error)))
            raise

    def _start(self) -> ResidentEngine:
        start = self._frames.get()
        if isinstance(start, RefusedFrame):
            raise InvalidConfigError(start.message)
        assert isinstance(start, StartFrame), "it comes first"
        threading.Thread(target=self._keep_telling, name="alive", daemon=True).start()
        settings = start.settings
        torch.set_num_threads(start.num_threads)
        name_process(f"rank {start.rank}")
        require_same_model(start)
        place = RankPlace(sizes=settings.parallel, rank=start.rank)
        placement = self._placement(start, place)
        is_shared = start.pools is Pools.SHARED
        # What changes logits is the leader's.
        engine = ResidentEngine(
            replace(settings, logits_processors=()),
            None,
            allocate_pool=self._map_pool if is_shared else placement.allocate,
            give_back_pool=(lambda: None) if is_shared else placement.give_back,
            ranks=self._link(start, place),
        )
        if placement.connector is not None:
            self._transfers = TransferThread(placement.connector, self._report)
            self._transfers.start()
            self._send(TransferredFrame(description=placement.connector.describe()))
        return engine

    def _placement(self, start: StartFrame, place: RankPlace) -> PoolPlacement:
        """Return where the rank's own pool lies, with its connector if other workers read it."""
        device = resolve_device(start.settings.device)
        if (endpoint := start.endpoint) is None:
            return PoolPlacement(device=device, place=place)
        copy = choose_copy(device, start.settings.cpu_kernels) or copy_rows
        listen = endpoint.listen(self._channel.own_host)
        return PoolPlacement(lambda spec: rank_connector(spec, place, endpoint, listen, copy), device, place)

    def _report(self, events: list[TransferEvent]) -> None:
        self._send(TransferredFrame.of(events))

    def _transfer(self, effect: TransferEffect) -> None:
        assert self._transfers is not None, "the leader has the description of its pool"
        if self._transfers.execute(effect):
            return
        error = "too many transfers wait"
        match effect:
            case Pull(pull_id=pull_id):
                self._report([PullDone(pull_id=pull_id, error=error)])
            case ComputeChecksums():
                self._report([ChecksumsFailed(request=effect, error=error)])

    def _link(self, start: StartFrame, place: RankPlace) -> Ranks:
        links = self._links(start)
        ranks = links.open(place)
        self._queue = links.open_queue(place.rank)
        return ranks

    def _links(self, start: StartFrame) -> Links:
        sizes, library = start.settings.parallel, load_build(start.settings.cpu_kernels)
        if start.store is not None:
            self._send(AnswerFrame())
            host, device = self._channel.own_host or start.store[0], resolve_device(start.settings.device)
            return StoreLinks(sizes, library, device, start.store, host, start.machines)
        assert library is not None, "the leader has it"
        links = SharedLinks(sizes, library, self._channel.take_descriptor())
        links.close_descriptor()
        return links

    def _map_pool(self, spec: KVSpec, num_blocks: int, lend: Lend | None = None) -> Tensor:
        """Return the pool that the leader lends, `[num_blocks, *spec.block_shape]`, always the same one."""
        if self._pool is None:
            frame = self._frames.get()
            assert isinstance(frame, PoolFrame), "it comes after the weights are read"
            descriptor = self._channel.take_descriptor()
            memory = mmap.mmap(descriptor, num_blocks * spec.block_bytes)
            os.close(descriptor)
            self._pool = as_pool(torch.frombuffer(memory, dtype=torch.uint8), spec)
        return self._pool

    def _follow(self, engine: ResidentEngine) -> None:
        controls = EngineControls(engine)
        self._engine.set_result(engine)
        while True:
            match self._next_in_order():
                case StepFrame() as step:
                    engine.launch(step.plan())()
                case CallFrame(action=action, argument_json=argument_json):
                    self._send(_answer(controls, ControlAction(action), argument_json))
                case _:
                    return

    def _next_in_order(self) -> ToRank | None:
        """Wait for the next step or call, from the queue on the leader's machine; None at the end."""
        if self._queue is None:
            return self._frames.get()
        while not self._queue.has_ended and self._frames.empty():  # it may be told to stop while it loads
            if (content := self._queue.take(_QUEUE_WITHIN_S)) is not None:
                return decode_to_rank(content)
        return None

    def _receive(self) -> None:
        """Take the leader's frames; end the process once it is gone, whatever it computes."""
        while (frame := self._channel.receive_at_rank()) is not None:
            if isinstance(frame, TransferFrame):
                self._transfer(frame.effect)
                continue
            if isinstance(frame, AdapterFrame):
                self._adapters.submit(self._change_adapter, frame)
                continue
            self._frames.put(frame)
            if isinstance(frame, StopFrame | RefusedFrame):
                if self._queue is not None:
                    self._queue.end()
                return
        os._exit(1)

    def _change_adapter(self, frame: AdapterFrame) -> None:
        """Load an adapter, or forget it, while steps go on."""
        try:
            engine = self._engine.result()
            if frame.path:
                engine.load_adapter(Adapter(name="", path=frame.path, digest=frame.digest))
            else:
                engine.drop_adapter(frame.digest)
            self._send(AnswerFrame(is_of_adapter=True))
        except Exception as error:
            self._send(AnswerFrame(code=_code_of(error), message=reason_of(error), is_of_adapter=True))

    def _keep_telling(self) -> None:
        while not self._has_ended.wait(ALIVE_EVERY_S):
            self._send(AliveFrame())

    def _end(self) -> None:
        """Close the channel: the process may live on."""
        if self._transfers is not None:
            self._transfers.close(_CLOSE_WITHIN_S)
        with self._sending:
            self._has_ended.set()
            self._channel.close()

    def _send(self, frame: ToLeader) -> None:
        try:
            with self._sending:
                if not self._has_ended.is_set():
                    self._channel.send(frame)
        except OSError:
            os._exit(1)  # the leader is gone


def require_same_model(start: StartFrame) -> None:
    """Refuse to compute another model than the leader, before any weight is read.

    Raises:
        InvalidModelError: names what differs.
    """
    settings = start.settings
    folder = resolve_model(settings.model)
    config = read_model_config(folder, settings.kv_cache.max_model_len, settings.config_overrides)
    found = describe_folder(folder, config, settings.config_overrides)
    try:
        start.description.require_same(found, "the leader's model")
    except IncompatibleWorkerError as error:
        raise InvalidModelError(f"model of rank {start.rank} on {socket.gethostname()}: {error}") from None


def _answer(controls: EngineControls, action: ControlAction, argument_json: str) -> AnswerFrame:
    try:
        result = controls.run(decode_control(action, argument_json))
        return AnswerFrame(result_json=encode_result(result))
    except RankLostError:
        raise
    except Exception as error:
        return AnswerFrame(code=_code_of(error), message=reason_of(error))


def _code_of(error: Exception) -> ErrorCode:
    return error.code if isinstance(error, BatonError) else ErrorCode.INTERNAL


def follow(
    address: tuple[str, int], rank: int, started_with: Mapping[str, str], token: str, within_s: float
) -> None:
    """Be one rank of the group whose leader listens at an address, or will soon; returns at its end.

    Raises:
        InvalidConfigError: there is no leader within this time, or it refuses the rank.
        Exception: whatever a step ends with; the leader has been told.
    """
    try:
        channel = connect(address, rank, started_with, token=token, within_s=within_s)
    except OSError as error:
        text = f"leader of rank {rank} is {address[0]}:{address[1]}, which has not answered in {within_s:g} s"
        raise InvalidConfigError(f"{text} ({error}); allowed: an address at which it listens") from error
    Rank(channel).run()


def _end_with(parent_pid: int) -> None:
    """End with the leader that started this process, also where its end of the channel lives on in a fork.

    A signal at the parent's death would come with the end of the thread that started this process.
    """
    while os.getppid() == parent_pid:
        time.sleep(_LOOK_EVERY_S)
    os._exit(1)


def main(args: list[str] | None = None) -> int:
    """Run a rank; returns its exit code: 1 where its group has ended, 2 where it has found none to join."""
    description = "One rank, which follows its leader. It reads their secret from standard input."
    parser = argparse.ArgumentParser(description=description)
    parser.add_argument("--control-fd", type=int, help="socket to the leader that started it")
    parser.add_argument("--parent-pid", type=int, help="process that started it")
    parser.add_argument("--leader-host", help="address at which the leader listens")
    parser.add_argument("--leader-port", type=int, help="port at which the leader listens")
    parser.add_argument("--rank", type=int, help="its number")
    parser.add_argument("--started-with", type=json.loads, help="JSON with what must be as at the leader")
    parser.add_argument("--within", type=float, help="seconds for the leader to listen")
    parsed = parser.parse_args(args)
    gc.freeze()  # What is loaded by now stays: searching torch's modules would stop a group's steps.
    logging.basicConfig(format="%(levelname)s %(message)s")
    try:
        if parsed.control_fd is None:
            die_with_parent(parsed.parent_pid)
            leader = (parsed.leader_host, parsed.leader_port)
            follow(leader, parsed.rank, parsed.started_with, sys.stdin.read(), parsed.within)
        else:
            threading.Thread(target=_end_with, args=(parsed.parent_pid,), name="parent", daemon=True).start()
            for number in (signal.SIGINT, signal.SIGTERM):
                signal.signal(number, signal.SIG_IGN)  # the leader decides when it ends
            Rank(RankChannel(socket.socket(fileno=parsed.control_fd))).run()
    except BatonError as error:
        _log.error("%s", error)
        return exit_code(error)
    except Exception as error:
        _log.error("a rank ends", exc_info=error)
        return 1
    return 0


if __name__ == "__main__":
    end_code = main()
    logging.shutdown()
    # Threads of torch that still run may abort the process where the interpreter takes itself down.
    os._exit(end_code)
