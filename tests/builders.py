"""Builders of the core's values, with small numbers: blocks of 4 tokens, pools of 16 blocks."""

from __future__ import annotations

import asyncio
import sys
from typing import Any

from baton_core.blocks.block_hash import root_hash
from baton_core.kv_layout.kv_spec import KVGroup, KVSpec
from baton_core.kv_layout.paging import Paging
from baton_core.model.model_identity import ModelIdentity
from baton_core.requests.logprobs import PositionLogprobs
from baton_core.requests.sampling_params import SamplingParams
from baton_core.sessions.router_messages import KVSource, RequestSpec
from baton_core.sessions.worker_info import Role, WorkerInfo
from baton_core.worker.sequence import Sequence, SequenceState
from baton_core.worker.step_plan import SeqId, StepPlan, StepResult
from baton_service.keys import Keys
from baton_worker.core.scheduler_config import SchedulerConfig
from baton_worker.core.worker_config import WorkerConfig
from baton_worker.probes import Probes

BLOCK_SIZE = 4
VOCAB_SIZE = 1000
EOS_TOKEN_ID = 999
WEIGHTS = "tiny"
ONE_GROUP = Paging(block_size=BLOCK_SIZE)


def make_identity(**changes: Any) -> ModelIdentity:
    fields = {
        "weights": WEIGHTS,
        "dtype": "float32",
        "kv_layout": "LKHTD:1x2x1x4x8:float32",
        "block_size": BLOCK_SIZE,
        "transport": "memory",
    }
    return ModelIdentity(**{**fields, **changes})


def make_params(**changes: Any) -> SamplingParams:
    """Greedy, seeded, eight tokens."""
    fields = {"temperature": 0.0, "seed": 7, "max_tokens": 8}
    return SamplingParams(**{**fields, **changes})


def make_prompt(num_tokens: int, first: int = 1) -> tuple[int, ...]:
    """Consecutive token ids: prompts with the same `first` share their prefix, others share nothing."""
    return tuple((first + offset) % (VOCAB_SIZE - 1) for offset in range(num_tokens))


def make_request(request_id: str = "r", *, prompt: int = 8, first: int = 1, **changes: Any) -> RequestSpec:
    """A request of `prompt` tokens for the weights of `make_identity`; other fields of it and of
    `SamplingParams` may be given."""
    names = ("adapter", "cache_salt", "priority", "thinking", "traceparent", "resumed", "weights")
    own = {"weights": WEIGHTS} | {name: changes.pop(name) for name in names if name in changes}
    if "bad_word_ids" in changes:
        own["bad_words"] = changes.pop("bad_word_ids")
    return RequestSpec(
        request_id=request_id,
        prompt_token_ids=make_prompt(prompt, first),
        params=make_params(**changes),
        **own,
    )


def make_sequence(
    request_id: str = "r",
    *,
    prompt: int = 8,
    first: int = 1,
    arrival_s: float = 0.0,
    state: SequenceState = SequenceState.WAITING,
    priority: int = 0,
    is_pinned: bool = False,
    paging: Paging = ONE_GROUP,
    max_chunk_tokens: int = sys.maxsize,
    **params: Any,
) -> Sequence:
    return Sequence(
        SeqId(request_id, 0),
        make_prompt(prompt, first),
        make_params(**params),
        paging=paging,
        root=root_hash(make_identity()),
        arrival_s=arrival_s,
        state=state,
        priority=priority,
        is_pinned=is_pinned,
        max_chunk_tokens=max_chunk_tokens,
    )


def make_kv_spec(windows: tuple[int | None, ...] = (None,)) -> KVSpec:
    """One layer in each KV group."""
    return KVSpec(
        num_layers=1,
        num_kv_heads=1,
        head_dim=8,
        block_size=BLOCK_SIZE,
        dtype="float32",
        groups=tuple(KVGroup(layers=(layer,), window=window) for layer, window in enumerate(windows)),
    )


def make_worker_config(
    worker_id: str = "w", *, num_blocks: int = 16, max_num_batched_tokens: int = 64, **changes: Any
) -> WorkerConfig:
    spec = changes.get("kv_spec", make_kv_spec())
    limit = num_blocks * BLOCK_SIZE
    fields = {
        "epoch": 1,
        "identity": make_identity(),
        "kv_spec": spec,
        "max_model_len": spec.paging.max_tokens(num_blocks, max_num_batched_tokens, limit),
        "vocab_size": VOCAB_SIZE,
        "eos_token_ids": frozenset({EOS_TOKEN_ID}),
        "is_verified_by_checksum": False,
        "scheduler": SchedulerConfig(max_num_batched_tokens=max_num_batched_tokens, max_num_seqs=16),
    }
    return WorkerConfig(worker_id=worker_id, num_blocks=num_blocks, **{**fields, **changes})


def make_worker_info(worker_id: str = "w", role: Role = Role.MIXED, **changes: Any) -> WorkerInfo:
    fields = {
        "epoch": 1,
        "identity": make_identity(),
        "max_model_len": 4096,
        "vocab_size": VOCAB_SIZE,
        "num_blocks": 1024,
        "max_num_seqs": 16,
        "peer_address": f"inproc://{worker_id}",
        "kv_description": b"",
    }
    return WorkerInfo(worker_id=worker_id, role=role, **{**fields, **changes})


def make_source(worker_id: str = "p", *, epoch: int = 1, description: bytes = b"") -> KVSource:
    return KVSource(
        worker_id=worker_id, epoch=epoch, peer_address=f"inproc://{worker_id}", kv_description=description
    )


def make_logprobs(token_id: int, position: int) -> PositionLogprobs:
    """Made up: they name a token and its position."""
    return PositionLogprobs(token_ids=(token_id,), logprobs=(-float(position),), ranks=(1,))


def step_result(plan: StepPlan, token_id: int = 500) -> StepResult:
    """Return the result of an engine that samples `token_id` everywhere."""
    pieces = dict(enumerate(plan.slices))
    return StepResult(
        step_id=plan.step_id,
        sampled=tuple((token_id,) * len(piece.samples) for piece in plan.slices),
        logprobs={
            number: tuple(make_logprobs(token_id, sample.position) for sample in piece.samples)
            for number, piece in pieces.items()
            if piece.samples and piece.samples[0].logprobs is not None
        },
        prompt_logprobs={
            number: tuple(
                make_logprobs(target, position)
                for position, target in enumerate(piece.prompt_targets, start=piece.start + 1)
            )
            for number, piece in pieces.items()
            if piece.prompt_logprobs is not None
        },
    )


def open_probes(*drain_keys: str) -> Probes:
    """Probes of a worker on the running loop, with metrics for everybody."""
    return Probes(asyncio.get_running_loop(), Keys(), Keys(drain_keys))
