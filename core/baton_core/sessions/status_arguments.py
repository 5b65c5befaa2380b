"""Arguments of the controls that change what a worker is for, as router and worker both read them."""

from __future__ import annotations

from typing import TypeVar

import msgspec

from baton_core.errors import InvalidRequestError
from baton_core.sessions.worker_info import Role

ArgumentT = TypeVar("ArgumentT", bound=msgspec.Struct)


class SetRoleArgument(msgspec.Struct, frozen=True, kw_only=True, forbid_unknown_fields=True):
    """Arguments of `set_role`."""

    role: str
    is_fixed: bool = True
    """True if the router may not change it again by itself."""
    force: bool = False
    """Also when nobody would be left who prefills, or decodes."""


class DrainArgument(msgspec.Struct, frozen=True, kw_only=True, forbid_unknown_fields=True):
    """Arguments of `drain`."""

    force: bool = False
    """Also when nobody would be left who prefills, or decodes."""


class UndrainArgument(msgspec.Struct, frozen=True, kw_only=True, forbid_unknown_fields=True):
    """Arguments of `undrain`: no field."""


def read_argument(argument_json: str, kind: type[ArgumentT]) -> ArgumentT:
    """Read an argument.

    Raises:
        InvalidRequestError: it has other fields than `kind`, or other types.
    """
    try:
        return msgspec.json.decode(argument_json, type=kind)
    except msgspec.DecodeError as error:
        fields = ", ".join(kind.__struct_fields__) or "no field"
        raise InvalidRequestError("argument", argument_json, f"an object with {fields} ({error})") from None


def read_role(argument: SetRoleArgument) -> Role:
    """Return the role that is asked for.

    Raises:
        InvalidRequestError: there is no such role.
    """
    try:
        return Role(argument.role)
    except ValueError:
        raise InvalidRequestError("role", argument.role, ", ".join(Role)) from None
