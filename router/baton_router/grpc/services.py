"""The gRPC services of clients and of operators: protobuf to what serves them, and back.

One coroutine per call.
"""

from __future__ import annotations

import asyncio
import math
from collections.abc import AsyncIterator, Callable
from dataclasses import asdict, replace
from typing import Any, Final, TypeAlias, TypeVar

import grpc
import msgspec
from google.protobuf.message import Message

from baton_core.errors import InvalidRequestError
from baton_core.requests.pooling import encode_pooling_model
from baton_core.requests.request_context import RequestContext, Slo
from baton_core.sessions.control_messages import WORKER_ACTIONS, ControlAction
from baton_core.sessions.worker_info import EngineFigures, WorkerInfo, WorkerLoad
from baton_proto.v1 import baton_pb2 as pb
from baton_proto.v1 import baton_pb2_grpc
from baton_router.grpc.client_messages import encode_event, encode_pooled, read_request, read_tokenize_prompt
from baton_router.operations.operations import DEFAULT_TIMEOUT_S, checked_timeout
from baton_router.process.generation_service import GenerationService
from baton_router.requests.generation import Finished
from baton_router.requests.request_reader import PreparedRequest
from baton_router.requests.validation import (
    DATA_PARALLEL_KEY,
    TRACEPARENT,
    checked_session_id,
    read_data_parallel_rank,
    read_traceparent,
)
from baton_router.streams.client_stream import ClientStream
from baton_router.streams.memory import BodyReservation
from baton_service.keys import AUTHORIZATION, Keys

_Context: TypeAlias = grpc.aio.ServicerContext[Any, Any]


def read_context(
    request: pb.GenerateRequest, call: _Context, keys: Keys, data_parallel_size: int
) -> RequestContext:
    """Read the fields and metadata of a call that has been let in.

    Raises:
        InvalidRequestError: a value is too long, or out of range; the message names the field.
    """
    metadata = _metadata(call)
    return RequestContext(
        tenant=_tenant(call, keys),
        session_id=checked_session_id("session_id", request.session_id),
        data_parallel_rank=read_data_parallel_rank(metadata.get(DATA_PARALLEL_KEY), data_parallel_size),
        slo=Slo(ttft_s=_seconds(request, "slo_ttft_s"), tpot_s=_seconds(request, "slo_tpot_s")),
        traceparent=read_traceparent(metadata.get(TRACEPARENT, "")),
        arrived_s=asyncio.get_running_loop().time(),
    )


def _tenant(call: _Context, keys: Keys) -> str:
    """Return the tenant of a call that has been let in; empty without keys."""
    return keys.tenant(_metadata(call).get(AUTHORIZATION, "")) or ""


def _metadata(call: _Context) -> dict[str, str]:
    return {str(key): str(value) for key, value in call.invocation_metadata() or ()}


def _seconds(request: pb.GenerateRequest, field: str) -> float | None:
    if not request.HasField(field):
        return None
    value: float = getattr(request, field)
    if not (0 < value < math.inf):
        raise InvalidRequestError(field, value, "seconds, over 0")
    return value


MessageT = TypeVar("MessageT", bound=Message)
T = TypeVar("T")


class BatonService(baton_pb2_grpc.BatonServicer):
    """Serves one model; a client's deadline is its request's deadline."""

    def __init__(self, service: GenerationService, keys: Keys) -> None:
        self._service = service
        self._keys = keys

    async def Generate(  # noqa: N802 (name of the protocol)
        self, request: pb.GenerateRequest, context: _Context
    ) -> None:
        service = self._service
        its_context = read_context(request, context, self._keys, self._service.data_parallel_size)
        with service.bodies.body() as room:
            generation = replace(
                await self._read(room, its_context.tenant, read_request, request), context=its_context
            )
            prepared = await service.prepare(generation, context.time_remaining())
            del generation
        try:
            with service.reserve_memory((prepared,)):
                await self._answer(prepared, context)
        except grpc.aio.BaseError as error:
            # The client is gone, and gRPC is about to cancel this call; no status can be sent.
            raise asyncio.CancelledError from error

    async def _answer(self, prepared: PreparedRequest, context: _Context) -> None:
        async with self._service.run(prepared) as stream:
            if traceparent := stream.spec.traceparent:
                await context.send_initial_metadata(((TRACEPARENT, traceparent),))
            async for event in _events_of(stream):
                await context.write(event)

    async def _read(
        self, room: BodyReservation, tenant: str, read: Callable[[MessageT], T], request: MessageT
    ) -> T:
        """Read a request: a large one beside the loop, when its turn has come."""
        room.add(request.ByteSize())
        if not room.is_large:
            return read(request)
        await room.wait_to_decode(tenant)
        return await self._service.run_in_thread(tenant, read, request)

    async def Tokenize(  # noqa: N802 (name of the protocol)
        self, request: pb.TokenizeRequest, context: _Context
    ) -> pb.TokenizeResponse:
        adds_special = request.add_special_tokens if request.HasField("add_special_tokens") else None
        tenant = _tenant(context, self._keys)
        with self._service.bodies.body() as room:
            ids = await self._service.tokenize(
                await self._read(room, tenant, read_tokenize_prompt, request),
                tenant=tenant,
                model=request.model,
                add_special_tokens=adds_special,
                timeout_s=context.time_remaining(),
            )
        limit = self._service.max_model_len
        return pb.TokenizeResponse(token_ids=ids, count=len(ids), max_model_len=limit)

    async def Detokenize(  # noqa: N802 (name of the protocol)
        self, request: pb.DetokenizeRequest, context: _Context
    ) -> pb.DetokenizeResponse:
        text = await self._service.detokenize(
            request.token_ids,
            tenant=_tenant(context, self._keys),
            model=request.model,
            skip_special_tokens=request.skip_special_tokens,
            timeout_s=context.time_remaining(),
        )
        return pb.DetokenizeResponse(text=text, count=len(request.token_ids))

    async def GetModelInfo(  # noqa: N802 (name of the protocol)
        self, request: pb.GetModelInfoRequest, context: _Context
    ) -> pb.ModelInfo:
        service = self._service
        return pb.ModelInfo(
            model=service.model_names[0],
            model_names=service.model_names,
            max_model_len=service.max_model_len,
            vocab_size=service.model.vocab_size,
            has_chat_template=service.tokenizer.chat_template is not None,
            is_ready=service.is_ready,
            pooling=encode_pooling_model(service.router.fleet.pooling),
            workers=[describe_worker(info, load) for info, load in service.router.fleet.workers()],
        )


async def _events_of(stream: ClientStream) -> AsyncIterator[pb.GenerateEvent]:
    """Yield the events that are new to the client; the first one has the resume token."""
    is_first = True
    while (event := await stream.next_event()) is not None:
        if not isinstance(event, Finished) and event.is_received:
            continue
        if isinstance(event, Finished) and event.pooled is not None:
            for part in encode_pooled(event.pooled):
                yield part
        message = encode_event(event)
        if is_first:
            message.resume_token, is_first = stream.resume_token, False
        yield message


def describe_worker(info: WorkerInfo, load: WorkerLoad) -> pb.ModelInfo.Worker:
    """Return what clients learn of a worker."""
    names, facts = pb.ModelInfo.Worker.DESCRIPTOR.fields_by_name, (info, load, load.rates)
    known = {name: getattr(one, name) for one in reversed(facts) for name in names if hasattr(one, name)}
    figures = asdict(load.figures or EngineFigures())
    measured = {name: figures[name] for name in names if name in figures}
    return pb.ModelInfo.Worker(**(known | measured | {"role": load.role or info.role}))


_ACTIONS: Final = tuple(action for action in ControlAction if action not in WORKER_ACTIONS)


class OperatorService(baton_pb2_grpc.OperatorServicer):
    """Serves every caller that the server lets in."""

    def __init__(self, service: GenerationService) -> None:
        self._service = service

    async def Control(  # noqa: N802 (name of the protocol)
        self, request: pb.ControlRequest, context: _Context
    ) -> pb.ControlResponse:
        if request.action not in _ACTIONS:
            raise InvalidRequestError("action", request.action, ", ".join(_ACTIONS))
        if request.action == ControlAction.SERVE_ADAPTER:
            asked = _read_adapter(request.argument_json)
            with self._service.open_call():
                await self._service.adapter_loading.load(
                    asked.lora_name,
                    asked.lora_path,
                    replaces=True,
                    digest=asked.digest,
                    number=asked.lora_int_id,
                    shown_name=asked.shown_name,
                )
            return pb.ControlResponse()
        timeout_s = request.timeout_s if request.HasField("timeout_s") else DEFAULT_TIMEOUT_S
        with self._service.open_call():
            results = await self._service.router.operations.control(
                ControlAction(request.action),
                request.argument_json or "{}",
                checked_timeout("timeout_s", timeout_s),
                tuple(request.worker_ids),
            )
        return pb.ControlResponse(
            results=[
                pb.ControlResponse.WorkerResult(
                    worker_id=worker_id,
                    result_json=result.result_json,
                    error_code=result.code or "",
                    message=result.message,
                )
                for worker_id, result in results.items()
            ]
        )


class _ServeAdapter(msgspec.Struct, kw_only=True, forbid_unknown_fields=True):
    lora_name: str
    lora_path: str
    digest: str = ""
    lora_int_id: int = 0
    shown_name: str = ""


def _read_adapter(argument_json: str) -> _ServeAdapter:
    try:
        return msgspec.json.decode(argument_json, type=_ServeAdapter)
    except msgspec.DecodeError as error:
        allowed = "an object with lora_name, lora_path and perhaps digest, lora_int_id and shown_name"
        raise InvalidRequestError("argument", argument_json, f"{allowed} ({error})") from None
