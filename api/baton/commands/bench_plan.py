"""Plans of `baton bench serve` and `sweep` from their flags, and the datasets of all benchmarks."""

from __future__ import annotations

import argparse
import math
import resource
import ssl
from collections.abc import Sequence
from pathlib import Path
from typing import Any, Final

from multidict import CIMultiDict

from baton.commands.security_arguments import key_of_environment
from baton.config import environment
from baton.config.engine_args import BUNDLED_MODEL, BUNDLED_MODEL_NAME
from baton_bench.arrivals import Pace, Ramp, RampShape
from baton_bench.http_client import Origin
from baton_bench.load_run import Limits
from baton_bench.prompt_files import CustomPrompts, ShareGpt
from baton_bench.serving import GrpcServer, HttpServer, Prompts, ServePlan, Server, TokenChoice
from baton_bench.synthetic import PrefixRepetition, RandomPrompts
from baton_bench.targets import Backend, RequestDefaults
from baton_bench.trace_prompts import TracePrompts
from baton_core.errors import InvalidConfigError
from baton_service.descriptors import raise_descriptor_limit
from baton_service.router_access import RouterAccess
from baton_service.tls import ClientTls
from baton_simulator.capacity.trace import Scale
from baton_simulator.capacity.trace_formats import ID_TOKENS

KEY_VARIABLES: Final = ("OPENAI_API_KEY", *environment.KEY_VARIABLES)
DEFAULT_PORTS: Final = {Backend.OPENAI: 8000, Backend.OPENAI_CHAT: 8000, Backend.BATON_GRPC: 8100}
_OWN_FILES: Final = 64
"""Descriptors that are no connections."""
_PENALTIES: Final = ("presence_penalty", "frequency_penalty", "repetition_penalty")
_SAMPLING: Final = ("temperature", "top_p", "top_k", "min_p", *_PENALTIES)


def read_plan(args: argparse.Namespace) -> ServePlan:
    """Read the plan of a measurement; a sweep's rates and concurrencies are left out.

    Raises:
        InvalidConfigError: values do not go together, or name a file that is not there.
    """
    extra = args.extra_body or {}
    if extra.get("n") not in (None, 1):
        raise InvalidConfigError(
            f"--extra-body has n {extra['n']!r}; allowed: 1, for an answer is one sequence"
        )
    sampling = {name: getattr(args, name) for name in _SAMPLING if getattr(args, name) is not None}
    if args.logprobs is not None:
        is_chat = _backend(args.backend) is Backend.OPENAI_CHAT
        count = {"top_logprobs": args.logprobs, "logprobs": True} if is_chat else {"logprobs": args.logprobs}
        sampling |= count
    return ServePlan(
        server=_server(args),
        model=args.model,
        defaults=RequestDefaults(
            model=args.served_model_name,
            ignore_eos=args.ignore_eos,
            sampling={**sampling, **extra},
            request_id_prefix=args.request_id_prefix,
        ),
        prompts=read_prompts(args, has_sessions=args.trace_sessions),
        tokens=TokenChoice(
            tokenizer=args.tokenizer,
            folders={BUNDLED_MODEL_NAME: BUNDLED_MODEL},
            vocab_size=args.vocab_size,
            sends_ids=args.token_ids,
        ),
        num_prompts=args.num_prompts,
        num_warmups=args.num_warmups,
        pace=_pace(args),
        limits=Limits(
            max_concurrency=_max_connections(getattr(args, "max_concurrency", None)),
            request_timeout_s=args.request_timeout,
        ),
        seed=args.seed,
        ready_timeout_s=args.ready_check_timeout_sec,
    )


def read_prompts(args: argparse.Namespace, *, has_sessions: bool = False) -> Prompts:
    """The dataset.

    Raises:
        InvalidConfigError: its flags do not go together.
    """
    name, path = args.dataset_name, Path(args.dataset_path)
    if (name in ("random", "prefix_repetition")) is bool(args.dataset_path):
        allowed = (
            "a file, for this --dataset-name"
            if not args.dataset_path
            else f"none for {name}, which is sampled"
        )
        raise InvalidConfigError(f"--dataset-path is {args.dataset_path!r}; allowed: {allowed}")
    order = {"is_shuffled": not args.disable_shuffle, "repeats": not args.no_oversample}
    match name:
        case "random":
            return RandomPrompts(
                input_len=args.input_len or args.random_input_len,
                output_len=args.output_len or args.random_output_len,
                range_ratio=args.random_range_ratio,
                prefix_len=args.random_prefix_len,
            )
        case "prefix_repetition":
            return PrefixRepetition(
                prefix_len=args.prefix_repetition_prefix_len,
                suffix_len=args.input_len or args.prefix_repetition_suffix_len,
                num_prefixes=args.prefix_repetition_num_prefixes,
                output_len=args.output_len or args.prefix_repetition_output_len,
            )
        case "sharegpt":
            return ShareGpt(path=path, output_len=args.output_len or args.sharegpt_output_len, **order)
        case "custom":
            return CustomPrompts(path=path, output_len=args.output_len or args.custom_output_len, **order)
    return _trace(args, path, has_sessions=has_sessions)


def read_goodput(limits: Sequence[str]) -> dict[str, float]:
    """Limits in ms by latency, from `ttft:200` and so on.

    Raises:
        InvalidConfigError: a latency is named twice.
    """
    pairs = [limit.split(":") for limit in limits]
    read = {name: float(limit_ms) for name, limit_ms in pairs}
    if len(read) < len(pairs):
        raise InvalidConfigError(f"--goodput is {' '.join(limits)!r}; allowed: each of ttft, tpot, e2el once")
    return read


def read_pairs(pairs: Sequence[str]) -> dict[str, str]:
    """`KEY=VALUE` as a dictionary."""
    return {key: value for key, _, value in (pair.partition("=") for pair in pairs)}


def _server(args: argparse.Namespace) -> Server:
    key, backend = args.api_key or key_of_environment(*KEY_VARIABLES), _backend(args.backend)
    host = f"[{args.host.strip('[]')}]" if ":" in args.host else args.host
    address = f"{host}:{args.port or DEFAULT_PORTS[backend]}"
    if backend is Backend.BATON_GRPC:
        for name in ("base_url", "endpoint", "header", "extra_body", "insecure", "request_id_prefix"):
            if getattr(args, name):
                flag = f"--{name.replace('_', '-')}"
                raise InvalidConfigError(
                    f"{flag} is {getattr(args, name)!r}; allowed: nothing with {backend}"
                )
        access = RouterAccess(ClientTls(ca_certs=args.ssl_ca_certs), key)
        return GrpcServer(address=address, access=access)
    headers = CIMultiDict({"Authorization": f"Bearer {key}"} if key else {})
    headers.update(read_pairs(args.header))
    if args.insecure and args.ssl_ca_certs:
        raise InvalidConfigError(
            f"--ssl-ca-certs is {args.ssl_ca_certs!r}; allowed: nothing beside --insecure, which checks none"
        )
    origin = Origin.parse(args.base_url or f"http://{address}", args.ssl_ca_certs)
    if args.insecure and origin.tls is not None:
        origin.tls.check_hostname, origin.tls.verify_mode = False, ssl.CERT_NONE
    return HttpServer(origin=origin, headers=headers, backend=backend, endpoint=args.endpoint)


def _backend(name: str) -> Backend:
    return Backend.OPENAI if name == "vllm" else Backend(name)


def _pace(args: argparse.Namespace) -> Pace | None:
    """None where nothing is said, so that a trace keeps its own."""
    given: Any = getattr(args, "request_rate", None)
    shape = getattr(args, "ramp_up_strategy", None)
    start, end = (getattr(args, f"ramp_up_{name}_rps", None) for name in ("start", "end"))
    if shape is None and (start is not None or end is not None):
        raise InvalidConfigError(
            "--ramp-up-strategy is not given; allowed: linear or exponential, with its rates"
        )
    if shape is None:
        return None if given is None else Pace(rate=float(given), burstiness=args.burstiness)
    if given is not None:
        raise InvalidConfigError(f"--request-rate is {given}; allowed: nothing beside --ramp-up-strategy")
    if start is None or end is None:
        missing = "start" if start is None else "end"
        raise InvalidConfigError(
            f"--ramp-up-{missing}-rps is not given; allowed: a rate, for --ramp-up-strategy"
        )
    ramp = Ramp(shape=RampShape(shape), start_rps=start, end_rps=end)
    return Pace(rate=ramp, burstiness=args.burstiness)


def _trace(args: argparse.Namespace, path: Path, *, has_sessions: bool) -> TracePrompts:
    if ID_TOKENS % args.trace_divisor:
        raise InvalidConfigError(
            f"--trace-divisor is {args.trace_divisor}; allowed: a divisor of {ID_TOKENS}"
        )
    scale = Scale(
        every=args.trace_every,
        divisor=args.trace_divisor,
        output_divisor=args.trace_output_divisor,
        speedup=args.trace_speedup,
        has_sessions=has_sessions,
    )
    return TracePrompts(path=path, scale=scale)


def _max_connections(asked: int | None) -> int:
    """Return the number asked for, else the number that this process may open; raises its soft limit."""
    raise_descriptor_limit()
    _, hard = resource.getrlimit(resource.RLIMIT_NOFILE)
    most = (2**20 if hard == resource.RLIM_INFINITY else hard) - _OWN_FILES
    if asked is not None and asked > most:
        raise InvalidConfigError(
            f"--max-concurrency is {asked}; allowed: up to {most}, by the limit of open files"
        )
    return most if asked is None else asked


def is_paced(plan: ServePlan) -> bool:
    """True if requests are due at certain times."""
    if plan.pace is None:
        return isinstance(plan.prompts, TracePrompts)
    return isinstance(plan.pace.rate, Ramp) or not math.isinf(plan.pace.rate)
