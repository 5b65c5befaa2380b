"""The command line `vllm`: that of `baton`, with vLLM's defaults where scripts depend on them."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any, Final

from baton.cli import main as run
from baton.commands.cli_arguments import fields_in, one_engine

_SERVE_DEFAULTS: Final[dict[str, Any]] = {
    "host": "0.0.0.0",  # noqa: S104 (as vLLM)
    "grpc_host": "127.0.0.1",  # who reaches this port may register a worker
    "grpc_port": 0,
}
_CLIENT_DEFAULTS: Final[dict[str, Any]] = {"url": "http://localhost:8000/v1"}


def main(argv: Sequence[str]) -> int:
    """Run one command; returns its exit code.

    Unless flags say otherwise, `serve` has HTTP on all interfaces and one engine, and `chat` and `complete`
    ask it over HTTP.
    """
    return run(argv, defaults=defaults_of(argv))


def defaults_of(argv: Sequence[str]) -> dict[str, Any]:
    """Return values that flags of the command have here where they are left out."""
    match argv[:1]:
        case ["serve"]:
            return _SERVE_DEFAULTS | one_engine(argv)
        case ["chat"] | ["complete"] if "address" not in fields_in(argv):
            return _CLIENT_DEFAULTS
    return {}
