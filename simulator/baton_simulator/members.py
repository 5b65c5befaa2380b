"""Workers of a simulated cluster that hash instead of computing."""

from __future__ import annotations

from dataclasses import dataclass
from random import Random
from typing import Final

from baton_core.kv_layout.kv_spec import KVGroup, KVSpec
from baton_core.model.model_identity import ModelIdentity
from baton_core.ranks.rank_layout import ParallelSizes
from baton_core.sessions.worker_info import Role, WorkerInfo
from baton_simulator.clock import NodeClock
from baton_simulator.cluster import EXACT, Cluster
from baton_simulator.conditions import StepCost
from baton_simulator.hash_engine import ONE_KIND, VOCAB_SIZE, HashEngine, Windows
from baton_simulator.sim_drafter import speculate
from baton_simulator.sliced_engine import SlicedEngine
from baton_simulator.transports import USUAL, Timings
from baton_worker.core.scheduler_config import SchedulerConfig, SchedulingPolicy
from baton_worker.core.worker_config import WorkerConfig

BLOCK_SIZE: Final = 4


@dataclass(frozen=True, slots=True, kw_only=True)
class Shape:
    """The settings that workers of a cluster share."""

    num_blocks: int
    has_checksums: bool
    windows: Windows = ONE_KIND
    longest: int = 160
    """Maximum tokens of prompt and output together, if the pool holds as many."""
    chunk: int = 24
    """Tokens of a step."""
    max_num_seqs: int = 8
    garbled: float = 0.0
    timings: Timings = USUAL
    plans_ahead: bool | None = None
    """True plans steps while others run; None lets the seed choose for each worker."""
    speculates: bool | None = None
    """True drafts tokens; None lets the seed choose for each worker."""
    num_stages: int | None = None
    """Stages of a worker's pipeline; None lets the seed choose for each worker."""
    sizes: ParallelSizes | None = None
    """Ranks of a worker, each with a pool of its own; None: there is one pool."""


def make_spec(windows: Windows) -> KVSpec:
    groups = tuple(KVGroup(layers=(layer,), window=window) for layer, window in enumerate(windows))
    return KVSpec(
        num_layers=1, num_kv_heads=1, head_dim=1, block_size=BLOCK_SIZE, dtype="float32", groups=groups
    )


def make_identity(windows: Windows) -> ModelIdentity:
    return ModelIdentity(
        weights="w", dtype="f", kv_layout="l", block_size=BLOCK_SIZE, transport="sim", kv_windows=windows
    )


def start_worker(
    cluster: Cluster,
    name: str,
    role: Role,
    shape: Shape,
    *,
    epoch: int = 1,
    clock: NodeClock = EXACT,
    cost: StepCost | None = None,
) -> HashEngine:
    """Start a worker that hashes, in the place of an earlier one of its name; `cost` is that of its steps."""
    spec = make_spec(shape.windows)
    plans_ahead = _chosen(shape.plans_ahead, 0.5, f"{cluster.seed}/{name}/plans ahead")
    num_stages = shape.num_stages or Random(f"{cluster.seed}/{name}/stages").choice([1, 1, 2, 3])
    if shape.sizes is not None:
        num_stages = shape.sizes.pipeline
    max_model_len = spec.paging.max_tokens(shape.num_blocks, shape.chunk, limit=shape.longest)
    config = WorkerConfig(
        worker_id=name,
        epoch=epoch,
        identity=make_identity(shape.windows),
        kv_spec=spec,
        num_blocks=shape.num_blocks,
        max_model_len=max_model_len,
        vocab_size=VOCAB_SIZE,
        eos_token_ids=frozenset(),
        is_verified_by_checksum=shape.has_checksums,
        pull=shape.timings.pull,
        hold=shape.timings.hold,
        plans_ahead=plans_ahead,
        num_stages=num_stages,
        scheduler=SchedulerConfig(
            max_num_seqs=shape.max_num_seqs,
            max_num_batched_tokens=shape.chunk,
            policy=SchedulingPolicy.PRIORITY,
            max_num_partial_prefills=2,
            long_prefill_token_threshold=shape.chunk // 2,
        ),
    )
    info = WorkerInfo(
        worker_id=name,
        epoch=epoch,
        role=role,
        identity=config.identity,
        max_model_len=max_model_len,
        vocab_size=VOCAB_SIZE,
        num_blocks=shape.num_blocks,
        max_num_seqs=shape.max_num_seqs,
        peer_address=name,
        kv_description=b"",
    )
    rng = Random(f"{cluster.seed}/{name}/{epoch}/garbled")
    if shape.sizes is None:
        engine = HashEngine(shape.num_blocks, spec.paging, garbled=shape.garbled, rng=rng)
    else:
        engine = SlicedEngine(shape.num_blocks, spec.paging, shape.sizes, garbled=shape.garbled, rng=rng)
    cluster.start(info, config, engine, clock, cost)
    _let_speculate(cluster, name, shape, epoch)
    return engine


def _let_speculate(cluster: Cluster, name: str, shape: Shape, epoch: int) -> None:
    """Let a worker draft tokens, if its shape or the seed says so."""
    if _chosen(shape.speculates, 0.3, f"{cluster.seed}/{name}/speculates"):
        dice = Random(f"{cluster.seed}/{name}/{epoch}/drafts")
        by_model = _chosen(None, 0.5, f"{cluster.seed}/{name}/drafts by a model")
        worker = cluster.workers[name]
        worker.draft_model = speculate(worker.core, shape.windows, dice, by_model=by_model)


def _chosen(given: bool | None, share: float, seed: str) -> bool:
    """Return what is given, or let the seed choose."""
    return Random(seed).random() < share if given is None else given
