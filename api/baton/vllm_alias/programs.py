"""The command line `vllm`: that of `baton`, with vLLM's defaults where scripts depend on them."""

from __future__ import annotations

from collections.abc import Mapping, Sequence, Set
from typing import Any, Final

from baton.cli import main as run
from baton.commands.cli_arguments import one_engine

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
    return run(argv, defaults=lambda given: defaults_of(argv, given))


def defaults_of(argv: Sequence[str], given: Set[str]) -> Mapping[str, Any]:
    """Return values that flags of the command have here where they are left out.

    `given` are fields that the command line or the configuration file sets.
    """
    match argv[:1]:
        case ["serve"]:
            return {**_SERVE_DEFAULTS, **one_engine(given)}
        case ["chat"] | ["complete"] if "address" not in given:
            return _CLIENT_DEFAULTS
    return {}
