"""The command line `vllm`: that of `baton`, with vLLM's defaults where scripts depend on them."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any, Final

from baton.cli import main as run

_SERVE_DEFAULTS: Final[dict[str, Any]] = {
    "host": "0.0.0.0",  # noqa: S104 (as vLLM)
    "grpc_host": "127.0.0.1",  # who reaches this port may register a worker
    "grpc_port": 0,
}
_CLIENT_DEFAULTS: Final[dict[str, Any]] = {"url": "http://localhost:8000/v1"}
_ONE_ENGINE: Final[dict[str, Any]] = {"mixed": 1, "prefill_workers": 0, "decode_workers": 0}


def main(argv: Sequence[str]) -> int:
    """Run one command; returns its exit code.

    Unless flags say otherwise, `serve` has HTTP on all interfaces and one engine, and `chat` and `complete`
    ask it over HTTP.
    """
    return run(argv, defaults=defaults_of(argv))


def defaults_of(argv: Sequence[str]) -> dict[str, Any]:
    """Return values that flags of the command have here where they are left out."""
    given = {word.partition("=")[0].removeprefix("--").replace("-", "_") for word in argv}
    match argv[:1]:
        case ["serve"]:
            return _SERVE_DEFAULTS if given & _ONE_ENGINE.keys() else _SERVE_DEFAULTS | _ONE_ENGINE
        case ["chat"] | ["complete"] if "address" not in given:
            return _CLIENT_DEFAULTS
    return {}
