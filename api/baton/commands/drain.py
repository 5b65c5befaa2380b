"""`baton drain`: has a worker of this machine take no new requests, and waits until it has none.

It asks the worker itself, at its metrics port, so it needs no router: a container runs it before it ends.
"""

from __future__ import annotations

import argparse
import http.client
import json
import sys
import time
from typing import Final

from baton.commands.security_arguments import router_access
from baton_core.errors import ErrorCode, RequestError
from baton_service.port_probe import WORKER_HTTP
from baton_service.process import API_KEY_VARIABLE
from baton_service.router_access import RouterAccess
from baton_worker.core.controls import OpenWork
from baton_worker.probes import STARTING

_TIMEOUT_S: Final = 5.0
_ASK_EVERY_S: Final = 0.2


def drain(args: argparse.Namespace) -> int:
    """Drain the worker at `args.address`, and with `args.wait` wait so long until nothing is open.

    Raises:
        RequestError: no worker answers there, it refuses, or it is not empty in time.
    """
    access = router_access(args)
    deadline = time.monotonic() + (args.wait or 0.0)
    while (work := _ask(args.address, access, deadline)) and time.monotonic() < deadline:
        time.sleep(_ASK_EVERY_S)
    if work and args.wait:
        text = f"the worker drains, but has still open after {args.wait:g} s: {work}"
        raise RequestError(ErrorCode.DEADLINE_EXCEEDED, text)
    sys.stdout.write(f"the worker drains: {work} are open\n" if work else "the worker is drained\n")
    return 0


def _ask(address: str, access: RouterAccess, deadline: float) -> OpenWork:
    """Ask until the deadline while the worker is too busy to answer; a busy loop is no reason to kill it."""
    while True:
        try:
            return _ask_once(address, access)
        except _BusyError:
            if time.monotonic() >= deadline:
                raise
            time.sleep(_ASK_EVERY_S)


class _BusyError(RequestError):
    """The worker does not answer in time."""


def _ask_once(address: str, access: RouterAccess) -> OpenWork:
    connection = access.open_http(address, _TIMEOUT_S)
    try:
        connection.request("POST", "/drain", headers=dict(access.metadata))
        response = connection.getresponse()
        body = response.read()
    except TimeoutError:
        raise _BusyError(
            ErrorCode.UNAVAILABLE, f"the worker at {address} does not answer within {_TIMEOUT_S:g} s"
        ) from None
    except (OSError, http.client.HTTPException) as error:
        problem = access.port_problem(address, WORKER_HTTP)
        text = problem or f"where no worker answers over HTTP ({error})"
        raise RequestError(ErrorCode.UNAVAILABLE, f"address is {address!r}, {text}") from None
    finally:
        connection.close()
    if response.status in (http.HTTPStatus.NOT_FOUND, http.HTTPStatus.METHOD_NOT_ALLOWED):
        text = f"address is {address!r}, where no worker answers; allowed: {WORKER_HTTP.port}"
        raise RequestError(ErrorCode.UNAVAILABLE, text)
    if response.status == http.HTTPStatus.UNAUTHORIZED:
        how = f"--api-key or {API_KEY_VARIABLE}"
        raise RequestError(ErrorCode.INVALID_REQUEST, f"the worker at {address} wants a key, by {how}")
    if response.status != http.HTTPStatus.OK:
        reason = f"{response.status} {body.decode(errors='replace').strip()}"
        text = f"the worker at {address} does not drain: {reason}"
        is_busy = response.status == http.HTTPStatus.SERVICE_UNAVAILABLE and STARTING not in reason
        raise (_BusyError if is_busy else RequestError)(ErrorCode.UNAVAILABLE, text)
    return OpenWork(**json.loads(body))
