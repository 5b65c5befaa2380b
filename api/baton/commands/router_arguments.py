"""Flags of a router: where it listens, whom it serves, and how it speaks for its model."""

from __future__ import annotations

from typing import Final

from baton.commands.security_arguments import KEY
from baton.config.engine_arg_fields import Part, flags_of
from baton.config.engine_args import EngineArgs
from baton.config.flags import BYTES, IMPORTABLE, NATURAL, OVER_0, POSITIVE, Flag, Pattern, Range

RESUME_SECRET_VARIABLE: Final = "BATON_RESUME_SECRET"  # noqa: S105 (its name)
_POLICIES: Final = ("cost", "round-robin", "least-loaded", "power-of-two", "consistent-hash", "prefix")
_ROOT_PATH: Final = Pattern(r"(/[^\s/?#]+)+", "a path such as /baton, without a slash at its end")
_SOCKET: Final = Pattern(r"[^\x00-\x1f\x7f]{1,107}", "a path of at most 107 characters", "PATH")
_ROLE: Final = Pattern(r"[\w.-]{1,64}", "1 to 64 letters, digits, dots, dashes and underscores", "ROLE")

LISTEN_FLAGS: Final = (
    Flag("--host", str, "127.0.0.1", "address to listen on"),
    Flag("--port", int, 8000, "port of HTTP; 0 takes any", Range(0, 65_535)),
    Flag(
        "--uds",
        str,
        None,
        "Unix socket of HTTP in the place of --host and --port, which gRPC alone then uses; default: none",
        _SOCKET,
    ),
    Flag(
        "--router-processes",
        int,
        1,
        "processes of the router that serve the same ports; workers reach each at a port above --grpc-port",
        Range(1, 64),
    ),
    Flag("--grpc-host", str, "", "address to listen on for gRPC clients and workers; default: --host"),
    Flag("--grpc-port", int, 8100, "port for gRPC clients and workers; 0 takes any", Range(0, 65_535)),
    Flag(
        "--picker-port",
        int,
        None,
        "port of the endpoint picker for gateways, on --grpc-host; 0 takes any; default: none",
        Range(0, 65_535),
    ),
    Flag(
        "--advertise-host",
        str,
        "",
        "host at which workers that find this router in Redis reach it; default: --host, or for 0.0.0.0 "
        "that of the interface that leads to Redis",
    ),
    Flag("--root-path", str, None, "prefix of paths, which a proxy in front may remove", _ROOT_PATH),
)
ROUTING_FLAGS: Final = (
    Flag("--routing-policy", str, "cost", "policy by which workers are chosen", _POLICIES),
    Flag("--split", str, "auto", "when to use a prefill worker", ("auto", "always", "never")),
    Flag("--min-split-tokens", int, 32, "uncached prompt tokens from which auto splits", POSITIVE),
    Flag("--adaptive-roles", bool, False, "change roles of workers where prefill or decode is short of them"),
    Flag("--check-transfers", bool, True, "try each pair of workers when both are there"),
    Flag("--request-timeout", float, 600.0, "seconds a request may take", OVER_0),
    Flag(
        "--move-timeout",
        float,
        15.0,
        "seconds that a request whose worker is lost waits for another one while there is none",
        Range(0, 10**9),
    ),
    Flag(
        "--resume-secret",
        str,
        None,
        "what all routers of a fleet sign resume tokens with; default: "
        f"{RESUME_SECRET_VARIABLE} of the environment, else nothing secret",
        KEY,
        metavar="SECRET",
    ),
)
RECORD_FLAGS: Final = (
    Flag(
        "--trace-sample-ratio",
        float,
        1.0,
        "share of the requests that are traced, where their clients do not say it themselves",
        Range(0, 1),
    ),
    Flag(
        "--enable-log-requests",
        bool,
        False,
        "log each request: its id, tokens and sampling parameters; with --log-level debug its prompt too",
    ),
    Flag(
        "--max-log-len",
        int,
        None,
        "most characters of a prompt, or token ids, that such a line has; default: all",
        NATURAL,
    ),
)
"""Flags of what is logged and traced of requests."""
ANSWER_FLAGS: Final = (
    *flags_of(EngineArgs, Part.ROUTER),
    Flag(
        "--seed",
        int,
        None,
        "seed from which requests without one get theirs, in the order of their arrival; default: none",
        Range(-(2**63), 2**63 - 1),
    ),
    Flag(
        "--lora-modules",
        str,
        (),
        "LoRA adapters that are served from the start: name=path, or JSON with name and path",
        is_list=True,
        nargs="+",
        metavar="NAME=PATH",
    ),
    Flag("--chat-template", str, "", "a Jinja file, or Jinja, instead of the model's own chat template"),
    Flag("--trust-request-chat-template", bool, False, "let requests bring chat templates of their own"),
    Flag(
        "--chat-template-content-format",
        str,
        "auto",
        "contents that chat templates get: string, openai (lists of parts), or what the template takes",
        ("auto", "string", "openai"),
    ),
    Flag(
        "--default-chat-template-kwargs",
        dict,
        None,
        "JSON with variables of chat templates; those of a request come first",
    ),
    Flag("--response-role", str, "assistant", "role of answers to chats", _ROLE),
    Flag("--enable-auto-tool-choice", bool, False, "let the model decide to call tools"),
    Flag("--tool-call-parser", str, "", "format of the model's tool calls, such as hermes"),
    Flag("--tool-parser-plugin", str, "", "a Python file that registers further parsers"),
    Flag(
        "--exclude-tools-when-tool-choice-none",
        bool,
        False,
        "leave tools out of the prompts of requests that may call none",
    ),
    Flag(
        "--return-tokens-as-token-ids",
        bool,
        False,
        "write tokens of log-probabilities as token_id:N, where requests do not say it themselves",
    ),
    Flag("--enable-force-include-usage", bool, False, "have the usage so far in every chunk of a stream"),
    Flag(
        "--sse-keep-alive-interval",
        float,
        45.0,
        "seconds of silence after which a stream over HTTP has a comment; 0: none",
        Range(0, 10**6),
    ),
)


def _cross_origin(name: str, default: tuple[str, ...], text: str, metavar: str) -> Flag:
    text = f"{text}; repeatable, or a JSON list"
    return Flag(name, str, default, text, is_list=True, takes_json=True, metavar=metavar)


HTTP_FLAGS: Final = (
    Flag("--shared-prefix-cache", bool, False, "let keys use each other's cached prefixes"),
    Flag("--max-body-bytes", int, 4 * 2**20, "largest HTTP request", POSITIVE, suffixes=BYTES),
    Flag("--strict-fields", bool, False, "refuse HTTP requests with unknown fields, which are ignored else"),
    Flag(
        "--max-answer-bytes",
        int,
        256 * 2**20,
        "memory that the log-probabilities of one answer may take",
        Range(1, 2**53),
        suffixes=BYTES,
    ),
    Flag("--max-n-sequences", int, 64, "sequences that one request may ask for (n)", Range(1, 16_384)),
    Flag("--enable-operator-routes", bool, False, "serve the routes that change the workers' state"),
    Flag(
        "--enable-lora-updates",
        bool,
        False,
        "serve the routes that load and unload LoRA adapters without the other operator routes",
    ),
    Flag("--enable-tokenizer-info-endpoint", bool, False, "serve /tokenizer_info, chat template included"),
    _cross_origin(
        "--allowed-origins",
        (),
        "origins whose pages may call from a browser; * is all, the default with --api-key",
        "ORIGIN",
    ),
    Flag("--allow-credentials", bool, False, "let pages of --allowed-origins send cookies"),
    _cross_origin("--allowed-methods", ("*",), "methods they may use; * is all", "METHOD"),
    _cross_origin("--allowed-headers", ("*",), "headers they may send; * is all", "HEADER"),
    Flag(
        "--middleware",
        str,
        (),
        "ASGI middleware around all routes: a class, or a coroutine function of a request and the next "
        "handler, as package.module.Name; repeatable",
        IMPORTABLE,
        is_list=True,
    ),
    Flag("--disable-fastapi-docs", bool, False, "serve neither /docs nor /openapi.json"),
)
