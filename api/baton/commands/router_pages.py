"""Fetches what a router tells over HTTP, for commands that show it."""

from __future__ import annotations

import argparse
import http.client
from typing import Final, TypeVar

import msgspec

from baton.commands.security_arguments import router_access
from baton_core.errors import ErrorCode, RequestError
from baton_service.port_probe import ROUTER_HTTP
from baton_service.process import API_KEY_VARIABLE

P = TypeVar("P")
_TIMEOUT_S: Final = 10.0


def fetch_page(args: argparse.Namespace, path: str, page: type[P]) -> tuple[P, bytes]:
    """Return what the router at `args.address` answers, read and as it is.

    Raises:
        RequestError: no router answers, or it refuses.
    """
    address, access = args.address, router_access(args)
    connection = access.open_http(address, _TIMEOUT_S)
    try:
        connection.request("GET", path, headers=dict(access.metadata))
        response = connection.getresponse()
        body = response.read()
    except (OSError, http.client.HTTPException) as error:
        problem = access.port_problem(address, ROUTER_HTTP)
        text = problem or f"where no router answers over HTTP ({error})"
        raise RequestError(ErrorCode.UNAVAILABLE, f"address is {address!r}, {text}") from None
    finally:
        connection.close()
    if response.status == http.HTTPStatus.UNAUTHORIZED:
        how = f"--api-key or {API_KEY_VARIABLE}"
        text = f"the router at {address} wants a key, by {how}: {_message(response.status, body)}"
        raise RequestError(ErrorCode.INVALID_REQUEST, text)
    if response.status != http.HTTPStatus.OK:
        raise RequestError(ErrorCode.NOT_FOUND, _message(response.status, body))
    try:
        return msgspec.json.decode(body, type=page), body
    except msgspec.DecodeError as error:
        text = f"address is {address!r}, which answers otherwise than a router of this version ({error})"
        raise RequestError(ErrorCode.INVALID_REQUEST, text) from None


def _message(status: int, body: bytes) -> str:
    """Return the message of a router's error, or the status if the answer is not a router's."""
    try:
        return str(msgspec.json.decode(body)["error"]["message"])
    except (msgspec.DecodeError, KeyError, TypeError):
        return f"the answer has status {status}"
