"""The messages of Envoy's external processing protocol, as an endpoint picker reads and writes them.

Source: Gateway API inference extension, docs/proposals/004-endpoint-picker-protocol; Envoy 1.40,
envoy/service/ext_proc/v3/external_processor.proto.
"""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Mapping
from typing import Final

from baton_core.requests.request_context import NamedWorkers
from baton_proto.ext_proc import external_processor_pb2 as pb
from baton_router.http.calls import DECODE_HEADER, PREFILL_HEADER

DESTINATION: Final = "x-gateway-destination-endpoint"
"""Header, and key of the metadata beside it, with the addresses that the gateway tries in order."""
METADATA: Final = "envoy.lb"
SUBSET_METADATA: Final = "envoy.lb.subset_hint"
SUBSET: Final = "x-gateway-destination-endpoint-subset"
DUPLEX: Final = pb.FULL_DUPLEX_STREAMED
_OVERWRITE: Final = pb.HeaderValueOption.OVERWRITE_IF_EXISTS_OR_ADD
_CHUNK_BYTES: Final = 62 * 2**10
"""Body in one message: gateways take 64 KB."""


def read_headers(headers: pb.HttpHeaders) -> dict[str, str]:
    """Return headers by their names in lower case, pseudo-headers such as `:path` among them."""
    return {
        one.key.lower(): (one.raw_value or one.value.encode()).decode("latin-1")
        for one in headers.headers.headers
    }


def read_subset(message: pb.ProcessingRequest) -> list[str] | None:
    """Return the addresses to which the gateway limits the choice; None where it does not."""
    hint = message.metadata_context.filter_metadata.get(SUBSET_METADATA)
    if hint is None or SUBSET not in hint.fields:
        return None
    value = hint.fields[SUBSET]
    listed = [one.string_value for one in value.list_value.values]
    return listed or value.string_value.split(",")


def mutation(destinations: Iterable[str], named: NamedWorkers | None) -> pb.HeaderMutation:
    """Return the change of headers that sends a request to routers, and names its workers there."""
    values = {DESTINATION: ",".join(destinations)}
    if named is not None:
        values |= {PREFILL_HEADER: named.prefill, DECODE_HEADER: named.decode}
    return _headers(values, () if named else (PREFILL_HEADER, DECODE_HEADER))


def add_metadata(response: pb.ProcessingResponse, destinations: Iterable[str]) -> pb.ProcessingResponse:
    """Tell the gateway the destinations as metadata too; returns the response."""
    response.dynamic_metadata.update({METADATA: {DESTINATION: ",".join(destinations)}})
    return response


def body_chunks(body: bytes) -> Iterator[pb.ProcessingResponse]:
    """Yield the body of a request that was held back."""
    for start in range(0, len(body) or 1, _CHUNK_BYTES):
        chunk = body[start : start + _CHUNK_BYTES]
        piece = _streamed(chunk, is_last=start + _CHUNK_BYTES >= len(body))
        yield pb.ProcessingResponse(request_body=piece)


def pass_on(piece: pb.HttpBody, mode: pb.BodySendMode) -> pb.BodyResponse:
    """Return the response to a piece of a body that goes on unchanged."""
    return _streamed(piece.body, is_last=piece.end_of_stream) if mode == DUPLEX else pb.BodyResponse()


def _streamed(body: bytes, *, is_last: bool) -> pb.BodyResponse:
    piece = pb.StreamedBodyResponse(body=body, end_of_stream=is_last)
    common = pb.CommonResponse(body_mutation=pb.BodyMutation(streamed_response=piece))
    return pb.BodyResponse(response=common)


def immediate(status: int, headers: Mapping[str, str], body: bytes) -> pb.ProcessingResponse:
    """Return the reply that the gateway gives in the place of a router."""
    reply = pb.ImmediateResponse(status=pb.HttpStatus(code=status), headers=_headers(headers), body=body)
    return pb.ProcessingResponse(immediate_response=reply)


def _headers(values: Mapping[str, str], removed: Iterable[str] = ()) -> pb.HeaderMutation:
    options = [
        pb.HeaderValueOption(
            header=pb.HeaderValue(key=key, raw_value=value.encode()), append_action=_OVERWRITE
        )
        for key, value in values.items()
    ]
    return pb.HeaderMutation(set_headers=options, remove_headers=removed)
