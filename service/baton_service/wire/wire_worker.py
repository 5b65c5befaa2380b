"""A worker's registration and its load, as protobuf."""

from __future__ import annotations

from dataclasses import asdict

from baton_core.errors import IncompatibleWorkerError, InvalidRequestError
from baton_core.model.model_description import (
    MAX_CONFIG_CHARACTERS,
    MAX_CONFIG_VALUES,
    ModelDescription,
)
from baton_core.model.model_identity import PROTOCOL_VERSION, ModelIdentity
from baton_core.sessions.worker_info import (
    MAX_REPORTED_ADAPTERS,
    MAX_REPORTED_WAITING,
    BucketCounts,
    EngineFigures,
    Role,
    WorkerInfo,
    WorkerLoad,
    WorkerRates,
)
from baton_core.step_work import StepWork
from baton_core.worker.speculative_config import MAX_DRAFT_TOKENS
from baton_proto.v1 import baton_pb2
from baton_proto.v1 import session_pb2 as pb
from baton_service.wire.wire_checks import (
    checked_code,
    checked_count,
    checked_name,
    checked_number,
    checked_peer_address,
    checked_worker_id,
    require_set,
)
from baton_service.wire.wire_pooling import checked_pooling_model


def encode_hello(
    info: WorkerInfo, *, router_epoch: int = 0, received: int = 0, process_port: int = 0
) -> pb.Hello:
    """Make a stream's first frame; `router_epoch` and `received` ask to resume that session.

    `process_port` names the router's process that is dialed; 0: any.
    """
    identity = info.identity
    return pb.Hello(
        worker_id=info.worker_id,
        process_port=process_port,
        epoch=info.epoch,
        role=info.role,
        identity=pb.Identity(
            weights=identity.weights,
            dtype=identity.dtype,
            kv_layout=identity.kv_layout,
            block_size=identity.block_size,
            transport=identity.transport,
            kv_windows=[window or 0 for window in identity.kv_windows],
            protocol_version=identity.protocol_version,
            numerics=identity.numerics,
            description=pb.ModelDescription(
                config=dict(identity.description.config),
                tokenizer=identity.description.tokenizer,
                eos_token_ids=identity.description.eos_token_ids,
            ),
            kv_variant=identity.kv_variant,
            quantization=identity.quantization,
            structured_outputs_backend=identity.structured_outputs_backend,
            logits_processors=identity.logits_processors,
            logprobs_mode=identity.logprobs_mode,
            pooling=identity.pooling,
        ),
        max_model_len=info.max_model_len,
        vocab_size=info.vocab_size,
        num_blocks=info.num_blocks,
        max_num_seqs=info.max_num_seqs,
        peer_address=info.peer_address,
        kv_description=info.kv_description,
        router_epoch=router_epoch,
        received=received,
        block_bytes=info.block_bytes,
        metrics_address=info.metrics_address,
        data_parallel_rank=info.data_parallel_rank,
        lacks_prefix_cache=not info.has_prefix_cache,
    )


def require_own_version(hello: pb.Hello) -> None:
    """Refuse a worker of another version of the protocol, whatever else its registration has.

    Raises:
        IncompatibleWorkerError: names its version and the one that is allowed.
    """
    if (version := hello.identity.protocol_version) != PROTOCOL_VERSION:
        text = f"protocol_version is {version}; allowed: {PROTOCOL_VERSION}, that of this router"
        raise IncompatibleWorkerError(text, is_permanent=True)


def decode_hello(hello: pb.Hello) -> WorkerInfo:
    """Read who registers.

    Raises:
        InvalidRequestError: a field is missing or out of range.
    """
    require_set(hello, "identity")
    return WorkerInfo(
        worker_id=checked_worker_id("worker_id", hello.worker_id),
        epoch=checked_count("epoch", hello.epoch),
        role=checked_code("role", hello.role, Role),
        identity=_decode_identity(hello.identity),
        max_model_len=checked_count("max_model_len", hello.max_model_len),
        vocab_size=checked_count("vocab_size", hello.vocab_size),
        num_blocks=checked_count("num_blocks", hello.num_blocks),
        max_num_seqs=checked_count("max_num_seqs", hello.max_num_seqs),
        peer_address=checked_peer_address("peer_address", hello.peer_address),
        kv_description=hello.kv_description,
        block_bytes=checked_count("block_bytes", hello.block_bytes),
        metrics_address=hello.metrics_address and checked_name("metrics_address", hello.metrics_address),
        data_parallel_rank=hello.data_parallel_rank,
        has_prefix_cache=not hello.lacks_prefix_cache,
    )


def _decode_identity(identity: pb.Identity) -> ModelIdentity:
    require_set(identity, "description")
    return ModelIdentity(
        weights=checked_name("identity.weights", identity.weights),
        dtype=checked_name("identity.dtype", identity.dtype),
        kv_layout=checked_name("identity.kv_layout", identity.kv_layout),
        block_size=checked_count("identity.block_size", identity.block_size),
        transport=checked_name("identity.transport", identity.transport),
        kv_windows=_decode_windows(identity),
        protocol_version=checked_count("identity.protocol_version", identity.protocol_version),
        numerics=identity.numerics,
        description=_decode_description(identity.description),
        kv_variant=identity.kv_variant,
        quantization=identity.quantization,
        structured_outputs_backend=identity.structured_outputs_backend,
        logits_processors=tuple(identity.logits_processors),
        logprobs_mode=identity.logprobs_mode,
        pooling=checked_pooling_model(identity.pooling),
    )


def _decode_description(description: pb.ModelDescription) -> ModelDescription:
    config, field = dict(description.config), "identity.description.config"
    if len(config) > MAX_CONFIG_VALUES:
        raise InvalidRequestError(field, f"{len(config)} values", f"at most {MAX_CONFIG_VALUES}")
    for text in (text for pair in config.items() for text in pair):
        if len(text) > MAX_CONFIG_CHARACTERS:
            raise InvalidRequestError(field, text, f"at most {MAX_CONFIG_CHARACTERS} characters")
    return ModelDescription(
        config=tuple(sorted(config.items())),
        tokenizer=description.tokenizer,
        eos_token_ids=tuple(description.eos_token_ids),
    )


def _decode_windows(identity: pb.Identity) -> tuple[int | None, ...]:
    if not identity.kv_windows:
        raise InvalidRequestError("identity.kv_windows", [], "one window for each KV group")
    return tuple(window or None for window in identity.kv_windows)


def encode_load(load: WorkerLoad) -> pb.Load:
    return pb.Load(
        num_running=load.num_running,
        num_waiting=load.num_waiting,
        num_deferred=load.num_deferred,
        num_queued_tokens=load.num_queued_tokens,
        num_available_blocks=load.num_available_blocks,
        step_age_s=load.step_age_s,
        is_asleep=load.is_asleep,
        is_paused=load.is_paused,
        role=load.role or "",
        is_draining=load.is_draining,
        is_role_fixed=load.is_role_fixed,
        weights=load.weights,
        fault=load.fault,
        rates=pb.Rates(**asdict(load.rates)),
        adapters=load.adapters,
        loading_adapters=load.loading_adapters,
        adapter_load_s=load.adapter_load_s,
        waiting_request_ids=load.waiting_request_ids,
        figures=None if load.figures is None else pb.Figures(**asdict(load.figures)),
    )


def decode_load(load: pb.Load) -> WorkerLoad:
    """Read a heartbeat's load.

    Raises:
        InvalidRequestError: `step_age_s` is no duration, a rate no finite number from 0, or the role unknown.
    """
    return WorkerLoad(
        num_running=load.num_running,
        num_waiting=load.num_waiting,
        num_deferred=load.num_deferred,
        num_queued_tokens=load.num_queued_tokens,
        num_available_blocks=load.num_available_blocks,
        step_age_s=checked_number("step_age_s", load.step_age_s),
        is_asleep=load.is_asleep,
        is_paused=load.is_paused,
        role=checked_code("role", load.role, Role) if load.role else None,
        is_draining=load.is_draining,
        is_role_fixed=load.is_role_fixed,
        weights=load.weights,
        fault=load.fault,
        rates=WorkerRates(
            prefill_tokens_per_s=checked_number("prefill_tokens_per_s", load.rates.prefill_tokens_per_s),
            decode_step_s=checked_number("decode_step_s", load.rates.decode_step_s),
            pull_bytes_per_s=checked_number("pull_bytes_per_s", load.rates.pull_bytes_per_s),
            num_prefill_steps=load.rates.num_prefill_steps,
            num_decode_steps=load.rates.num_decode_steps,
            num_pulls=load.rates.num_pulls,
        ),
        adapters=tuple(load.adapters[:MAX_REPORTED_ADAPTERS]),
        loading_adapters=tuple(load.loading_adapters[:MAX_REPORTED_ADAPTERS]),
        adapter_load_s=checked_number("adapter_load_s", load.adapter_load_s),
        waiting_request_ids=tuple(load.waiting_request_ids[:MAX_REPORTED_WAITING]),
        figures=_decode_figures(load.figures) if load.HasField("figures") else None,
    )


def _decode_figures(figures: pb.Figures) -> EngineFigures:
    return EngineFigures(
        sleep_level=figures.sleep_level,
        num_queried_tokens=figures.num_queried_tokens,
        num_hit_tokens=figures.num_hit_tokens,
        num_computed_tokens=figures.num_computed_tokens,
        num_cached_tokens=figures.num_cached_tokens,
        num_remote_tokens=figures.num_remote_tokens,
        num_remote_queried_tokens=figures.num_remote_queried_tokens,
        num_preemptions=figures.num_preemptions,
        step_counts=tuple(figures.step_counts),
        num_step_tokens=figures.num_step_tokens,
        num_drafts=figures.num_drafts,
        num_draft_tokens=figures.num_draft_tokens,
        num_accepted_tokens=figures.num_accepted_tokens,
        num_accepted_per_position=tuple(figures.num_accepted_per_position[:MAX_DRAFT_TOKENS]),
        max_loras=figures.max_loras,
        waiting_adapters=tuple(figures.waiting_adapters[:MAX_REPORTED_ADAPTERS]),
        running_adapters=tuple(figures.running_adapters[:MAX_REPORTED_ADAPTERS]),
        block_residency=tuple(
            BucketCounts(counts=tuple(one.counts), total=checked_number("total", one.total))
            for one in figures.block_residency
        ),
        work=_decode_work(figures.work) if figures.HasField("work") else None,
    )


def _decode_work(work: baton_pb2.Work) -> StepWork:
    return StepWork(
        flops=checked_number("flops", work.flops),
        read_bytes=checked_number("read_bytes", work.read_bytes),
        written_bytes=checked_number("written_bytes", work.written_bytes),
    )
