"""Profiles an engine on a CPU: functions by their own time, those of C++ and torch among them.

    python -m bench.step_profile MODEL --dtype bfloat16 --requests 4 --prompt-len 1024 --output-len 1

An `LLM` in this process computes random prompts twice, the second time under cProfile, which makes small
functions look dearer than they are.
"""

from __future__ import annotations

import argparse
import cProfile
import pstats
import random
import time

from baton import LLM, SamplingParams
from bench.command_line import make_parser

FIRST_TOKEN = 3
SHOWN = 15


def parse_arguments() -> argparse.Namespace:
    parser = make_parser(__doc__)
    parser.add_argument("model", help="folder or id; python -m bench.peer.model makes one")
    parser.add_argument("--dtype", default="auto")
    parser.add_argument("--quantization", choices=("int8",))
    parser.add_argument("--requests", type=int, default=4)
    parser.add_argument("--prompt-len", type=int, default=1024)
    parser.add_argument("--output-len", type=int, default=1)
    parser.add_argument("--kv-cache-memory-bytes", type=int, default=2**29)
    return parser.parse_args()


def run(llm: LLM, args: argparse.Namespace, draws: random.Random) -> float:
    """Compute new prompts; return the seconds that it took."""
    vocab_size = len(llm.get_tokenizer())
    params = SamplingParams(temperature=0.0, max_tokens=args.output_len, ignore_eos=True)
    prompts = [
        {"prompt_token_ids": draws.choices(range(FIRST_TOKEN, vocab_size), k=args.prompt_len)}
        for _ in range(args.requests)
    ]
    start = time.perf_counter()
    llm.generate(prompts, params, use_tqdm=False)
    return time.perf_counter() - start


def main() -> None:
    args, draws = parse_arguments(), random.Random(0)
    llm = LLM(
        args.model,
        dtype=args.dtype,
        quantization=args.quantization,
        kv_cache_memory_bytes=args.kv_cache_memory_bytes,
    )
    run(llm, args, draws)
    with cProfile.Profile() as profile:
        seconds = run(llm, args, draws)
    num_tokens = args.requests * (args.prompt_len + args.output_len)
    print(f"{seconds:.2f} s, {num_tokens / seconds:.0f} tokens/s")
    pstats.Stats(profile).sort_stats("tottime").print_stats(SHOWN)


if __name__ == "__main__":
    main()
