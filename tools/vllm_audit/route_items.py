"""Routes and settings of a server in vLLM's development mode, each asked as its clients ask."""

from __future__ import annotations

import json
import urllib.error
import urllib.request
from collections.abc import Iterator, Mapping
from contextlib import contextmanager
from functools import cache
from typing import Any, Final

from tools.vllm_audit.processes import MODEL_ID, Server, server, started
from tools.vllm_audit.subjects import PROMPT, expect
from tools.vllm_audit.verdict import Group, Probe

_KEY: Final = "audited"
_MOST_TOKENS: Final = 900
_GUARDED: Final = ("/v1/models", "/metrics", "/version", "/load")
_WITHIN_S: Final = 60.0


@cache
def _server() -> Server:
    overrides = json.dumps({"max_new_tokens": _MOST_TOKENS})
    flags = ("--api-key", _KEY, "--root-path", "/api", "--override-generation-config", overrides)
    force = "--enable-force-include-usage"
    return started("vllm", "serve", MODEL_ID, *flags, force, VLLM_SERVER_DEV_MODE="1")


def _opened(path: str, body: Mapping[str, Any] | None = None, *, posts: bool = False) -> Any:
    """The answer to a call with the key.

    Raises:
        ValueError: it is an error; the text is its message.
    """
    data = b"" if posts and body is None else None if body is None else json.dumps(body).encode()
    headers = {"Content-Type": "application/json", "Authorization": f"Bearer {_KEY}"}
    try:
        return urllib.request.urlopen(
            urllib.request.Request(f"{_server().url}{path}", data, headers), timeout=_WITHIN_S
        )
    except urllib.error.HTTPError as error:
        raise ValueError(json.loads(error.read())["error"]["message"]) from None


def _asked(path: str, body: Mapping[str, Any] | None = None, *, posts: bool = False) -> str:
    with _opened(path, body, posts=posts) as answer:
        return str(answer.read().decode())


def _posts(path: str, expected: Mapping[str, Any]) -> Probe:
    """A call is answered with these keys and values among others, or with nothing."""

    def probe() -> None:
        text = _asked(path, posts=True)
        told = json.loads(text) if text else {}
        expect(expected.items() <= told.items(), f"it answers {text or 'nothing'}")

    return probe


@contextmanager
def _open_request() -> Iterator[Any]:
    """A stream that has begun, and goes on for a while."""
    body = {"prompt": PROMPT, "max_tokens": _MOST_TOKENS, "ignore_eos": True, "stream": True, "n": 4}
    with _opened("/v1/completions", body) as stream:
        stream.readline()
        yield stream


def _is_capped() -> None:
    body = {"prompt": PROMPT, "max_tokens": _MOST_TOKENS + 9, "ignore_eos": True}
    usage = json.loads(_asked("/v1/completions", body))["usage"]
    expect(usage["completion_tokens"] == _MOST_TOKENS, f"{usage['completion_tokens']} tokens are generated")


def _has_usage() -> None:
    body = {"prompt": PROMPT, "max_tokens": 3, "stream": True}
    lines = [line[6:] for line in _asked("/v1/completions", body).splitlines() if line.startswith("data: {")]
    expect(lines and all("usage" in json.loads(line) for line in lines), "a chunk has no usage")


def _is_rooted() -> None:
    for path in ("/v1/models", "/api/v1/models"):
        expect(json.loads(_asked(path))["data"], f"{path} has no model")


def _is_open(path: str) -> bool:
    try:
        with urllib.request.urlopen(f"{_server().url}{path}", timeout=_WITHIN_S):
            return True
    except urllib.error.HTTPError:
        return False


def _guards() -> None:
    closed = [path for path in _GUARDED if not _is_open(path)]
    expect(closed[:1] == ["/v1/models"], "the key opens nothing")
    expect(len(closed) == 1, f"{', '.join(closed[1:])} need the key as well, /tokenize and /detokenize too")


def _sleeps() -> None:
    _posts("/sleep", {"status": "sleeping", "level": 1})()
    _posts("/wake_up", {"status": "awake", "tags": None})()
    with _open_request():
        try:
            _asked("/sleep", posts=True)
        except ValueError:
            expect(False, "429 while requests are open; vLLM ends them")
        finally:
            _asked("/wake_up", posts=True)


def _sleeps_by(mode: str) -> Probe:
    def probe() -> None:
        with _open_request():
            _posts(f"/sleep?level=1&mode={mode}", {"status": "sleeping"})()
            _posts("/wake_up", {"status": "awake"})()

    return probe


def _reloads() -> None:
    for path in ("/sleep?level=2&mode=abort", "/wake_up?tags=weights"):
        _asked(path, posts=True)
    try:
        _asked("/collective_rpc", {"method": "reload_weights"})
    finally:
        _asked("/wake_up", posts=True)
    expect(json.loads(_asked("/v1/completions", {"prompt": PROMPT}))["choices"][0]["text"], "no text")


def _pauses() -> None:
    with _open_request() as stream:
        try:
            _posts("/pause", {"status": "paused"})()
            text = stream.read().decode()
        finally:
            _asked("/resume", posts=True)
    ends = '"finish_reason":"abort"' in text.replace(" ", "")
    expect(ends, "running requests end with an error; vLLM ends them with what they have, as `abort`")


def _names_by_header() -> None:
    body = {"model": "audited", "prompt": PROMPT, "max_tokens": 1, "request_id": "body"}
    headers = {"Content-Type": "application/json", "X-Request-Id": "header"}
    request = urllib.request.Request(f"{server().url}/v1/completions", json.dumps(body).encode(), headers)
    with urllib.request.urlopen(request, timeout=_WITHIN_S) as answer:
        name = json.loads(answer.read())["id"]
    expect(name.startswith("cmpl-header"), "`request_id` of the body comes first; vLLM: the header")


def _counts_at_the_end_alone() -> None:
    body = {"model": "audited", "prompt": PROMPT, "max_tokens": 2, "stream": True}
    chunks = server().ask("/v1/completions", {**body, "stream_options": {"continuous_usage_stats": True}})
    is_told = any("usage" in chunk for chunk in chunks)
    expect(not is_told, "usage in each chunk without `include_usage` too; vLLM: in none")


ROUTES: Final = Group(
    "a server in development mode",
    {
        "serve --override-generation-config max_new_tokens": _is_capped,
        "serve --enable-force-include-usage": _has_usage,
        "serve --root-path": _is_rooted,
        "serve --api-key": _guards,
        "POST /sleep": _sleeps,
        "POST /sleep?mode=abort": _sleeps_by("abort"),
        "POST /sleep?mode=wait": _sleeps_by("wait"),
        "POST /wake_up?tags": _posts("/wake_up?tags=weights", {"status": "awake", "tags": ["weights"]}),
        "POST /collective_rpc reload_weights": _reloads,
        "POST /reset_prefix_cache": _posts("/reset_prefix_cache", {"success": True}),
        "POST /reset_prefix_cache?reset_external": _posts("/reset_prefix_cache?reset_external=true", {}),
        "POST /reset_prefix_cache?reset_running_requests": _posts(
            "/reset_prefix_cache?reset_running_requests=true", {"success": True}
        ),
        "POST /reset_mm_cache": _posts("/reset_mm_cache", {}),
        "POST /reset_encoder_cache": _posts("/reset_encoder_cache", {}),
        "POST /pause": _pauses,
        "X-Request-Id beside request_id": _names_by_header,
        "continuous_usage_stats alone": _counts_at_the_end_alone,
    },
    starts_processes=True,
)
