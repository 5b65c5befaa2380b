"""Commands of a router to a worker, as protobuf.

Text stays at the router: stop strings, bad words and how text is shown are not sent.
"""

from __future__ import annotations

import json
from collections.abc import Iterable
from dataclasses import asdict
from typing import Any, Final, assert_never

from baton_core.errors import InvalidRequestError
from baton_core.prompt_embeds import PromptEmbeds
from baton_core.requests.adapter import Adapter
from baton_core.requests.repetition import RepetitionDetectionParams
from baton_core.requests.sampling_params import SamplingParams
from baton_core.requests.sampling_rules import ThinkingBudget
from baton_core.requests.structured_outputs import StructuredOutputsParams
from baton_core.sessions.control_messages import Control
from baton_core.sessions.router_messages import (
    Cancel,
    FirstTokenOf,
    Generate,
    KVSource,
    OutputSoFar,
    Prefill,
    RequestSpec,
    Reserve,
    Start,
    ToWorker,
)
from baton_proto.v1 import session_pb2 as pb
from baton_service.wire.wire_checks import (
    MAX_COMMAND_BYTES,
    check_size,
    checked_count,
    checked_index,
    checked_name,
    checked_token_ids,
    chosen,
    require_set,
)
from baton_service.wire.wire_controls import decode_control, encode_control
from baton_service.wire.wire_pooling import decode_pooling, encode_pooling

_NUMBERS: Final = (
    *("n", "presence_penalty", "frequency_penalty", "repetition_penalty", "temperature", "top_p", "top_k"),
    *("min_p", "seed", "ignore_eos", "min_tokens"),
)
_OPTIONAL_NUMBERS: Final = ("max_tokens", "logprobs", "prompt_logprobs")
_ID_LISTS: Final = ("stop_token_ids", "logprob_token_ids", "allowed_token_ids")
_MAX_INT32: Final = 2**31 - 1


def encode_command(message: ToWorker) -> pb.RouterData:
    """Write a command; the session gives it its number.

    Raises:
        InvalidRequestError: it is over 1 MiB, embeddings aside, its request has no seed, or it would call a
            function.
    """
    match message:
        case Generate():
            data = pb.RouterData(generate=pb.Generate(spec=_encode_spec(message.spec)))
        case Prefill():
            data = pb.RouterData(prefill=pb.Prefill(spec=_encode_spec(message.spec)))
        case Reserve():
            reserve = pb.Reserve(
                spec=_encode_spec(message.spec), source=pb.KVSource(**asdict(message.source))
            )
            data = pb.RouterData(reserve=reserve)
        case Start():
            data = pb.RouterData(start=_encode_start(message))
        case Cancel():
            data = pb.RouterData(cancel=pb.Cancel(request_id=message.request_id, indices=message.indices))
        case Control():
            data = pb.RouterData(control=encode_control(message))
        case _:
            assert_never(message)
    spec = getattr(message, "spec", None)
    num_bytes = sum(len(one.data) + len(one.digests) for one in spec.prompt_embeds) if spec else 0
    check_size(data.ByteSize(), MAX_COMMAND_BYTES + num_bytes)
    return data


def decode_command(data: pb.RouterData) -> ToWorker:
    """Read a command.

    Raises:
        InvalidRequestError: a field is missing or out of range; the message names it.
    """
    match chosen(data, "message"):
        case "generate":
            return Generate(spec=_decode_spec(data.generate))
        case "prefill":
            return Prefill(spec=_decode_spec(data.prefill))
        case "reserve":
            return Reserve(spec=_decode_spec(data.reserve), source=_decode_source(data.reserve))
        case "start":
            return _decode_start(data.start)
        case "control":
            return decode_control(data.control)
        case _:
            return Cancel(
                request_id=checked_name("request_id", data.cancel.request_id),
                indices=tuple(checked_index("indices", index) for index in data.cancel.indices),
            )


def _encode_spec(spec: RequestSpec) -> pb.RequestSpec:
    return pb.RequestSpec(
        request_id=spec.request_id,
        prompt_token_ids=spec.prompt_token_ids,
        sampling=_encode_sampling(spec.params),
        cache_salt=spec.cache_salt,
        priority=spec.priority,
        bad_words=[pb.Tokens(ids=word) for word in spec.bad_words],
        thinking=_encode_thinking(spec.thinking),
        traceparent=spec.traceparent,
        resumed=[pb.OutputSoFar(index=one.index, token_ids=one.token_ids) for one in spec.resumed],
        tenant=spec.tenant,
        weights=spec.weights,
        pooling=encode_pooling(spec.pooling),
        adapter=_encode_adapter(spec.adapter),
        prompt_embeds=[pb.EmbeddingRows(**asdict(one)) for one in spec.prompt_embeds],
    )


def _encode_adapter(adapter: Adapter | None) -> pb.Adapter | None:
    if adapter is None:
        return None
    name = adapter.shown_name or adapter.name
    return pb.Adapter(name=name, digest=adapter.digest, path=adapter.path, number=adapter.number)


def _decode_adapter(adapter: pb.Adapter) -> Adapter:
    digest = checked_name("adapter.digest", adapter.digest)
    return Adapter(name=adapter.name, digest=digest, path=adapter.path, number=adapter.number)


def _decode_spec(message: pb.Generate | pb.Prefill | pb.Reserve) -> RequestSpec:
    require_set(message, "spec")
    spec = message.spec
    require_set(spec, "sampling")
    params = _decode_sampling(spec.sampling)
    return RequestSpec(
        request_id=checked_name("request_id", spec.request_id),
        prompt_token_ids=_checked_some("prompt_token_ids", spec.prompt_token_ids),
        params=params,
        cache_salt=spec.cache_salt,
        priority=spec.priority,
        bad_words=tuple(_checked_some("bad_words", word.ids) for word in spec.bad_words),
        thinking=_decode_thinking(spec.thinking) if spec.HasField("thinking") else None,
        traceparent=spec.traceparent,
        resumed=_decode_resumed(spec.resumed, params.n),
        tenant=spec.tenant,
        weights=spec.weights,
        pooling=decode_pooling(spec.pooling) if spec.HasField("pooling") else None,
        adapter=_decode_adapter(spec.adapter) if spec.HasField("adapter") else None,
        prompt_embeds=tuple(
            PromptEmbeds(
                start=one.start,
                hidden_size=one.hidden_size,
                dtype=one.dtype,
                data=one.data,
                digests=one.digests,
            )
            for one in spec.prompt_embeds
        ),
    )


def _decode_resumed(resumed: Iterable[pb.OutputSoFar], n: int) -> tuple[OutputSoFar, ...]:
    indices: list[int] = []
    outputs = []
    for one in resumed:
        if one.index >= n or one.index in indices:
            raise InvalidRequestError("resumed.index", one.index, f"each of 0 to {n - 1} once")
        indices.append(one.index)
        outputs.append(
            OutputSoFar(index=one.index, token_ids=_checked_some("resumed.token_ids", one.token_ids))
        )
    return tuple(outputs)


def _encode_thinking(thinking: ThinkingBudget | None) -> pb.Thinking | None:
    return None if thinking is None else pb.Thinking(**asdict(thinking))


def _decode_thinking(thinking: pb.Thinking) -> ThinkingBudget:
    return ThinkingBudget(
        num_tokens=thinking.num_tokens,
        start_token_ids=checked_token_ids("thinking.start_token_ids", thinking.start_token_ids),
        end_token_ids=_checked_some("thinking.end_token_ids", thinking.end_token_ids),
        may_end=thinking.may_end,
    )


def _checked_some(field: str, values: Iterable[int]) -> tuple[int, ...]:
    """Refuse none, too."""
    token_ids = checked_token_ids(field, values)
    if not token_ids:
        raise InvalidRequestError(field, [], "at least one token")
    return token_ids


def _encode_sampling(params: SamplingParams) -> pb.Sampling:
    """Write what workers need.

    Raises:
        InvalidRequestError: there is no seed, or a logits processor is no name.
    """
    if params.seed is None:
        raise InvalidRequestError("seed", None, "an integer once the request is accepted")
    sampling = pb.Sampling(
        **{name: _number(params, name) for name in (*_NUMBERS, *_OPTIONAL_NUMBERS)},
        **{name: getattr(params, name) for name in _ID_LISTS},
        logit_bias=params.logit_bias,
        logits_processors=_processor_names(params),
        extra_args_json="" if params.extra_args is None else json.dumps(params.extra_args),
        skips_prefix_cache=not params.reads_prefix_cache,
    )
    if params.structured_outputs is not None:
        sampling.structured_outputs.CopyFrom(pb.OutputGrammar(**asdict(params.structured_outputs)))
    if params.repetition_detection is not None:
        sampling.repetition_detection.CopyFrom(pb.RepetitionRule(**asdict(params.repetition_detection)))
    return sampling


def _decode_sampling(sampling: pb.Sampling) -> SamplingParams:
    """Read parameters; what is not sent has its default.

    Raises:
        InvalidRequestError: a value is out of range, or the seed stands for none.
    """
    given: dict[str, Any] = {name: getattr(sampling, name) for name in _NUMBERS}
    given |= {name: getattr(sampling, name) for name in _OPTIONAL_NUMBERS if sampling.HasField(name)}
    given |= {name: tuple(getattr(sampling, name)) for name in _ID_LISTS if getattr(sampling, name)}
    if sampling.HasField("structured_outputs"):
        given["structured_outputs"] = _decode_structured_outputs(sampling.structured_outputs)
    if sampling.HasField("repetition_detection"):
        given["repetition_detection"] = _decode_rule(sampling.repetition_detection)
    params = SamplingParams(
        **{"max_tokens": None, **given},
        logit_bias=dict(sampling.logit_bias),
        logits_processors=tuple(sampling.logits_processors),
        extra_args=_decode_extra_args(sampling.extra_args_json),
        skip_reading_prefix_cache=sampling.skips_prefix_cache,
    )
    if params.seed is None:
        raise InvalidRequestError("seed", sampling.seed, "an integer but -1 once the request is accepted")
    return params


def _number(params: SamplingParams, name: str) -> Any:
    """No vocabulary is larger than 31 bits: such a top_k, or number of log-probabilities, means all of it."""
    value = getattr(params, name)
    is_count = name in ("top_k", "logprobs", "prompt_logprobs") and value is not None
    return min(value, _MAX_INT32) if is_count else value


def _processor_names(params: SamplingParams) -> Iterable[str]:
    for processor in params.logits_processors:
        if not isinstance(processor, str):
            raise InvalidRequestError("logits_processors", processor, "names such as package.module:function")
        yield processor


def _decode_extra_args(text: str) -> Any:
    try:
        return json.loads(text) if text else None
    except (ValueError, RecursionError):
        raise InvalidRequestError("extra_args", text, "an object that JSON can hold") from None


def _decode_structured_outputs(message: pb.OutputGrammar) -> StructuredOutputsParams:
    return StructuredOutputsParams(
        json=message.json or None,
        regex=message.regex or None,
        choice=tuple(message.choice),
        grammar=message.grammar or None,
        json_object=message.json_object,
        structural_tag=message.structural_tag or None,
        disable_any_whitespace=message.disable_any_whitespace,
        backend=message.backend,
    )


def _decode_rule(rule: pb.RepetitionRule) -> RepetitionDetectionParams:
    return RepetitionDetectionParams(
        max_pattern_size=rule.max_pattern_size,
        min_pattern_size=rule.min_pattern_size,
        min_count=rule.min_count,
    )


def _decode_source(reserve: pb.Reserve) -> KVSource:
    require_set(reserve, "source")
    source = reserve.source
    return KVSource(
        worker_id=checked_name("source.worker_id", source.worker_id),
        epoch=checked_count("source.epoch", source.epoch),
        peer_address=source.peer_address,
        kv_description=source.kv_description,
    )


def _encode_start(start: Start) -> pb.Start:
    first_tokens = [
        pb.Start.SequenceToken(index=first.index, token_id=first.token_id) for first in start.first_tokens
    ]
    return pb.Start(request_id=start.request_id, first_tokens=first_tokens)


def _decode_start(start: pb.Start) -> Start:
    token_ids = checked_token_ids("token_id", (first.token_id for first in start.first_tokens))
    return Start(
        request_id=checked_name("request_id", start.request_id),
        first_tokens=tuple(
            FirstTokenOf(index=checked_index("index", first.index), token_id=token_id)
            for first, token_id in zip(start.first_tokens, token_ids, strict=True)
        ),
    )
