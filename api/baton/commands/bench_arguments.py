"""Actions of `baton bench` and their flags, under the names of vLLM's `bench` where it has them."""

from __future__ import annotations

import argparse
from dataclasses import dataclass
from typing import Final

from baton.config.engine_arg_fields import flags_of
from baton.config.engine_args import EngineArgs
from baton.config.flags import MAX_INT, NATURAL, OVER_0, POSITIVE, SHARE_OVER_0, Flag, Pattern, Range

_MAX_SECONDS: Final = 10**6
_NUMBER: Final = r"(?=[0-9.]*[1-9])[0-9]{1,9}(\.[0-9]{1,9})?"
_RATE: Final = Pattern(
    rf"inf|{_NUMBER}(e[+-]?[0-9])?",
    "inf, or a number over 0 such as 0.5, 4 or 1e3, with up to 9 digits before and after its point",
    "RPS",
)
_PERCENTS: Final = Pattern(
    r"(100|[0-9]{1,2}(\.[0-9]{1,4})?)(,(100|[0-9]{1,2}(\.[0-9]{1,4})?)){0,15}",
    "percents from 0 to 100, such as 50,90,99.9",
    "PERCENTS",
)
_LATENCIES: Final = Pattern(
    r"(ttft|tpot|itl|e2el)(,(ttft|tpot|itl|e2el)){0,3}", "some of ttft,tpot,itl,e2el", "NAMES"
)
_LIMIT: Final = Pattern(rf"(ttft|tpot|e2el):{_NUMBER}", "ttft:MS, tpot:MS or e2el:MS", "LIMIT")
_PAIR: Final = Pattern(r"[^=\x00-\x1f\x7f]{1,128}=[^\x00-\x1f\x7f]{0,4000}", "KEY=VALUE", "KEY=VALUE")
_URL: Final = Pattern(r"|https?://[^\s]{1,2000}", "http://host:port or https://host:port", "URL")
_ENDPOINT: Final = Pattern(r"|/[^\s]{0,1000}", "a path that begins with /", "PATH")
_ID_PREFIX: Final = Pattern(r"[\x21-\x7e]{0,100}", "up to 100 visible characters of ASCII", "PREFIX")
_BACKENDS: Final = ("openai", "vllm", "openai-chat", "baton-grpc")
DATASETS: Final = ("random", "sharegpt", "prefix_repetition", "custom", "trace")


def _length(name: str, default: int | None, text: str, low: int = 1) -> Flag:
    return Flag(name, int, default, text, Range(low, MAX_INT))


TARGET_FLAGS: Final = (
    Flag(
        "--backend",
        str,
        "openai",
        "completions (openai or vllm), chats, or a Baton router over gRPC",
        _BACKENDS,
    ),
    Flag("--base-url", str, "", "the server, instead of --host and --port", _URL),
    Flag("--host", str, "127.0.0.1", "host of the server"),
    Flag("--port", int, None, "port of the server; default: 8000, with baton-grpc 8100", Range(1, 65_535)),
    Flag("--endpoint", str, "", "path of the route; default: that of the backend", _ENDPOINT),
    Flag("--model", str, "", "name, folder or id; default: the first that the server lists"),
    Flag("--served-model-name", str, "", "the name to ask for; default: --model", metavar="NAME"),
    Flag(
        "--api-key", str, "", "key for the server; default: OPENAI_API_KEY of the environment", metavar="KEY"
    ),
    Flag("--header", str, (), "header of every request; repeatable", _PAIR, is_list=True, nargs="+"),
    Flag(
        "--ssl-ca-certs",
        str,
        "",
        "authority of the server's certificate; default: the system's",
        metavar="FILE",
    ),
    Flag("--insecure", bool, False, "take any certificate of the server"),
    Flag(
        "--request-id-prefix",
        str,
        "",
        "x-request-id of each request is this and a number; default: the server's",
        _ID_PREFIX,
    ),
    Flag(
        "--ready-check-timeout-sec",
        float,
        0.0,
        "seconds to wait until the server answers a request",
        Range(0, _MAX_SECONDS),
    ),
    Flag(
        "--request-timeout",
        float,
        600.0,
        "seconds that a request may take",
        Range(0, _MAX_SECONDS, is_low_open=True),
    ),
    Flag("--ignore-eos", bool, False, "have every answer be as long as asked for; no part of OpenAI's API"),
    Flag("--temperature", float, 0.0, "0 is greedy", Range(0, 100)),
    Flag("--top-p", float, None, "default: the server's", SHARE_OVER_0),
    Flag("--top-k", int, None, "default: the server's; no part of OpenAI's API", Range(-1, MAX_INT)),
    Flag("--min-p", float, None, "default: the server's; no part of OpenAI's API", Range(0, 1)),
    Flag("--presence-penalty", float, None, "default: the server's", Range(-2, 2)),
    Flag("--frequency-penalty", float, None, "default: the server's", Range(-2, 2)),
    Flag(
        "--repetition-penalty",
        float,
        None,
        "default: the server's; no part of OpenAI's API",
        Range(0, 100, is_low_open=True),
    ),
    Flag("--logprobs", int, None, "most likely tokens to return beside each token", NATURAL),
    Flag("--extra-body", dict, None, "JSON with more fields of every request", metavar="JSON"),
)
TOKEN_FLAGS: Final = (
    Flag(
        "--tokenizer",
        str,
        "",
        "folder or id whose tokenizer makes prompts; default: the model's, if that is a folder here, else "
        "prompts are token ids",
        metavar="NAME",
    ),
    Flag("--token-ids", bool, False, "leave sampled prompts as token ids"),
    _length("--vocab-size", 2048, "bound of the token ids if there is no tokenizer", low=32),
)
DATASET_FLAGS: Final = (
    Flag("--dataset-name", str, "random", "dataset of the requests", DATASETS),
    Flag("--dataset-path", str, "", "file of sharegpt, custom and trace", metavar="FILE"),
    Flag("--num-prompts", int, 1000, "requests", Range(1, 10**7)),
    _length("--input-len", None, "the same as the input length of the dataset"),
    _length("--output-len", None, "the same as the output length of the dataset"),
    _length("--random-input-len", 1024, "tokens of a prompt behind the prefix"),
    _length("--random-output-len", 128, "tokens of an answer"),
    Flag(
        "--random-range-ratio",
        float,
        0.0,
        "lengths are sampled from this share below to this share above",
        Range(0, 1),
    ),
    _length("--random-prefix-len", 0, "tokens that all prompts begin with", low=0),
    _length("--prefix-repetition-prefix-len", 256, "tokens of a prefix"),
    _length("--prefix-repetition-suffix-len", 256, "tokens behind it"),
    _length("--prefix-repetition-num-prefixes", 10, "prefixes"),
    _length("--prefix-repetition-output-len", 128, "tokens of an answer"),
    _length(
        "--sharegpt-output-len", None, "tokens of every answer; default: those of the answer in the file"
    ),
    _length("--custom-output-len", 256, "tokens of an answer whose line has no output_tokens"),
    Flag("--trace-speedup", float, 1.0, "speedup of the trace's arrivals", OVER_0),
    Flag("--trace-divisor", int, 1, "divisor of its prompts' lengths; it divides 512", Range(1, 512)),
    Flag("--trace-output-divisor", int, 1, "divisor of its answers' lengths", POSITIVE),
    Flag("--trace-every", int, 1, "only one of so many of its conversations", POSITIVE),
    Flag("--trace-sessions", bool, False, "name each request's conversation in the header x-session-id"),
    Flag("--disable-shuffle", bool, False, "take the lines of a file in their order"),
    Flag("--no-oversample", bool, False, "do not begin again a file with too few prompts"),
)
_SEED: Final = Flag("--seed", int, 0, "seed of prompts and arrivals", Range(0, 2**31 - 1))
PACE_FLAGS: Final = (
    _SEED,
    Flag(
        "--burstiness",
        float,
        1.0,
        "1: Poisson arrivals; less comes in bursts, more evenly",
        Range(0, 10**6, is_low_open=True),
    ),
    Flag("--num-warmups", int, 0, "requests before the measurement", Range(0, 10**6)),
)
ONE_PACE_FLAGS: Final = (
    Flag(
        "--request-rate",
        str,
        None,
        "requests per second; default: inf, all at once; of a trace: its own times",
        _RATE,
    ),
    _length("--max-concurrency", None, "requests at a time; default: as many as are due"),
    Flag("--ramp-up-strategy", str, None, "change of the rate over the run", ("linear", "exponential")),
    Flag("--ramp-up-start-rps", float, None, "rate at the start", OVER_0),
    Flag("--ramp-up-end-rps", float, None, "rate at the end", OVER_0),
)
SWEEP_FLAGS: Final = (
    Flag("--request-rates", str, (), "requests per second of each point", _RATE, is_list=True, nargs="+"),
    Flag(
        "--max-concurrencies",
        int,
        (),
        "requests at a time of each point; with --request-rates every pair of both",
        POSITIVE,
        is_list=True,
        nargs="+",
        metavar="N",
    ),
)
RESULT_FLAGS: Final = (
    Flag(
        "--goodput",
        str,
        (),
        "limits in ms that count as good: ttft:200 tpot:50 e2el:2000, or some of them",
        _LIMIT,
        is_list=True,
        nargs="+",
    ),
    Flag("--percentile-metrics", str, "ttft,tpot,itl,e2el", "latencies to print", _LATENCIES),
    Flag("--metric-percentiles", str, "50,90,99", "percentiles of each latency", _PERCENTS),
    Flag("--label", str, "", "label of the result; default: the backend"),
    Flag("--save-result", bool, False, "write all figures to a file of JSON"),
    Flag("--append-result", bool, False, "add them to that file as a line, where it exists"),
    Flag("--save-detailed", bool, False, "write the figures of each request, too"),
    Flag(
        "--result-dir", str, "", "folder of that file, made if it is missing; default: here", metavar="FOLDER"
    ),
    Flag("--result-filename", str, "", "default: made of label, rate, model and time", metavar="FILE"),
    Flag("--metadata", str, (), "fields to add to that file", _PAIR, is_list=True, nargs="+"),
    Flag("--disable-tqdm", bool, False, "show no bar"),
    Flag("--plot", str, "", "draw the result: a .png, .svg or .pdf; needs baton[simulate]", metavar="FILE"),
)
_OUTPUT: Final = (
    Flag("--output-json", str, "", "write the figures to this file", metavar="FILE"),
    Flag("--disable-tqdm", bool, False, "show no bar"),
)
LATENCY_FLAGS: Final = (
    _length("--input-len", 32, "tokens of each prompt"),
    _length("--output-len", 128, "tokens of each answer"),
    _length("--batch-size", 8, "requests at a time"),
    Flag("--num-iters-warmup", int, 10, "batches before the measurement", Range(0, 10**6)),
    Flag("--num-iters", int, 30, "batches that are measured", Range(1, 10**6)),
    *_OUTPUT,
)
THROUGHPUT_FLAGS: Final = (*DATASET_FLAGS, _length("--n", 1, "answers to each prompt"), *_OUTPUT)
_SERVE: Final = (*TARGET_FLAGS, *TOKEN_FLAGS, *DATASET_FLAGS, *PACE_FLAGS, *RESULT_FLAGS)


@dataclass(frozen=True, slots=True)
class BenchAction:
    """One benchmark."""

    name: str
    help: str
    flags: tuple[Flag, ...]
    is_offline: bool = False
    """True if the benchmark makes an engine of its own, and takes its arguments."""


BENCH_ACTIONS: Final = (
    BenchAction("latency", "how long one batch takes, without a server", LATENCY_FLAGS, is_offline=True),
    BenchAction(
        "throughput", "how much is served at most, without a server", THROUGHPUT_FLAGS, is_offline=True
    ),
    BenchAction("serve", "how fast a running server of OpenAI's interface is", (*_SERVE, *ONE_PACE_FLAGS)),
    BenchAction("sweep", "the same at several rates or concurrencies", (*_SERVE, *SWEEP_FLAGS)),
)


def bench_flags(benchmark: str) -> tuple[Flag, ...]:
    """Return the flags of one benchmark that a configuration file may hold."""
    action = next(action for action in BENCH_ACTIONS if action.name == benchmark)
    return (*action.flags, *flags_of(EngineArgs)) if action.is_offline else action.flags


def add_benchmarks(parser: argparse.ArgumentParser, asked: str) -> argparse.ArgumentParser:
    """Mutate the parser of `baton bench`; only the benchmark that is asked for gets its flags.

    Returns:
        The parser of that benchmark, else the one that is given.
    """
    found = parser
    parsers = parser.add_subparsers(dest="benchmark", required=True, metavar="BENCHMARK")
    for action in BENCH_ACTIONS:
        description = f"Measures {action.help}."
        sub = parsers.add_parser(action.name, help=action.help, description=description, allow_abbrev=False)
        if action.name != asked:
            continue
        found = sub
        for flag in action.flags:
            flag.add_to(sub)
        if action.is_offline:
            EngineArgs.add_cli_args(sub)
        sub.add_argument("--config", metavar="FILE", help="YAML file of flags; those given here come first")
    return found
