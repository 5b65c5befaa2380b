"""Sampling parameters as a worker needs them, as protobuf.

Text stays at the router: stop strings, bad words and how text is shown are not sent.
"""

from __future__ import annotations

import json
from collections.abc import Iterable
from dataclasses import asdict
from typing import Any, Final

from baton_core.errors import InvalidRequestError
from baton_core.requests.repetition import RepetitionDetectionParams
from baton_core.requests.sampling_params import SamplingParams
from baton_core.requests.structured_outputs import StructuredOutputsParams
from baton_proto.v1 import session_pb2 as pb

_NUMBERS: Final = (
    *("n", "presence_penalty", "frequency_penalty", "repetition_penalty", "temperature", "top_p", "top_k"),
    *("min_p", "seed", "ignore_eos", "min_tokens"),
)
_OPTIONAL_NUMBERS: Final = ("max_tokens", "logprobs", "prompt_logprobs")
_ID_LISTS: Final = ("stop_token_ids", "logprob_token_ids", "allowed_token_ids")
_MAX_INT32: Final = 2**31 - 1


def encode_sampling(params: SamplingParams) -> pb.Sampling:
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
        logits_processors=_names(params),
        extra_args_json="" if params.extra_args is None else json.dumps(params.extra_args),
        skips_prefix_cache=not params.reads_prefix_cache,
    )
    if params.structured_outputs is not None:
        sampling.structured_outputs.CopyFrom(pb.OutputGrammar(**asdict(params.structured_outputs)))
    if params.repetition_detection is not None:
        sampling.repetition_detection.CopyFrom(pb.RepetitionRule(**asdict(params.repetition_detection)))
    return sampling


def decode_sampling(sampling: pb.Sampling) -> SamplingParams:
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


def _names(params: SamplingParams) -> Iterable[str]:
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
