"""The commands of `baton`, and their flags in groups.

One table per concern, so that `serve` can hand them on to its children, and help can show them one by one.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, replace
from typing import Any, Final

from baton.commands.batch_arguments import BATCH_FLAGS
from baton.commands.client_arguments import (
    AUTOSCALE_FLAGS,
    CHAT_FLAGS,
    CLIENT_FLAGS,
    COMPLETE_FLAGS,
    DRAIN_FLAGS,
    EXPLAIN_FLAGS,
    KV_EVENTS_FLAGS,
    SAMPLING_FLAGS,
)
from baton.commands.limit_arguments import (
    ADMISSION_FLAGS,
    BATCH_LIMIT_FLAGS,
    CONNECTION_FLAGS,
    STORE_FLAGS,
)
from baton.commands.router_arguments import (
    ANSWER_FLAGS,
    HTTP_FLAGS,
    LISTEN_FLAGS,
    RECORD_FLAGS,
    ROUTING_FLAGS,
)
from baton.commands.security_arguments import (
    ROUTER_SECURITY_FLAGS,
    SERVE_SECURITY_FLAGS,
    WORKER_SECURITY_FLAGS,
)
from baton.commands.simulate_arguments import CAPACITY_FLAGS, SIMULATION_FLAGS
from baton.config.engine_arg_fields import Part, flags_of
from baton.config.engine_args import EngineArgs
from baton.config.flags import ADDRESS, MODEL, NAME, Flag, Range
from baton_core.sessions.session import DEFAULT_TIMINGS


@dataclass(frozen=True, slots=True)
class FlagGroup:
    """Flags that belong together, under the name by which help shows them."""

    name: str
    help: str
    flags: tuple[Flag, ...]


@dataclass(frozen=True, slots=True)
class Command:
    """One command and its flags."""

    name: str
    help: str
    groups: tuple[FlagGroup, ...] = ()

    @property
    def flags(self) -> tuple[Flag, ...]:
        """All of its flags."""
        return tuple(flag for group in self.groups for flag in group.flags)

    @property
    def description(self) -> str:
        """Its help as a sentence."""
        return f"{self.help[:1].upper()}{self.help[1:]}."

    def with_defaults(self, defaults: Mapping[str, Any]) -> Command:
        """Return it with these defaults, by the flags' fields."""

        def changed(flag: Flag) -> Flag:
            return replace(flag, default=defaults.get(flag.field, flag.default))

        groups = (replace(group, flags=tuple(map(changed, group.flags))) for group in self.groups)
        return replace(self, groups=tuple(groups))


MODEL_FLAGS: Final = (
    Flag(
        "model",
        str,
        None,
        "a folder or a Hugging Face id; default: the bundled model",
        MODEL,
        metavar="MODEL",
        nargs="?",
    ),
)
ENGINE_FLAGS: Final = flags_of(EngineArgs, Part.WORKER)
SHARED_FLAGS: Final = flags_of(EngineArgs, Part.BOTH)
"""Flags of routers and workers alike."""
REDIS_FLAGS: Final = (
    Flag(
        "--redis",
        str,
        "",
        "Redis through which routers and workers find each other and routers share what they know, "
        "redis://host:port or rediss://user:password@host:port for TLS; default: none",
        metavar="URL",
    ),
    Flag("--redis-namespace", str, "baton", "name of the cluster in Redis", metavar="NAME"),
)
FLEET_FLAGS: Final = (
    *REDIS_FLAGS,
    Flag(
        "--session-timeout",
        float,
        DEFAULT_TIMINGS.dead_after_s,
        "seconds of silence after which a router and a worker give each other up; longer where processes "
        "wait long for a core",
        Range(1, 600),
    ),
)
"""Flags by which routers and workers find each other."""
LOG_FLAGS: Final = (
    Flag("--log-format", str, "text", "text or json", ("text", "json")),
    Flag("--log-level", str, "info", "debug, info, warning or error", ("debug", "info", "warning", "error")),
)
WORKER_PROCESS_FLAGS: Final = (
    Flag(
        "--niceness",
        int,
        5,
        "niceness of the workers: with 1 or more a router on the same machine goes before them",
        Range(0, 19),
    ),
)
LAUNCHER_FLAGS: Final = flags_of(EngineArgs, Part.LAUNCHER)
LAUNCH_FLAGS: Final = (
    Flag("--prefill-workers", int, 1, "prefill workers", Range(0, 1024), metavar="N"),
    Flag("--decode-workers", int, 1, "decode workers", Range(0, 1024), metavar="N"),
    Flag("--mixed", int, 0, "workers that do both", Range(0, 1024), metavar="N"),
    Flag("--headless", bool, False, "start the ranks of this machine alone, as any --node-rank over 0 does"),
    Flag(
        "--metrics-port",
        int,
        None,
        "port of the first worker's /metrics and /health, the next worker's is the next one; 0 takes any; "
        "default: none, and the router tells of the workers",
        Range(0, 64_511),
    ),
    Flag(
        "--cpu-bind",
        str,
        "auto",
        "cores of the workers: auto, none, or a list for each, prefill workers first, such as '0-3|4-7'; "
        "auto gives each its own where there are 4 for each, else all share all",
    ),
    Flag(
        "--gpu-bind",
        str,
        "auto",
        "GPUs of the workers: auto, none, or a list for each, prefill workers first, such as '0,1|2,3'; auto "
        "gives each as many as it has ranks, in turn, of those that CUDA_VISIBLE_DEVICES names; with none "
        "all take the first",
    ),
    *WORKER_PROCESS_FLAGS,
    Flag("--exit-with-stdin", bool, False, "end when standard input ends"),
)
WORKER_FLAGS: Final = (
    Flag(
        "--router",
        str,
        (),
        "router to serve; repeatable; with --redis those that are registered there are found",
        ADDRESS,
        is_list=True,
    ),
    Flag("--worker-id", str, None, "name of the worker; default: role and a random part", NAME),
    Flag("--peer-address", str, "tcp://127.0.0.1:0", "address to listen at for other workers"),
    Flag(
        "--kv-port",
        int,
        0,
        "port at which other workers read KV blocks over TCP, on the host of --peer-address; 0 takes any",
        Range(0, 65_535),
    ),
    Flag(
        "--advertise-host",
        str,
        "",
        "host at which other workers reach this one; default: that of --peer-address, or for 0.0.0.0 that of "
        "the interface that leads to the router",
    ),
    Flag(
        "--metrics-port",
        int,
        None,
        "port of /metrics and of probes, on the host of --peer-address; 0 takes any; default: none, and the "
        "router tells of this worker",
        Range(0, 65_535),
    ),
    Flag(
        "--health-port",
        int,
        None,
        "port of gRPC's health service, in plain text, on that host; 0 takes any; default: none",
        Range(0, 65_535),
    ),
    Flag("--num-workers", int, 1, "workers that share this machine's memory", Range(1, 1024)),
    Flag(
        "--num-threads",
        int,
        0,
        "threads of a step; 0 is one for each core of --cpu-bind, else torch's choice in the cgroup's limit",
        Range(0, 1024),
    ),
    Flag("--cpu-bind", str, "none", "cores to compute on, such as 0-3,8; none leaves it to the system"),
    Flag("--gpu-bind", str, "none", "GPUs to compute on, such as 0,1; none leaves it to the system"),
    Flag(
        "--gpu-workers",
        int,
        None,
        "workers that share these GPUs' memory; default: --num-workers",
        Range(1, 1024),
    ),
    *WORKER_PROCESS_FLAGS,
)


_MODEL: Final = FlagGroup("model", "the model that is served", MODEL_FLAGS)
_ENGINE: Final = FlagGroup("engine", "how a worker computes, and its memory", ENGINE_FLAGS)
_SHARED: Final = FlagGroup(
    "shared", "names, tokenizer, grammars and traces, at routers and workers", SHARED_FLAGS
)
_FLEET: Final = FlagGroup("fleet", "how routers and workers find each other", FLEET_FLAGS)
_LOG: Final = FlagGroup("log", "lines on standard error", LOG_FLAGS)
ROUTER_GROUPS: Final = (
    FlagGroup("listen", "addresses, and limits of connections", (*LISTEN_FLAGS, *CONNECTION_FLAGS)),
    FlagGroup("http", "what HTTP clients may do", (*HTTP_FLAGS, *STORE_FLAGS)),
    FlagGroup("batches", "files and batches", BATCH_LIMIT_FLAGS),
    FlagGroup("answers", "sampling defaults, chat templates, tools and reasoning", ANSWER_FLAGS),
    FlagGroup("routing", "how workers are chosen", ROUTING_FLAGS),
    FlagGroup("admission", "which requests are taken, and how long they wait", ADMISSION_FLAGS),
    FlagGroup("requests", "what is logged and traced of requests", RECORD_FLAGS),
    FlagGroup("security", "keys and TLS", ROUTER_SECURITY_FLAGS),
    _SHARED,
    _FLEET,
)
_WORKER_GROUPS: Final = (
    _MODEL,
    FlagGroup("worker", "this worker's routers, addresses and cores", WORKER_FLAGS),
    _ENGINE,
    FlagGroup("security", "keys and TLS", WORKER_SECURITY_FLAGS),
    _SHARED,
    _FLEET,
    _LOG,
)
_CLIENT: Final = (
    FlagGroup("router", "the router that is asked", CLIENT_FLAGS),
    FlagGroup("sampling", "sampling parameters", SAMPLING_FLAGS),
    _LOG,
)
COMMANDS: Final = (
    Command(
        "serve",
        "start router and workers on this machine",
        (
            _MODEL,
            FlagGroup("load", "where the model comes from", LAUNCHER_FLAGS),
            FlagGroup(
                "workers", "processes, and cores that they have", (*LAUNCH_FLAGS, *SERVE_SECURITY_FLAGS)
            ),
            _ENGINE,
            *ROUTER_GROUPS,
            _LOG,
        ),
    ),
    Command("router", "start a router", (_MODEL, *ROUTER_GROUPS, _LOG)),
    Command("prefill-worker", "start a prefill worker", _WORKER_GROUPS),
    Command("decode-worker", "start a decode worker", _WORKER_GROUPS),
    Command("mixed-worker", "start a mixed worker", _WORKER_GROUPS),
    Command(
        "complete",
        "complete a prompt at a running router",
        (FlagGroup("complete", "the answers", COMPLETE_FLAGS), *_CLIENT),
    ),
    Command(
        "chat",
        "talk with the model at a running router",
        (FlagGroup("chat", "the conversation", CHAT_FLAGS), *_CLIENT),
    ),
    Command(
        "run-batch",
        "answer a file of requests",
        (
            FlagGroup(
                "batch",
                "the files, and the server; without --url one is started, with all flags of baton serve",
                BATCH_FLAGS,
            ),
            FlagGroup(_LOG.name, _LOG.help, (*LOG_FLAGS[:-1], replace(LOG_FLAGS[-1], default="warning"))),
        ),
    ),
    Command("admin", "see workers and change what they do, at a running router"),
    Command(
        "autoscale",
        "show how many workers each role should have, and why, at a running router",
        (FlagGroup("router", "the router that is asked", AUTOSCALE_FLAGS), _LOG),
    ),
    Command(
        "drain",
        "have a worker of this machine take no new requests, and wait until it is empty",
        (FlagGroup("drain", "the worker", DRAIN_FLAGS), _LOG),
    ),
    Command(
        "kv-events",
        "print what a worker publishes of its cache",
        (FlagGroup("events", "the events", KV_EVENTS_FLAGS), _LOG),
    ),
    Command(
        "explain",
        "show what became of a request at a running router",
        (FlagGroup("router", "the router that is asked", EXPLAIN_FLAGS), _LOG),
    ),
    Command(
        "simulate",
        "run simulated clusters: how much a fleet serves of a trace, or what holds under faults",
        (
            FlagGroup("faults", "what holds under faults", SIMULATION_FLAGS),
            FlagGroup("capacity", "how much a fleet serves of a trace", CAPACITY_FLAGS),
            _LOG,
        ),
    ),
    Command("bench", "measure an engine, or a running server"),
    Command("collect-env", "print what this machine is and has, for reports of errors"),
    Command("as-vllm", "run a command in whose processes vllm is Baton"),
)
