"""`baton bench latency` and `throughput`: measure an engine of one's own, without a server."""

from __future__ import annotations

import argparse
import random
import sys
import time
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import TYPE_CHECKING, Any, Final

import msgspec

from baton.commands.bench_plan import read_prompts
from baton.config.engine_args import EngineArgs
from baton.inputs import TokensPrompt
from baton.outputs import RequestOutput
from baton.sampling_params import SamplingParams
from baton_bench.answers import BenchRequest
from baton_bench.figures import percentile
from baton_bench.progress import Progress
from baton_bench.token_source import TokenSource
from baton_simulator.capacity.output_files import require_writable, writing

if TYPE_CHECKING:
    from baton.api.llm import LLM

LATENCY_PERCENTS: Final = (10, 25, 50, 75, 90, 99)


def bench_latency(args: argparse.Namespace) -> int:
    """Time batches of random prompts, one batch after another.

    Raises:
        BatonError: the engine cannot be made, or cannot hold such a batch.
    """
    _require_writable(args.output_json)
    engine_args = EngineArgs.from_cli_args(args)
    source = TokenSource.of_model(args.model, writes_text=False)
    params = SamplingParams(max_tokens=args.output_len, temperature=0.0, ignore_eos=True)
    latencies_s = []
    num_iters = args.num_iters_warmup + args.num_iters
    with _make_llm(engine_args) as llm:
        rng = random.Random(args.seed)
        with Progress(num_iters, "batch", is_shown=not args.disable_tqdm) as progress:
            for number in range(num_iters):
                ids = [source.sample(rng, args.input_len) for _ in range(args.batch_size)]
                prompts = [TokensPrompt(prompt_token_ids=one) for one in ids]
                began = time.perf_counter()
                llm.generate(prompts, params, use_tqdm=False)
                if number >= args.num_iters_warmup:
                    latencies_s.append(time.perf_counter() - began)
                progress.add()
    figures = latency_figures(latencies_s)
    sys.stdout.write(f"Avg latency: {figures['avg_latency']} seconds\n")
    for percent, latency_s in figures["percentiles"].items():
        sys.stdout.write(f"{percent}% percentile latency: {latency_s} seconds\n")
    _write(args.output_json, figures)
    return 0


def bench_throughput(args: argparse.Namespace) -> int:
    """Time a dataset that is there at once.

    Raises:
        BatonError: the engine cannot be made, or the dataset cannot be sampled or served.
    """
    _require_writable(args.output_json)
    engine_args = EngineArgs.from_cli_args(args)
    source = TokenSource.of_model(args.tokenizer or args.model, writes_text=False)
    requests = read_prompts(args).sample(args.num_prompts, random.Random(args.seed), source)
    params = [
        SamplingParams(n=args.n, max_tokens=request.num_tokens, temperature=0.0, ignore_eos=True)
        for request in requests
    ]
    with _make_llm(engine_args) as llm:
        began = time.perf_counter()
        outputs = llm.generate([_prompt(one) for one in requests], params, use_tqdm=not args.disable_tqdm)
        elapsed_s = time.perf_counter() - began
    figures = throughput_figures(outputs, elapsed_s)
    sys.stdout.write(
        f"Throughput: {figures['requests_per_second']:.2f} requests/s, "
        f"{figures['tokens_per_second']:.2f} total tokens/s, "
        f"{figures['output_tokens_per_second']:.2f} output tokens/s\n"
        f"Total num prompt tokens:  {figures['total_num_tokens'] - figures['total_output_tokens']}\n"
        f"Total num output tokens:  {figures['total_output_tokens']}\n"
    )
    _write(args.output_json, figures)
    return 0


def latency_figures(latencies_s: Sequence[float]) -> dict[str, Any]:
    """Under the names of vLLM's result files."""
    ordered = sorted(latencies_s)
    return {
        "avg_latency": sum(ordered) / len(ordered),
        "latencies": list(latencies_s),
        "percentiles": {str(percent): percentile(ordered, percent) for percent in LATENCY_PERCENTS},
    }


def throughput_figures(outputs: Sequence[RequestOutput], elapsed_s: float) -> dict[str, Any]:
    """Under the names of vLLM's result files, and output tokens apart."""
    output_tokens = sum(len(one.token_ids) for output in outputs for one in output.outputs)
    total_tokens = output_tokens + sum(len(output.prompt_token_ids) for output in outputs)
    return {
        "elapsed_time": elapsed_s,
        "num_requests": len(outputs),
        "total_num_tokens": total_tokens,
        "total_output_tokens": output_tokens,
        "requests_per_second": len(outputs) / elapsed_s,
        "tokens_per_second": total_tokens / elapsed_s,
        "output_tokens_per_second": output_tokens / elapsed_s,
    }


def _make_llm(args: EngineArgs) -> LLM:
    # Loads torch: what cannot be is refused before that.
    from baton.api.llm import LLM

    return LLM.from_engine_args(args)


def _prompt(request: BenchRequest) -> str | TokensPrompt:
    prompt = request.prompt
    return prompt if isinstance(prompt, str) else TokensPrompt(prompt_token_ids=prompt)


def _require_writable(path: str) -> None:
    if path:
        require_writable(Path(path), "--output-json")


def _write(path: str, figures: Mapping[str, Any]) -> None:
    if path:
        with writing(Path(path), "--output-json"):
            Path(path).write_bytes(msgspec.json.format(msgspec.json.encode(figures), indent=2) + b"\n")
