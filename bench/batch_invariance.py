"""Measures the cost of the batch-invariant mode on this CPU, and what differs outside it.

    python -m bench.batch_invariance

Times: CPU time of all threads, which other load on the machine changes little, for steps of a random model
(`bench.cpu_step`) without the mode, with it and in parallel-invariant mode, in turns, in one run.
Differences: greedy requests over the bundled model, each served alone, then all together, then together with
their prompts in chunks, all without a prefix cache; a request differs where its tokens, or the raw logits of
its tokens, do.
"""

from __future__ import annotations

import argparse
import inspect
import os
import random
import time
from collections.abc import Sequence
from dataclasses import dataclass

import torch

from baton import LLM, RequestOutput, SamplingParams
from baton_core.ranks.rank_layout import ParallelSizes, RankPlace
from baton_core.worker.step_plan import StepPlan
from baton_engine.ranks.ranks import ALONE, Ranks
from baton_kernels.interface.kernels import Kernels
from baton_kernels.selection import select_invariant_kernels, select_kernels
from bench import cpu_step
from bench.command_line import make_parser

SOURCES = (argparse, inspect, os, random)
"""Modules of the standard library whose text prompts are cut from."""
CHUNK_LEN = 32
PARTS = ("times", "differences")


@dataclass(frozen=True, slots=True, kw_only=True)
class Answer:
    """The answer to one request."""

    token_ids: tuple[int, ...]
    logits: tuple[float, ...]
    """Raw logit of each of the tokens."""


def main() -> None:
    arguments = parse_arguments()
    torch.set_num_threads(arguments.threads)
    if "times" in arguments.parts:
        print_times(arguments)
    if "differences" in arguments.parts:
        print_differences(arguments)


def parse_arguments() -> argparse.Namespace:
    parser = make_parser(__doc__)
    parser.add_argument("--parts", nargs="+", choices=PARTS, default=PARTS)
    parser.add_argument("--dtype", choices=cpu_step.DTYPES, default="float32")
    parser.add_argument("--batch", type=int, nargs="+", default=[1, 8, 32])
    parser.add_argument("--context", type=int, default=512, help="tokens of a decoding sequence")
    parser.add_argument("--chunk", type=int, nargs="+", default=[128, 512], help="tokens of a prompt's chunk")
    parser.add_argument("--threads", type=int, default=torch.get_num_threads())
    parser.add_argument("--repeats", type=int, default=5, help="runs of each step")
    parser.add_argument("--requests", type=int, default=64, help="whose tokens are compared")
    parser.add_argument("--max-tokens", type=int, default=64, help="tokens of each answer")
    parser.add_argument("--small", action="store_true", help="a model of two narrow layers, for a quick run")
    for name, default in cpu_step.QWEN2_387M.items():
        parser.add_argument("--" + name.replace("_", "-"), type=int, help=f"default: {default}")
    arguments = parser.parse_args()
    if max(arguments.chunk) > arguments.context:
        parser.error(f"--chunk is {max(arguments.chunk)}; allowed: at most --context, {arguments.context}")
    return arguments


def print_times(arguments: argparse.Namespace) -> None:
    dtype = cpu_step.DTYPES[arguments.dtype]
    runners = []
    in_parts = Ranks(place=RankPlace(sizes=ParallelSizes(is_invariant=True)))
    plain, invariant = select_kernels("cpu", dtype), invariant_kernels(dtype)
    for kernels, ranks in ((plain, ALONE), (invariant, ALONE), (invariant, in_parts)):
        runner, num_bytes = cpu_step.make_runner(arguments, kernels, ranks=ranks)
        runners.append(runner)
    weights = f"{num_bytes / 1e6:.0f} MB of weights"
    print(f"{arguments.dtype}, {arguments.threads} threads, {weights}, least CPU times")
    print(f"{'step':28}{'without ms':>12}{'with ms':>14}{'cost':>8}{'parallel ms':>14}{'cost':>8}")
    steps = {f"prompt, chunk of {chunk}": prompt_step(chunk, arguments) for chunk in arguments.chunk}
    for batch in arguments.batch:
        tokens = [3 + 17 * seq for seq in range(batch)]
        steps[f"decode of {batch} at {arguments.context}"] = cpu_step.make_step(tokens, arguments)
    for name, plan in steps.items():
        contenders = [cpu_step.Contender(runner, time.process_time) for runner in runners]
        for _ in range(arguments.repeats):
            for contender in contenders:
                contender.run(plan)
        without_s, *modes_s = (min(contender.times_s) for contender in contenders)
        costs = "".join(f"{mode_s * 1e3:14.1f}{mode_s / without_s:8.2f}" for mode_s in modes_s)
        print(f"{name:28}{without_s * 1e3:12.1f}{costs}")


def invariant_kernels(dtype: torch.dtype) -> Kernels:
    return select_invariant_kernels("cpu", dtype, head_dim=64)


def prompt_step(num_tokens: int, arguments: argparse.Namespace) -> StepPlan:
    """The end of the first sequence's context, computed anew."""
    piece = cpu_step.make_slice(0, range(3, 3 + num_tokens), arguments.context, arguments)
    return StepPlan(step_id=0, slices=(piece,))


def print_differences(arguments: argparse.Namespace) -> None:
    prompts = make_prompts(arguments.requests)
    num_tokens = arguments.requests * arguments.max_tokens
    print(f"{len(prompts)} greedy requests over the bundled model, {arguments.max_tokens} tokens each")
    print(f"{'':12}{'against alone':28}{'requests: tokens':>18}{'logits':>8}{'tokens: logits':>16}")
    for batch_invariant in (False, True):
        alone = answers(prompts, arguments, batch_invariant, max_num_seqs=1)
        cases = {
            "together": answers(prompts, arguments, batch_invariant),
            f"together, chunks of {CHUNK_LEN}": answers(
                prompts, arguments, batch_invariant, long_prefill_token_threshold=CHUNK_LEN
            ),
        }
        for name, found in cases.items():
            pairs = list(zip(alone, found, strict=True))
            tokens = sum(one.token_ids != other.token_ids for one, other in pairs)
            logits = sum(one.logits != other.logits for one, other in pairs)
            single = sum(map(num_differing, alone, found))
            mode = "with" if batch_invariant else "without"
            print(
                f"{mode:12}{name:28}{tokens / len(pairs):18.1%}{logits / len(pairs):8.1%}"
                f"{single / num_tokens:16.1%}"
            )


def num_differing(one: Answer, other: Answer) -> int:
    """Tokens, up to the first other one, whose logits differ."""
    num = 0
    for index, (mine, theirs) in enumerate(zip(one.logits, other.logits, strict=False)):
        num += mine != theirs
        if one.token_ids[index] != other.token_ids[index]:
            break
    return num


def make_prompts(count: int) -> list[str]:
    dice = random.Random(0)
    texts = [inspect.getsource(module) for module in SOURCES]
    prompts = []
    for _ in range(count):
        text = dice.choice(texts)
        start = dice.randrange(len(text) - 600)
        prompts.append(text[start : start + dice.randint(40, 600)])
    return prompts


def answers(
    prompts: Sequence[str], arguments: argparse.Namespace, batch_invariant: bool, **settings: int
) -> list[Answer]:
    """Serve all prompts with an engine of its own."""
    engine = LLM(
        dtype=arguments.dtype,
        device="cpu",
        enable_prefix_caching=False,
        batch_invariant=batch_invariant,
        logprobs_mode="raw_logits",
        kv_cache_memory_bytes=1 << 29,
        **settings,
    )
    params = SamplingParams(temperature=0.0, max_tokens=arguments.max_tokens, ignore_eos=True, logprobs=0)
    with engine as llm:
        return [answer_of(output) for output in llm.generate(list(prompts), params, use_tqdm=False)]


def answer_of(output: RequestOutput) -> Answer:
    (completion,) = output.outputs
    token_ids = tuple(completion.token_ids)
    assert completion.logprobs is not None
    logits = tuple(at[token].logprob for at, token in zip(completion.logprobs, token_ids, strict=True))
    return Answer(token_ids=token_ids, logits=logits)


if __name__ == "__main__":
    main()
