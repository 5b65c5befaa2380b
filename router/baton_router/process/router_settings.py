"""Settings of one router process, checked before anything starts."""

from __future__ import annotations

import math
from collections.abc import Mapping
from dataclasses import dataclass, field, replace
from ipaddress import ip_address
from typing import Any, Final

from baton_core.errors import require
from baton_core.sessions.session import DEFAULT_TIMINGS
from baton_router.core.placement.placement_config import SplitMode
from baton_router.core.placement.routing_policies import RoutingPolicy
from baton_router.group.member import Member
from baton_router.process.admission_settings import AdmissionSettings
from baton_router.process.http_settings import HttpSettings, ResponseStoreLimits
from baton_router.process.logged_requests import LoggedRequests
from baton_router.requests.request_limits import RequestLimits
from baton_router.text.generation_defaults import MODELS_OWN
from baton_service.grpc_options import MAX_EMBEDDED_BYTES, MAX_GRPC_BYTES
from baton_service.logs import FORMATS, LEVELS
from baton_service.redis.redis_settings import RedisSettings
from baton_service.stop_signals import DEFAULT_SHUTDOWN_TIMEOUT_S
from baton_service.tls import ServerTls
from baton_service.tracing import TracingSettings

MAX_PROCESSES: Final = 64


@dataclass(frozen=True, slots=True, kw_only=True)
class RouterSettings:
    """Settings of one router process.

    Raises:
        InvalidConfigError: a value is out of range; the message names flag, value and what is allowed.
    """

    model: str
    """A model folder, or a Hugging Face Hub id."""
    shown_model: str = ""
    """Name that clients are told in the place of `model`; empty: that."""
    tokenizer: str | None = None
    """The same of the tokenizer; None is the model's own."""
    hf_overrides: Mapping[str, Any] = field(default_factory=dict)
    """Values that come before those of the model's config.json."""
    served_model_names: tuple[str, ...] = ()
    """Names that clients use, the first one first; none means `model` as it is written."""
    max_lora_rank: int | None = None
    """Highest rank of a LoRA adapter; None where none are taken."""
    lora_modules: tuple[str, ...] = ()
    """Adapters that are served from the start: name=path, or JSON."""
    host: str = "127.0.0.1"
    port: int = 8000
    """HTTP port; 0 lets the system choose."""
    uds: str = ""
    """Path of a Unix socket that serves HTTP in the place of `host` and `port`; empty: none."""
    grpc_host: str = ""
    """For gRPC clients and workers; empty: `host`."""
    grpc_port: int = 8100
    """For gRPC clients and workers; 0 lets the system choose."""
    num_processes: int = 1
    """Processes that serve the same ports."""
    member: Member | None = None
    """The place of this process among them; None where it is the only one, or starts them."""
    picker_port: int | None = None
    """Port of the endpoint picker for gateways, on `grpc_host`; 0 lets the system choose, None is none."""
    redis: RedisSettings = field(default_factory=RedisSettings)
    """Redis that the routers share, with the prefixes that workers have cached."""
    advertise_host: str = ""
    """Host under which workers reach this router; found out when empty."""
    routing_policy: RoutingPolicy = RoutingPolicy.COST
    split: SplitMode = SplitMode.AUTO
    min_split_tokens: int = 32
    """Uncached prompt tokens from which `auto` splits."""
    adaptive_roles: bool = False
    """Changes the roles of workers where prefill or decode lacks them."""
    check_transfers: bool = False
    """Probes the transfer between each pair of workers when they join."""
    request_timeout_s: float = 600.0
    """For calls without a deadline of their own."""
    move_timeout_s: float = 15.0
    session_timeout_s: float = DEFAULT_TIMINGS.dead_after_s
    """Silence after which a session with a worker ends."""
    shutdown_timeout_s: float = DEFAULT_SHUTDOWN_TIMEOUT_S
    """Time for running requests to end at shutdown."""
    chat_template: str = ""
    """A file of Jinja source, or the source, to use instead of the model's own."""
    generation_config: str = MODELS_OWN
    """Source of the sampling defaults, as `with_generation_config` reads it."""
    override_generation_config: Mapping[str, Any] = field(default_factory=dict)
    seed: int | None = None
    """Seed of the seeds of requests without one; None: they are random."""
    log_requests: LoggedRequests = field(default_factory=LoggedRequests)
    resume_secret: str = ""
    """Secret that signs resume tokens, the same at every router of a fleet; empty: none."""
    limits: RequestLimits = field(default_factory=RequestLimits)
    admission: AdmissionSettings = field(default_factory=AdmissionSettings)
    http: HttpSettings = field(default_factory=HttpSettings)
    tls: ServerTls = field(default_factory=ServerTls)
    """TLS of both ports."""
    tracing: TracingSettings = field(default_factory=TracingSettings)
    log_format: str = "text"
    log_level: str = "info"

    def __post_init__(self) -> None:
        require("--model", self.model, bool(self.model), "a model folder or a Hugging Face Hub id")
        names = self.served_model_names
        are_names = all(name and name.isprintable() for name in names) and len(set(names)) == len(names)
        require("--served-model-name", names, are_names, "printable names, each once")
        for name in ("host", "grpc_host"):
            object.__setattr__(self, name, _without_brackets(getattr(self, name)))
        for flag, host in (("--host", self.host), ("--grpc-host", self.grpc_host or self.host)):
            is_host = bool(host) and not any(character.isspace() for character in host)
            require(flag, host, is_host, "an address of this machine, such as 127.0.0.1 or 0.0.0.0")
        for flag, port in (("--port", self.port), ("--grpc-port", self.grpc_port)):
            require(flag, port, _is_int(port, 0, 65_535), "an integer from 0 to 65535")
        is_twice = self.port == self.grpc_port != 0
        require("--grpc-port", self.grpc_port, not is_twice, "another one than --port")
        self._check_picker()
        self._check_processes()
        policies = list(RoutingPolicy)
        require("--routing-policy", self.routing_policy, self.routing_policy in policies, ", ".join(policies))
        object.__setattr__(self, "routing_policy", RoutingPolicy(self.routing_policy))
        require("--split", self.split, self.split in list(SplitMode), ", ".join(SplitMode))
        object.__setattr__(self, "split", SplitMode(self.split))
        is_idle = self.adaptive_roles and self.split is SplitMode.NEVER
        require("--adaptive-roles", self.adaptive_roles, not is_idle, "with --split auto or always")
        is_count = _is_int(self.min_split_tokens, 1, 2**31 - 1)
        require("--min-split-tokens", self.min_split_tokens, is_count, "an integer from 1")
        is_timeout = _is_seconds(self.request_timeout_s) and self.request_timeout_s > 0
        require("--request-timeout", self.request_timeout_s, is_timeout, "seconds, over 0")
        require("--move-timeout", self.move_timeout_s, _is_seconds(self.move_timeout_s), "seconds")
        require(
            "--shutdown-timeout", self.shutdown_timeout_s, _is_seconds(self.shutdown_timeout_s), "seconds"
        )
        require("--log-format", self.log_format, self.log_format in FORMATS, ", ".join(FORMATS))
        require("--log-level", self.log_level, self.log_level in LEVELS, ", ".join(LEVELS))

    def _check_processes(self) -> None:
        """Refuse what one process could do and several cannot: each knows only its own calls."""
        num = self.num_processes
        require(
            "--router-processes", num, _is_int(num, 1, MAX_PROCESSES), f"an integer from 1 to {MAX_PROCESSES}"
        )
        if num == 1:
            return
        is_port = self.grpc_port + num <= 65_535
        require("--grpc-port", self.grpc_port, is_port, f"one with {num} more ports above it, for workers")
        http = self.http
        for flag, is_given in (
            ("--uds", self.uds),
            ("--picker-port", self.picker_port is not None),
            ("--enable-operator-routes", http.enable_operator_routes),
            ("--enable-lora-updates", http.enable_lora_updates),
        ):
            require("--router-processes", num, not is_given, f"1 with {flag}")
        if not self.redis.is_given:  # where a response that one process keeps is found by the others
            none = replace(http.stored_responses, num_responses=0)
            is_default = http.stored_responses in (none, ResponseStoreLimits())
            allowed = "1 with flags of stored responses, or more with --redis beside them"
            require("--router-processes", num, is_default, allowed)
            object.__setattr__(self, "http", replace(http, stored_responses=none))

    def _check_picker(self) -> None:
        port = self.picker_port
        if port is None:
            return
        is_port = _is_int(port, 0, 65_535) and (port == 0 or port not in (self.port, self.grpc_port))
        require("--picker-port", port, is_port, "an integer from 0 to 65535, no other port of this router")
        require("--picker-port", port, not self.uds, "none with --uds, which gateways do not reach")
        is_known = bool(self.advertise_host) or self.host not in ("0.0.0.0", "::")  # noqa: S104 (not bound)
        allowed = "a host that gateways reach, with --picker-port and a --host for all interfaces"
        require("--advertise-host", self.advertise_host, is_known, allowed)

    @property
    def model_names(self) -> tuple[str, ...]:
        """Names under which the model is served."""
        return self.served_model_names or (self.model,)

    @property
    def grpc_address(self) -> str:
        """`host:port`, an IPv6 host in brackets."""
        return f"{self.shown_grpc_host}:{self.grpc_port}"

    @property
    def max_message_bytes(self) -> int:
        """Largest size of a message of gRPC clients and workers."""
        return MAX_EMBEDDED_BYTES if self.limits.enable_prompt_embeds else MAX_GRPC_BYTES

    @property
    def shown_host(self) -> str:
        """The host of HTTP as addresses have it: IPv6 in brackets."""
        return _in_address(self.host)

    @property
    def shown_grpc_host(self) -> str:
        """The same for gRPC."""
        return _in_address(self.grpc_host or self.host)

    @property
    def own_hosts(self) -> tuple[str, ...] | None:
        """Names with a dot at which a browser may have the router's own pages; None is any.

        Only where HTTP is for this machine alone and needs no key: else a name with a dot is as good as
        another one.
        """
        if self.uds or self.http.api_keys or not _is_loopback(self.host):
            return None
        return (self.host, self.advertise_host)


def _is_loopback(host: str) -> bool:
    try:
        return ip_address(host).is_loopback
    except ValueError:
        return host == "localhost"


def _without_brackets(host: str) -> str:
    """Return an IPv6 host as it is listened on: addresses have it in brackets."""
    return host[1:-1] if host.startswith("[") and host.endswith("]") else host


def _in_address(host: str) -> str:
    return f"[{host}]" if ":" in host else host


def _is_int(value: object, low: int, high: int) -> bool:
    return isinstance(value, int) and not isinstance(value, bool) and low <= value <= high


def _is_seconds(value: object) -> bool:
    if isinstance(value, bool) or not isinstance(value, (int, float)):
        return False
    return math.isfinite(value) and value >= 0
