"""The gRPC service for operators, where it is enabled: protobuf to the workers and back."""

from __future__ import annotations

from typing import Any, Final, TypeAlias

import grpc
import msgspec

from baton_core.errors import InvalidRequestError
from baton_core.sessions.control_messages import WORKER_ACTIONS, ControlAction
from baton_proto.v1 import baton_pb2 as pb
from baton_proto.v1 import baton_pb2_grpc
from baton_router.operations.operations import DEFAULT_TIMEOUT_S, checked_timeout
from baton_router.process.generation_service import GenerationService

_Context: TypeAlias = grpc.aio.ServicerContext[Any, Any]
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
                    asked.lora_name, asked.lora_path, replaces=True, digest=asked.digest
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


def _read_adapter(argument_json: str) -> _ServeAdapter:
    try:
        return msgspec.json.decode(argument_json, type=_ServeAdapter)
    except msgspec.DecodeError as error:
        allowed = f"an object with lora_name, lora_path and perhaps digest ({error})"
        raise InvalidRequestError("argument", argument_json, allowed) from None
