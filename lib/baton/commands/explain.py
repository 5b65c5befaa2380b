"""`baton explain`: where a request's time went, why it ran where it did, and where its prompt came from."""

from __future__ import annotations

import argparse
import http.client
import shutil
import sys
from typing import Final
from urllib.parse import quote

import msgspec

from baton.commands.security_arguments import router_access
from baton.commands.waterfall import render
from baton_core.errors import ErrorCode, RequestError
from baton_router.http.debug_schemas import RequestDetails

_TIMEOUT_S: Final = 10.0
_DEFAULT_COLUMNS: Final = 110


def explain(args: argparse.Namespace) -> int:
    """Print what the router at `args.address` remembers of a request.

    Raises:
        RequestError: no router answers, or it does not tell.
    """
    body = _fetch(args)
    try:
        details = msgspec.json.decode(body, type=RequestDetails)
    except msgspec.DecodeError as error:
        text = f"address is {args.address!r}, which answers otherwise than a router of this version ({error})"
        raise RequestError(ErrorCode.INVALID_REQUEST, text) from None
    if args.json:
        sys.stdout.write(msgspec.json.format(body).decode() + "\n")
        return 0
    columns = shutil.get_terminal_size((_DEFAULT_COLUMNS, 24)).columns
    text = render(details, columns)
    encoding = sys.stdout.encoding or "ascii"
    sys.stdout.write(text.encode(encoding, errors="replace").decode(encoding))
    return 0


def _fetch(args: argparse.Namespace) -> bytes:
    address, access = args.address, router_access(args)
    connection = access.open_http(address, _TIMEOUT_S)
    path = f"/debug/requests/{quote(args.request_id, safe='')}"
    try:
        connection.request("GET", path, headers=dict(access.metadata))
        response = connection.getresponse()
        body = response.read()
    except (OSError, http.client.HTTPException) as error:
        text = f"address is {address!r}, where no router answers over HTTP ({error})"
        raise RequestError(ErrorCode.UNAVAILABLE, text) from None
    finally:
        connection.close()
    if response.status != http.HTTPStatus.OK:
        raise RequestError(ErrorCode.NOT_FOUND, _message(response.status, body))
    return body


def _message(status: int, body: bytes) -> str:
    """What a router's error says; its status where somebody else answers."""
    try:
        return str(msgspec.json.decode(body)["error"]["message"])
    except (msgspec.DecodeError, KeyError, TypeError):
        return f"the answer has status {status}"
