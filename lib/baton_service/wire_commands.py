"""What a router tells a worker, as protobuf.

Text stays at the router: stop strings and how text is shown are not sent.
"""

from __future__ import annotations

from typing import Final, assert_never

from baton_core.errors import InvalidRequestError
from baton_core.router_messages import (
    Cancel,
    FirstTokenOf,
    Generate,
    KVSource,
    Prefill,
    RequestSpec,
    Reserve,
    Start,
    ToWorker,
)
from baton_core.sampling_params import SamplingParams
from baton_proto.v1 import session_pb2 as pb
from baton_service.wire_checks import (
    checked_count,
    checked_index,
    checked_name,
    checked_token_ids,
    chosen,
    require_set,
    within_limit,
)

_MAX_TOP_K: Final = 2**31 - 1


def encode_command(message: ToWorker) -> pb.RouterData:
    """Write a command; the session gives it its number.

    Raises:
        InvalidRequestError: it is over 1 MiB, or its request has no seed.
    """
    match message:
        case Generate():
            data = pb.RouterData(generate=pb.Generate(spec=_encode_spec(message.spec)))
        case Prefill():
            data = pb.RouterData(prefill=pb.Prefill(spec=_encode_spec(message.spec)))
        case Reserve():
            reserve = pb.Reserve(spec=_encode_spec(message.spec), source=_encode_source(message.source))
            data = pb.RouterData(reserve=reserve)
        case Start():
            data = pb.RouterData(start=_encode_start(message))
        case Cancel():
            data = pb.RouterData(cancel=pb.Cancel(request_id=message.request_id, indices=message.indices))
        case _:
            assert_never(message)
    return within_limit(data)


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
    )


def _decode_spec(message: pb.Generate | pb.Prefill | pb.Reserve) -> RequestSpec:
    require_set(message, "spec")
    spec = message.spec
    require_set(spec, "sampling")
    prompt = checked_token_ids("prompt_token_ids", spec.prompt_token_ids)
    if not prompt:
        raise InvalidRequestError("prompt_token_ids", [], "at least one token")
    return RequestSpec(
        request_id=checked_name("request_id", spec.request_id),
        prompt_token_ids=prompt,
        params=_decode_sampling(spec.sampling),
        cache_salt=spec.cache_salt,
        priority=spec.priority,
    )


def _encode_sampling(params: SamplingParams) -> pb.Sampling:
    if params.seed is None:
        raise InvalidRequestError("seed", None, "an integer once the request is accepted")
    return pb.Sampling(
        n=params.n,
        temperature=params.temperature,
        top_p=params.top_p,
        top_k=min(params.top_k, _MAX_TOP_K),  # no vocabulary is larger
        min_p=params.min_p,
        seed=params.seed,
        stop_token_ids=params.stop_token_ids,
        ignore_eos=params.ignore_eos,
        max_tokens=params.max_tokens,
    )


def _decode_sampling(sampling: pb.Sampling) -> SamplingParams:
    params = SamplingParams(
        n=sampling.n,
        temperature=sampling.temperature,
        top_p=sampling.top_p,
        top_k=sampling.top_k,
        min_p=sampling.min_p,
        seed=sampling.seed,
        stop_token_ids=tuple(sampling.stop_token_ids),
        ignore_eos=sampling.ignore_eos,
        max_tokens=sampling.max_tokens if sampling.HasField("max_tokens") else None,
    )
    if params.seed is None:
        raise InvalidRequestError("seed", sampling.seed, "an integer but -1 once the request is accepted")
    return params


def _encode_source(source: KVSource) -> pb.KVSource:
    return pb.KVSource(
        worker_id=source.worker_id,
        epoch=source.epoch,
        peer_address=source.peer_address,
        kv_description=source.kv_description,
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
