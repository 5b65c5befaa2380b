"""Sizes the workers of a replay, by default so large that they never have to evict a block."""

from __future__ import annotations

import argparse
from pathlib import Path

import msgspec

from baton_core.errors import InvalidConfigError
from baton_simulator.capacity.step_timing import TimingProfile, read_profile, write_profile
from bench.replay.loads import VOCAB_SIZE, Load
from bench.replay.timed_engine import SLOT_BYTES

TIMINGS = Path(__file__).parents[1] / "timings"
"""Timing profiles of machines that come with the benchmarks."""
MODEL_KV_BYTES_PER_TOKEN = 5 * 2 * 4 * 32 * 2
"""KV bytes of the bundled model: layers, K and V, heads, head dimension, bytes of bf16."""


def named_profile(name: str) -> TimingProfile:
    """Read one of `bench/timings`, or a file.

    Raises:
        InvalidConfigError: there is none, or it is no profile.
    """
    known = sorted(path.stem for path in TIMINGS.glob("*.json"))
    path = TIMINGS / f"{name}.json" if name in known else Path(name)
    if not path.is_file():
        raise InvalidConfigError(f"timing is {name!r}; allowed: a file, or {', '.join(known)}")
    return read_profile(path)


def profile(name: str) -> TimingProfile:
    """Read a profile for argparse, whose errors name the flag."""
    try:
        return named_profile(name)
    except InvalidConfigError as error:
        raise argparse.ArgumentTypeError(str(error)) from None


def add_worker_arguments(parser: argparse.ArgumentParser) -> None:
    parser.add_argument(
        "--timing",
        dest="profile",
        type=profile,
        default="small_cpu",
        help="timing of steps: a file of `bench.calibrate`, or one of bench/timings by name",
    )
    parser.add_argument("--block-size", type=int, default=32)
    parser.add_argument("--max-num-batched-tokens", type=int, default=512, help="token budget of a step")
    parser.add_argument(
        "--kv-bytes-per-token", type=int, help="KV bytes of a timed worker; default: as in --timing"
    )
    parser.add_argument(
        "--memory-gib",
        type=float,
        default=8.0,
        help="memory for the KV of all workers; less is used where that is ample",
    )


def timed_worker_flags(args: argparse.Namespace, load: Load, num_workers: int, folder: Path) -> list[str]:
    """Flags of `bench.replay.timed_worker`; writes the profile to `folder`."""
    kv_bytes = max(SLOT_BYTES, args.kv_bytes_per_token or args.profile.kv_bytes_per_token)
    path = folder / "timing.json"
    write_profile(path, msgspec.structs.replace(args.profile, kv_bytes_per_token=kv_bytes))
    longest = max(len(arrival.token_ids) + arrival.num_tokens for arrival in load.arrivals)
    num_blocks = num_pool_blocks(load, args.block_size, kv_bytes, int(args.memory_gib * 2**30 / num_workers))
    values = {
        "--timing": path,
        "--block-size": args.block_size,
        "--max-num-batched-tokens": args.max_num_batched_tokens,
        "--num-blocks": num_blocks,
        "--max-model-len": min(longest + args.block_size, num_blocks * args.block_size),
        "--vocab-size": VOCAB_SIZE,
    }
    return [text for flag, value in values.items() for text in (flag, str(value))]


def model_worker_flags(args: argparse.Namespace, load: Load, num_workers: int, folder: Path) -> list[str]:
    """Flags of `baton` workers with the bundled model."""
    most_bytes = int(args.memory_gib * 2**30 / num_workers)
    num_blocks = num_pool_blocks(load, args.block_size, MODEL_KV_BYTES_PER_TOKEN, most_bytes)
    values = {
        "--block-size": args.block_size,
        "--max-num-batched-tokens": args.max_num_batched_tokens,
        "--kv-cache-memory-bytes": num_blocks * args.block_size * MODEL_KV_BYTES_PER_TOKEN,
        "--num-threads": 1,
    }
    return [text for flag, value in values.items() for text in (flag, str(value))]


def num_pool_blocks(load: Load, block_size: int, kv_bytes_per_token: int, most_bytes: int) -> int:
    """Blocks of a worker that could hold the whole load at once, or as many as there is memory for."""
    tokens = (len(arrival.token_ids) + arrival.num_tokens for arrival in load.arrivals)
    ample = sum(-(-count // block_size) + 1 for count in tokens)
    return max(1, min(2 * ample, most_bytes // (block_size * kv_bytes_per_token)))
