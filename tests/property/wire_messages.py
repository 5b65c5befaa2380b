"""Any message of a session, as strategies of Hypothesis."""

from __future__ import annotations

import math
from dataclasses import replace
from typing import Any

from hypothesis import strategies as st

from baton_core.errors import ErrorCode
from baton_core.kv_events.cache_delta import CacheDelta
from baton_core.model.model_description import MAX_CONFIG_CHARACTERS, ModelDescription
from baton_core.model.model_identity import ModelIdentity
from baton_core.prompt_embeds import PromptEmbeds
from baton_core.requests.finish import FinishReason
from baton_core.requests.logprobs import PositionLogprobs
from baton_core.requests.phases import Phase, PhaseName, PhaseReport, TokenSources
from baton_core.requests.pooling import PoolingModel, PoolingSpec, PoolingTask, encode_pooling_model
from baton_core.requests.repetition import RepetitionDetectionParams
from baton_core.requests.sampling_params import SamplingParams
from baton_core.requests.sampling_rules import ThinkingBudget
from baton_core.requests.structured_outputs import KINDS, LIBRARIES, StructuredOutputsParams
from baton_core.sessions.control_messages import Control, ControlAction, ControlResult
from baton_core.sessions.router_messages import (
    Cancel,
    Failed,
    FirstToken,
    FirstTokenOf,
    Generate,
    KVSource,
    OutputSoFar,
    Pooled,
    Prefill,
    PromptLogprobs,
    Refused,
    RequestSpec,
    Reserve,
    Reserved,
    SequenceOutput,
    Start,
    TokenBatch,
    Transferred,
)
from baton_core.sessions.worker_info import (
    BucketCounts,
    EngineFigures,
    Role,
    WorkerInfo,
    WorkerLoad,
    WorkerRates,
)
from baton_core.step_work import StepWork

names = st.text(min_size=1, max_size=20)
counts = st.integers(0, 2**32 - 1)
positive = st.integers(1, 2**32 - 1)
epochs = st.integers(1, 2**64 - 1)
token_id = st.integers(0, 2**31 - 1)
token_ids = st.lists(token_id, max_size=20).map(tuple)
indices = st.integers(0, 63)
seconds = st.floats(0, 1e9)
hashes = st.lists(st.binary(min_size=16, max_size=16), max_size=5).map(tuple)

some_token_ids = st.lists(token_id, min_size=1, max_size=20).map(tuple)
words = st.text(st.characters(codec="utf-8"), min_size=1, max_size=20)
json_values = st.recursive(
    st.none() | st.booleans() | st.integers() | st.floats(allow_nan=False, allow_infinity=False) | words,
    lambda values: st.lists(values, max_size=3) | st.dictionaries(words, values, max_size=3),
    max_leaves=5,
)
FORM_VALUES: dict[str, st.SearchStrategy[Any]] = {
    "json": words,
    "regex": words,
    "choice": st.lists(words, min_size=1, max_size=5).map(tuple),
    "grammar": words,
    "json_object": st.just(True),
    "structural_tag": words,
}
forms = st.one_of(
    st.builds(
        StructuredOutputsParams,
        disable_any_whitespace=st.booleans(),
        backend=st.sampled_from(("", *LIBRARIES)),
        **{name: FORM_VALUES[name]},
    )
    for name in KINDS
)
repetitions = st.builds(
    lambda shortest, more, count: RepetitionDetectionParams(
        max_pattern_size=shortest + more, min_pattern_size=shortest, min_count=count
    ),
    st.integers(0, 512),
    st.integers(0, 512),
    st.integers(2, 1024),
)
wanted_logprobs = st.none() | st.integers(-1, 2**31 - 1)
SENT = {
    "n": st.integers(1, 64),
    "presence_penalty": st.floats(-2, 2),
    "frequency_penalty": st.floats(-2, 2),
    "repetition_penalty": st.floats(0, 2, exclude_min=True),
    "temperature": st.floats(0, 10),
    "top_p": st.floats(0, 1, exclude_min=True),
    "top_k": st.integers(-1, 2**31 - 1),
    "min_p": st.floats(0, 1),
    "seed": st.integers(-(2**63), 2**63 - 1).filter(lambda seed: seed != -1),  # -1 asks for none
    "stop_token_ids": token_ids,
    "ignore_eos": st.booleans(),
    "max_tokens": st.none() | st.integers(10, 2**31),
    "min_tokens": st.integers(0, 10),
    "logprobs": wanted_logprobs,
    "prompt_logprobs": wanted_logprobs,
    "logprob_token_ids": st.none() | some_token_ids,
    "logit_bias": st.none() | st.dictionaries(token_id, st.floats(-100, 100), min_size=1, max_size=5),
    "allowed_token_ids": st.none() | some_token_ids,
    "structured_outputs": st.none() | forms,
    "repetition_detection": st.none() | repetitions,
    "logits_processors": st.lists(words.map(lambda word: f"module:{word}"), max_size=3).map(tuple),
    "extra_args": st.none() | st.dictionaries(words, json_values, max_size=3),
    "skip_reading_prefix_cache": st.booleans(),
}
AT_THE_ROUTER = {
    *("stop", "include_stop_str_in_output", "detokenize", "skip_special_tokens"),
    *("spaces_between_special_tokens", "flat_logprobs", "output_kind", "stream_interval"),
    *("bad_words", "thinking_token_budget"),  # in tokens they belong to the request
}


def make_params(**values: Any) -> SamplingParams:
    values["skip_reading_prefix_cache"] |= values["prompt_logprobs"] is not None
    return SamplingParams(**values)


params = st.builds(make_params, **SENT)
_FINITE = bytes(byte & 0x3F for byte in range(256))
"""Bytes of which no number is NaN or infinite."""
specs = st.builds(
    RequestSpec,
    request_id=names,
    prompt_token_ids=st.lists(token_id, min_size=1, max_size=20).map(tuple),
    params=params,
    cache_salt=st.text(max_size=20),
    priority=st.integers(-(2**31), 2**31 - 1),
    bad_words=st.lists(some_token_ids, max_size=3).map(tuple),
    thinking=st.none()
    | st.builds(
        ThinkingBudget,
        num_tokens=counts,
        start_token_ids=token_ids,
        end_token_ids=some_token_ids,
        may_end=st.booleans(),
    ),
    traceparent=st.text(max_size=60),
    resumed=st.just(()) | st.builds(lambda ids: (OutputSoFar(index=0, token_ids=ids),), some_token_ids),
    prompt_embeds=st.lists(
        st.builds(
            lambda rows, start: PromptEmbeds.of(b"".join(rows), dtype="float32", hidden_size=2, start=start),
            st.lists(st.binary(min_size=8, max_size=8).map(lambda row: row.translate(_FINITE)), min_size=1),
            counts,
        ),
        max_size=2,
    ).map(tuple),
    pooling=st.none()
    | st.builds(
        PoolingSpec,
        task=st.sampled_from(PoolingTask),
        dimensions=st.none() | counts,
        use_activation=st.none() | st.booleans(),
        type_one_from=st.none() | counts,
    ),
)
sources = st.builds(
    KVSource, worker_id=names, epoch=epochs, peer_address=st.text(max_size=20), kv_description=st.binary()
)
positions = st.lists(
    st.tuples(token_id, st.floats(width=32, max_value=0, allow_nan=False), counts), min_size=1, max_size=5
).map(
    lambda rows: PositionLogprobs(
        token_ids=tuple(row[0] for row in rows),
        logprobs=tuple(row[1] for row in rows),
        ranks=tuple(row[2] for row in rows),
    )
)
outputs = st.builds(
    SequenceOutput,
    request_id=names,
    index=indices,
    token_ids=some_token_ids,
    finish_reason=st.none() | st.sampled_from(FinishReason),
    stop_token_id=st.none() | token_id,
    logprobs=st.lists(positions, max_size=3).map(tuple),
)
output_lists = st.lists(outputs, max_size=5).map(tuple)
first_tokens = st.builds(FirstTokenOf, index=indices, token_id=token_id)

COMMANDS = {
    Generate: st.builds(Generate, spec=specs),
    Prefill: st.builds(Prefill, spec=specs),
    Reserve: st.builds(Reserve, spec=specs, source=sources),
    Start: st.builds(Start, request_id=names, first_tokens=st.lists(first_tokens, max_size=5).map(tuple)),
    Cancel: st.builds(Cancel, request_id=names, indices=st.lists(indices, max_size=5).map(tuple)),
    Control: st.builds(
        Control,
        control_id=epochs,
        action=st.sampled_from(ControlAction),
        argument_json=st.text(),
        timeout_s=seconds,
    ),
}
codes = st.sampled_from(ErrorCode)
phases = st.builds(
    Phase,
    name=st.sampled_from(PhaseName),
    start_s=seconds,
    end_s=seconds,
    num_tokens=counts,
    num_bytes=st.integers(0, 2**64 - 1),
    peer=st.text(max_size=20),
)
REPORTS = {
    Reserved: st.builds(Reserved, request_id=names, num_cached_tokens=counts),
    Refused: st.builds(Refused, request_id=names, code=codes, message=st.text()),
    PromptLogprobs: st.builds(
        PromptLogprobs, request_id=names, start=positive, entries=st.lists(positions, max_size=5).map(tuple)
    ),
    FirstToken: st.builds(
        FirstToken,
        request_id=names,
        outputs=output_lists,
        num_cached_tokens=counts,
        queue_s=seconds,
        prefill_s=seconds,
    ),
    Pooled: st.lists(st.integers(1, 4), min_size=1, max_size=2).flatmap(
        lambda shape: st.builds(
            Pooled,
            request_id=names,
            shape=st.just(tuple(shape)),
            values=st.binary(min_size=1, max_size=4 * math.prod(shape)),
            num_cached_tokens=counts,
            queue_s=seconds,
            prefill_s=seconds,
        )
    ),
    TokenBatch: st.builds(TokenBatch, outputs=output_lists),
    Transferred: st.builds(
        Transferred,
        request_id=names,
        num_blocks=counts,
        num_bytes=st.integers(0, 2**64 - 1),
        transfer_s=seconds,
        num_recomputed_tokens=counts,
    ),
    Failed: st.builds(Failed, request_id=names, code=codes, message=st.text()),
    CacheDelta: st.builds(
        CacheDelta, stored=hashes, removed=hashes, number=epochs, is_snapshot=st.booleans()
    ),
    PhaseReport: st.builds(
        PhaseReport,
        request_id=names,
        phases=st.lists(phases, max_size=5).map(tuple),
        sources=st.builds(
            TokenSources,
            num_computed=counts,
            num_local_cache=counts,
            num_remote=counts,
            num_recomputed=counts,
        ),
        num_left_out=counts,
        sent_s=seconds,
        traceparent=st.text(max_size=60),
    ),
    ControlResult: st.builds(
        ControlResult,
        control_id=epochs,
        result_json=st.text(),
        code=st.none() | codes,
        message=st.text(),
        is_asleep=st.booleans(),
        is_paused=st.booleans(),
        role=st.none() | st.sampled_from(Role),
        is_role_fixed=st.booleans(),
        is_draining=st.booleans(),
        weights=st.just("") | names,
    ),
}


short = st.text(max_size=MAX_CONFIG_CHARACTERS)
infos = st.builds(
    WorkerInfo,
    worker_id=st.from_regex(r"[^\x00-\x1f\x7f]{1,128}", fullmatch=True),
    epoch=epochs,
    has_prefix_cache=st.booleans(),
    role=st.sampled_from(Role),
    identity=st.builds(
        ModelIdentity,
        weights=names,
        dtype=names,
        kv_layout=names,
        block_size=positive,
        transport=names,
        kv_windows=st.lists(st.none() | positive, min_size=1, max_size=4).map(tuple),
        protocol_version=positive,
        numerics=st.just("") | names,
        description=st.builds(
            ModelDescription,
            config=st.dictionaries(short, short, max_size=4).map(
                lambda config: tuple(sorted(config.items()))
            ),
            tokenizer=st.just("") | names,
            eos_token_ids=st.lists(st.integers(0, 2**31 - 1), max_size=4).map(tuple),
        ),
        kv_variant=st.just("") | names,
        quantization=st.just("") | names,
        structured_outputs_backend=names,
        logits_processors=st.lists(names, max_size=3).map(tuple),
        logprobs_mode=st.just("") | names,
        pooling=st.just("")
        | st.builds(PoolingModel, labels=st.lists(names, max_size=3).map(tuple)).map(encode_pooling_model),
    ),
    max_model_len=positive,
    vocab_size=positive,
    num_blocks=positive,
    max_num_seqs=positive,
    peer_address=st.sampled_from(("tcp://[::1]:1", f"tcp://host:65535#{'0a' * 32}", "ipc:///tmp/x")),
    kv_description=st.binary(max_size=50),
    block_bytes=positive,
    metrics_address=st.just("") | names,
)
figures = st.builds(
    EngineFigures,
    sleep_level=st.integers(0, 2),
    num_queried_tokens=epochs,
    num_hit_tokens=counts,
    num_computed_tokens=counts,
    num_cached_tokens=counts,
    num_remote_tokens=counts,
    num_remote_queried_tokens=counts,
    num_preemptions=counts,
    step_counts=st.lists(counts, max_size=3).map(tuple),
    num_step_tokens=counts,
    num_drafts=counts,
    num_draft_tokens=counts,
    num_accepted_tokens=counts,
    num_accepted_per_position=st.lists(counts, max_size=3).map(tuple),
    max_loras=counts,
    waiting_adapters=st.lists(names, max_size=3).map(tuple),
    running_adapters=st.lists(names, max_size=3).map(tuple),
    work=st.none() | st.builds(StepWork, flops=seconds, read_bytes=seconds, written_bytes=seconds),
    block_residency=st.lists(
        st.builds(BucketCounts, counts=st.lists(counts, max_size=3).map(tuple), total=seconds), max_size=3
    ).map(tuple),
)
loads = st.builds(
    WorkerLoad,
    num_running=counts,
    num_waiting=counts,
    num_deferred=counts,
    num_queued_tokens=counts,
    num_available_blocks=counts,
    step_age_s=seconds,
    waiting_request_ids=st.lists(names, max_size=3).map(tuple),
    is_asleep=st.booleans(),
    is_paused=st.booleans(),
    role=st.none() | st.sampled_from(Role),
    is_role_fixed=st.booleans(),
    is_draining=st.booleans(),
    weights=st.just("") | names,
    rates=st.builds(
        WorkerRates,
        prefill_tokens_per_s=seconds,
        decode_step_s=seconds,
        pull_bytes_per_s=seconds,
        num_prefill_steps=counts,
        num_decode_steps=counts,
        num_pulls=counts,
    ),
    figures=st.none() | figures,
)


def make_generate(**changes: object) -> Generate:
    spec = RequestSpec(request_id="r", prompt_token_ids=(1, 2), params=SamplingParams(seed=3))
    return Generate(spec=replace(spec, **changes))
