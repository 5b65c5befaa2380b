"""Requests as clients of a router send them."""

from __future__ import annotations

import json
from dataclasses import asdict
from typing import Final

from baton_core.requests.adapter import Adapter
from baton_core.requests.sampling_params import SamplingParams
from baton_core.requests.structured_outputs import StructuredOutputsParams
from baton_core.sessions.router_messages import RequestSpec
from baton_proto.v1 import baton_pb2 as pb
from baton_router.requests.validation import TRACEPARENT
from baton_service.router_access import Metadata
from baton_worker.controls.dotted_names import require_name

PLAIN_FIELDS: Final = (
    *("n", "presence_penalty", "frequency_penalty", "repetition_penalty", "temperature", "top_p", "top_k"),
    *("min_p", "seed", "stop", "stop_token_ids", "ignore_eos", "max_tokens", "min_tokens", "logprobs"),
    *("prompt_logprobs", "logprob_token_ids", "detokenize", "skip_special_tokens", "logit_bias"),
    *("spaces_between_special_tokens", "include_stop_str_in_output", "allowed_token_ids", "bad_words"),
    *("thinking_token_budget", "skip_reading_prefix_cache", "stream_interval"),
)
"""Written as they are; protobuf leaves out those that are None."""
ENCODED_FIELDS: Final = ("structured_outputs", "repetition_detection", "logits_processors", "extra_args")
LOCAL_FIELDS: Final = ("flat_logprobs", "output_kind")
"""Fields about how outputs are shown, which stay in this process."""


def encode_request(spec: RequestSpec, max_model_len: int) -> pb.GenerateRequest:
    """Write a request that is checked; where it sets no `max_tokens`, as many as `max_model_len` leaves.

    An adapter is asked for by its served name, as `AdapterServing` names it.

    Raises:
        InvalidRequestError: a logits processor is a function of this process.
    """
    params = encode_params(spec.params)
    if spec.pooling is not None:
        params = pb.SamplingParams()
    elif spec.params.max_tokens is None:
        params.max_tokens = max_model_len - len(spec.prompt_token_ids)
    return pb.GenerateRequest(
        request_id=spec.request_id,
        token_ids=pb.TokenIds(ids=spec.prompt_token_ids),
        sampling_params=params,
        model="" if spec.adapter is None else served_name(spec.adapter),
        cache_salt=spec.cache_salt,
        priority=spec.priority,
        pooling=None if spec.pooling is None else pb.PoolingParams(**asdict(spec.pooling)),
        prompt_embeds=[
            pb.PromptEmbeds(start=one.start, hidden_size=one.hidden_size, dtype=one.dtype, data=one.data)
            for one in spec.prompt_embeds
        ],
    )


def served_name(adapter: Adapter) -> str:
    """Return the name of an adapter at the router: its id, by which it is pinned, and its digest."""
    return f"{adapter.number}:{adapter.digest}"


def encode_metadata(spec: RequestSpec) -> Metadata:
    """Write what a call says beside its request: the trace that it is a part of."""
    return ((TRACEPARENT, spec.traceparent),) if spec.traceparent else ()


def encode_params(params: SamplingParams) -> pb.SamplingParams:
    """Write every field that the router has to know; it takes its own default for one that is None.

    Raises:
        InvalidRequestError: a logits processor is a function of this process.
    """
    message = pb.SamplingParams(
        **{name: getattr(params, name) for name in PLAIN_FIELDS},
        logits_processors=[require_name("logits_processors", one) for one in params.logits_processors],
    )
    if params.structured_outputs is not None:
        message.structured_outputs.CopyFrom(_encode_structured_outputs(params.structured_outputs))
    if params.repetition_detection is not None:
        message.repetition_detection.CopyFrom(pb.RepetitionDetection(**asdict(params.repetition_detection)))
    if params.extra_args is not None:
        message.extra_args_json = json.dumps(params.extra_args)
    return message


def _encode_structured_outputs(given: StructuredOutputsParams) -> pb.StructuredOutputs:
    message = pb.StructuredOutputs(disable_any_whitespace=given.disable_any_whitespace)
    if given.kind == "choice":
        message.choice.choices.extend(given.choice)
    else:
        setattr(message, given.kind, getattr(given, given.kind))
    return message
