"""An operator's controls of a worker and their results, as protobuf."""

from __future__ import annotations

from baton_core.errors import ErrorCode, InvalidRequestError
from baton_core.sessions.control_messages import MAX_JSON_BYTES, Control, ControlAction, ControlResult
from baton_core.sessions.worker_info import Role
from baton_proto.v1 import session_pb2 as pb
from baton_service.wire.wire_checks import checked_code, checked_count, checked_number


def encode_control(control: Control) -> pb.Control:
    return pb.Control(
        control_id=control.control_id,
        action=control.action,
        argument_json=checked_json("argument", control.argument_json),
        timeout_s=control.timeout_s,
    )


def decode_control(control: pb.Control) -> Control:
    """Read a control; its argument is read where it is used."""
    return Control(
        control_id=checked_count("control_id", control.control_id),
        action=checked_code("action", control.action, ControlAction),
        argument_json=checked_json("argument", control.argument_json),
        timeout_s=checked_number("timeout_s", control.timeout_s),
    )


def encode_control_result(result: ControlResult) -> pb.ControlResult:
    return pb.ControlResult(
        control_id=result.control_id,
        code=result.code or "",
        message=result.message,
        result_json=checked_json("result", result.result_json),
        is_asleep=result.is_asleep,
        is_paused=result.is_paused,
        role=result.role or "",
        is_role_fixed=result.is_role_fixed,
        is_draining=result.is_draining,
        weights=result.weights,
    )


def decode_control_result(result: pb.ControlResult) -> ControlResult:
    return ControlResult(
        control_id=checked_count("control_id", result.control_id),
        code=checked_code("code", result.code, ErrorCode) if result.code else None,
        message=result.message,
        result_json=checked_json("result", result.result_json),
        is_paused=result.is_paused,
        is_asleep=result.is_asleep,
        role=checked_code("role", result.role, Role) if result.role else None,
        is_role_fixed=result.is_role_fixed,
        is_draining=result.is_draining,
        weights=result.weights,
    )


def checked_json(field: str, text: str) -> str:
    """Refuse what is too long.

    Raises:
        InvalidRequestError: names the field.
    """
    num_bytes = len(text.encode())
    if num_bytes > MAX_JSON_BYTES:
        raise InvalidRequestError(field, f"{num_bytes} bytes of JSON", f"at most {MAX_JSON_BYTES}")
    return text
