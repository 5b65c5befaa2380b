"""Prompt lookup (`ngram`) beside none, in Baton and in vLLM on CPU, in one run:

    python -m bench.prompt_lookup --peer FOLDER [--model FOLDER] [--dtype bfloat16]

Each engine has a process that drafts and one that does not; all answer the same request in turns, one stream,
and the best of several rounds counts. With the bundled model, the default, prompts are functions of Python's
standard library to be written once more. A model of random weights (bench.peer.model) is given random tokens:
what it repeats, it repeats for every engine. A row has tokens per second, their ratio, and whether drafts
changed tokens: rounding may, in bfloat16.
"""

from __future__ import annotations

import argparse
import json
import tempfile
from collections import defaultdict
from contextlib import ExitStack
from operator import eq
from pathlib import Path

from baton.api.transformers_tokenizer import load_tokenizer
from baton.config.engine_args import BUNDLED_MODEL
from bench.command_line import make_parser
from bench.peer.engines import RUN_WITHIN_S, Engines
from bench.peer.scenarios import Scenario
from bench.speculative import LOOKUP, repeating_text


def main() -> None:
    """Print one row for each engine."""
    args = _parse()
    prompts = _prompts(args)
    with tempfile.TemporaryDirectory(prefix="baton-bench-lookup-") as logs, ExitStack() as stack:
        engines = Engines(
            model=args.model, peer_folder=args.peer or Path(), dtype=args.dtype, logs=Path(logs)
        )
        running = {}
        for name in ("baton", "vllm") if args.peer else ("baton",):
            for drafts in (False, True):
                arguments = {"speculative_config": LOOKUP} if drafts else {}
                engine = engines.offline(name, "--engine-arguments", json.dumps(arguments))
                running[name, drafts] = stack.enter_context(engine)
                engine.wait_until_ready(RUN_WITHIN_S)
                engine.pause()
        seconds, tokens = defaultdict(list), {}
        for turn in range(-1, args.rounds):
            for key, engine in running.items():
                engine.resume()
                answers = [
                    engine.ask(
                        {"prompts": [prompt], "num_tokens": args.output_tokens, "reads_cache": False},
                        RUN_WITHIN_S,
                    )
                    for prompt in prompts
                ]
                engine.pause()
                tokens[key] = [answer["token_ids"] for answer in answers]
                if turn >= 0:  # the first turn warms up
                    seconds[key].append(sum(answer["wall_s"] for answer in answers))
    print("| engine | tokens/s without | with | ratio | same tokens |\n|---|---|---|---|---|")
    for name in dict.fromkeys(name for name, _ in running):
        without, drafting = (
            len(prompts) * args.output_tokens / min(seconds[name, drafts]) for drafts in (False, True)
        )
        equal = sum(map(eq, tokens[name, False], tokens[name, True]))
        ratio = drafting / without
        print(f"| {name} | {without:.1f} | {drafting:.1f} | {ratio:.2f} | {equal} of {len(prompts)} |")


def _prompts(args: argparse.Namespace) -> list[list[int]]:
    if args.model != Path(BUNDLED_MODEL):
        scenario = Scenario(
            num_requests=args.prompts, num_prompt_tokens=64, num_output_tokens=args.output_tokens
        )
        return scenario.prompts("lookup")
    encode = load_tokenizer(args.model).encode
    return [encode(repeating_text(number)) for number in range(args.prompts)]


def _parse() -> argparse.Namespace:
    parser = make_parser(__doc__)
    parser.add_argument("--model", type=Path, default=Path(BUNDLED_MODEL))
    parser.add_argument("--prompts", type=int, default=4)
    parser.add_argument("--output-tokens", type=int, default=100)
    parser.add_argument("--rounds", type=int, default=3)
    parser.add_argument("--dtype", default="bfloat16")
    parser.add_argument("--peer", type=Path, help="folder of make_environment.sh, for vLLM")
    return parser.parse_args()


if __name__ == "__main__":
    main()
