"""A real worker process whose model step is a timer.

    python -m bench.replay.timed_worker --router 127.0.0.1:8100 --role mixed --worker-id m0 --timing small_cpu

Sessions, core, block pool, peer channel, transfer thread and bytes are those of every worker; only the engine
thread runs `bench.replay.timed_engine`.
"""

from __future__ import annotations

import argparse
import asyncio
import time
from concurrent.futures import Future
from pathlib import Path
from typing import cast

import numpy as np
import zmq.asyncio

from baton.config.engine_args import BUNDLED_MODEL
from baton_core.errors import InvalidRequestError
from baton_core.kv_layout.kv_spec import ITEM_BYTES, KVSpec
from baton_core.model.model_identity import ModelIdentity
from baton_core.requests.structured_outputs import StructuredOutputsParams
from baton_core.sessions.session import DEFAULT_TIMINGS, SessionTimings
from baton_core.sessions.worker_info import Role
from baton_kv.connector import VerifiesBy
from baton_kv.shared_memory import SharedMemoryConnector
from baton_kv.transport import Transport
from baton_prefill.producer_endpoint import ProducerEndpoint
from baton_router.text.model_folder import read_model_folder
from baton_router.text.model_to_serve import read_served_model
from baton_service.logs import configure_logging
from baton_service.process import die_with_parent, name_process, run_until_signal
from baton_simulator.capacity.step_timing import TimingProfile
from baton_worker.controls.worker_controls import WorkerControls
from baton_worker.core.scheduler_config import SchedulerConfig
from baton_worker.core.worker_config import WorkerConfig
from baton_worker.engine.resident_engine import ResidentEngine
from baton_worker.pool_placement import PoolPlacement
from baton_worker.worker_process import worker_info
from baton_worker.worker_shell import Worker, WorkerParts
from bench.command_line import make_parser
from bench.replay.timed_engine import METER_FIELDS, SLOT_BYTES, TimedEngine
from bench.replay.worker_sizing import named_profile

DTYPE = "float32"
TRANSPORT = Transport.SHARED_MEMORY


class NoGrammars:
    """A timer has no vocabulary that a form could be compiled for."""

    def compile(self, params: StructuredOutputsParams) -> Future[None]:
        raise InvalidRequestError("structured_outputs", params, "none: this worker's engine is a timer")

    def close(self) -> None: ...


def kv_spec(kv_bytes_per_token: int, block_size: int) -> KVSpec:
    """A cache of one layer and one head with at least so many bytes per token, and room for a slot."""
    head_dim = -(-max(kv_bytes_per_token, SLOT_BYTES) // (2 * ITEM_BYTES[DTYPE]))
    return KVSpec(num_layers=1, num_kv_heads=1, head_dim=head_dim, block_size=block_size, dtype=DTYPE)


def worker_config(args: argparse.Namespace, profile: TimingProfile, epoch: int) -> WorkerConfig:
    spec = kv_spec(profile.kv_bytes_per_token, args.block_size)
    identity = ModelIdentity(
        weights="timer",
        dtype=spec.dtype,
        block_size=spec.block_size,
        kv_layout=spec.layout,
        transport=TRANSPORT,
        description=read_served_model(read_model_folder(Path(BUNDLED_MODEL))).description,
    )
    return WorkerConfig(
        worker_id=args.worker_id,
        epoch=epoch,
        identity=identity,
        kv_spec=spec,
        num_blocks=args.num_blocks,
        max_model_len=args.max_model_len,
        vocab_size=args.vocab_size,
        eos_token_ids=frozenset(),
        is_verified_by_checksum=SharedMemoryConnector.capabilities.verifies_by is VerifiesBy.CHECKSUM,
        scheduler=SchedulerConfig(
            max_num_seqs=args.max_num_seqs, max_num_batched_tokens=args.max_num_batched_tokens
        ),
    )


async def serve(args: argparse.Namespace) -> None:
    profile = named_profile(args.timing)
    context = zmq.asyncio.Context()
    try:
        producer = ProducerEndpoint(context, "tcp://127.0.0.1:0")
        config = worker_config(args, profile, time.time_ns())
        placement = PoolPlacement(lambda spec: SharedMemoryConnector(spec, config.epoch))
        pool = placement.allocate(config.kv_spec, config.num_blocks)
        assert placement.connector is not None, "allocating makes the connector"
        meter = np.memmap(args.meter, np.float64, "r+", shape=METER_FIELDS)
        timed = TimedEngine(pool, args.block_size, profile.timing, args.vocab_size, meter)
        engine = cast(ResidentEngine, timed)
        parts = WorkerParts(
            config=config,
            info=worker_info(Role(args.role), config, producer.address, placement.connector.describe()),
            engine=engine,
            controls=WorkerControls(engine),
            connector=placement.connector,
            context=context,
            producer=producer,
            grammars=NoGrammars(),
            routers=tuple(args.router),
            session_timings=SessionTimings(dead_after_s=args.session_timeout),
        )
        await Worker(parts).run()
    finally:
        context.destroy(linger=0)


def parse_arguments() -> argparse.Namespace:
    parser = make_parser(__doc__)
    parser.add_argument("--router", required=True, action="append", help="router to serve; repeatable")
    parser.add_argument("--role", required=True, choices=tuple(Role))
    parser.add_argument("--worker-id", required=True)
    parser.add_argument("--timing", required=True, help="a profile's file, or one of bench/timings")
    parser.add_argument("--meter", required=True, type=Path, help="file of 3 f64 that the engine adds to")
    parser.add_argument("--num-blocks", type=int, required=True)
    parser.add_argument("--block-size", type=int, default=32)
    parser.add_argument("--max-model-len", type=int, required=True)
    parser.add_argument("--vocab-size", type=int, required=True)
    parser.add_argument("--max-num-seqs", type=int, default=128)
    parser.add_argument("--max-num-batched-tokens", type=int, default=512)
    parser.add_argument("--session-timeout", type=float, default=DEFAULT_TIMINGS.dead_after_s)
    parser.add_argument("--parent-pid", type=int, default=0, help="end with this process")
    return parser.parse_args()


def main() -> None:
    args = parse_arguments()
    if args.parent_pid:
        die_with_parent(args.parent_pid)
    configure_logging("timed-worker", "text", "warning")
    name_process(f"timed {args.worker_id}")
    asyncio.run(run_until_signal(serve(args)))


if __name__ == "__main__":
    main()
