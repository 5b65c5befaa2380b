"""Measures speculative decoding against none: tokens per second, in turns, in one run.

    python -m bench.speculative --batch 1 8 32

Both engines are in this process, and answer the same requests in turns; of each the fastest turn counts.
Texts that repeat are functions of Python's standard library to be written once more; the others are a few
words, whose answers are sampled at a high temperature, and questions about names that the bundled draft model
and the bundled EAGLE-3 head were not trained on (`--draft-model`, `--head`: these draft in the place of
prompt lookup). A model of random weights (`--model random`) is large enough for its weights to decide a
step's time, as those of real models do; its greedy answers repeat themselves. Tokens must be equal, unless
rounding may change them: with `--batch-invariant` never.
"""

from __future__ import annotations

import argparse
import inspect
import json
import os
import re
import shutil
import socket
import subprocess
import tempfile
import textwrap
import threading
import time
import zlib
from collections import Counter
from collections.abc import Sequence
from contextlib import ExitStack
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any, Final

from baton import LLM, SamplingParams
from baton.config.engine_args import BUNDLED_MODEL
from bench.command_line import make_parser

RANDOM: Final = {
    "architectures": ["LlamaForCausalLM"],
    "model_type": "llama",
    "hidden_size": 1024,
    "intermediate_size": 4096,
    "num_hidden_layers": 8,
    "num_attention_heads": 16,
    "num_key_value_heads": 8,
    "max_position_embeddings": 2048,
    "rms_norm_eps": 1e-5,
    "torch_dtype": "float32",
    "eos_token_id": 1,
}
"""530 MB of weights in float32, which no cache holds."""
SOURCES: Final = (textwrap, inspect, json, argparse)
"""Modules whose text is repeated."""
BUNDLED_DRAFT: Final = str(Path(__file__).with_name("bundled_draft"))
"""A model that drafts for the bundled one."""
BUNDLED_HEAD: Final = str(Path(__file__).with_name("bundled_eagle3"))
"""An EAGLE-3 head of the bundled model."""
LOOKUP: Final = {
    "method": "ngram",
    "num_speculative_tokens": 7,
    "prompt_lookup_min": 2,
    "prompt_lookup_max": 5,
}
TEXTS: Final = ("repeats", "random", "questions")
_HELD_OUT: Final = [
    name
    for module in (os, json, re, shutil, socket, threading, subprocess)
    for name in (f"{module.__name__}.{one}" for one in sorted(vars(module)) if one[0] != "_")
    if zlib.crc32(name.encode()) % 10 == 0
]
"""Names that `train_draft.py` and `train_eagle.py` in tools/train_bundled_model hold out."""


@dataclass
class Contender:
    """One engine with the times of its turns."""

    llm: LLM
    wall_s: list[float] = field(default_factory=list)
    cpu_s: list[float] = field(default_factory=list)

    def answer(self, prompts: Sequence[Any], params: SamplingParams) -> list[tuple[int, ...]]:
        """Answer all prompts at once, and keep the time."""
        wall_s, cpu_s = time.perf_counter(), time.process_time()
        outputs = self.llm.generate(list(prompts), params, use_tqdm=False)
        self.wall_s.append(time.perf_counter() - wall_s)
        self.cpu_s.append(time.process_time() - cpu_s)
        return [tuple(output.outputs[0].token_ids) for output in outputs]


def main() -> None:
    args = _parse()
    with ExitStack() as exits:
        fields: dict[str, Any] = {"dtype": args.dtype, "batch_invariant": args.batch_invariant}
        if args.model == "random":
            folder = Path(exits.enter_context(tempfile.TemporaryDirectory()))
            bundled = json.loads((Path(BUNDLED_MODEL) / "config.json").read_text())
            (folder / "config.json").write_text(json.dumps(RANDOM | {"vocab_size": bundled["vocab_size"]}))
            fields |= {"model": str(folder), "load_format": "dummy", "tokenizer": BUNDLED_MODEL}
        elif args.model:
            fields["model"] = args.model
        plain = exits.enter_context(LLM(**fields))
        drafting = exits.enter_context(LLM(**fields, speculative_config=json.loads(args.speculative_config)))
        print(
            "| text | batch | tokens/s without | with | ratio | of CPU time | accepted | per draft | equal |"
        )
        print("|---|---|---|---|---|---|---|---|---|")
        for text in args.texts:
            for batch in args.batch:
                _compare(args, plain, drafting, batch, text)


def _compare(args: argparse.Namespace, plain: LLM, drafting: LLM, batch: int, text: str) -> None:
    prompts = [_prompt(args, number, text) for number in range(batch)]
    temperature = 1.0 if text == "random" else 0.0
    params = SamplingParams(temperature=temperature, seed=1, max_tokens=args.max_tokens, ignore_eos=True)
    contenders = Contender(plain), Contender(drafting)
    before, is_equal = _counts(drafting), True
    for _ in range(args.turns):
        first, second = (one.answer(prompts, params) for one in contenders)
        is_equal &= first == second
    wall = [min(one.wall_s) for one in contenders]
    cpu = [min(one.cpu_s) for one in contenders]
    rates = [batch * args.max_tokens / seconds for seconds in wall]
    after = _counts(drafting)
    drafted, accepted = (after[name] - before[name] for name in ("num_draft_tokens", "num_accepted_tokens"))
    drafts = after["num_drafts"] - before["num_drafts"]
    print(
        f"| {text} | {batch} | {rates[0]:.0f} | {rates[1]:.0f} "
        f"| {wall[0] / wall[1]:.2f} | {cpu[0] / cpu[1]:.2f} | {accepted / max(1, drafted):.0%} "
        f"| {1 + accepted / max(1, drafts):.2f} | {'yes' if is_equal else 'no'} |",
        flush=True,
    )


def _counts(llm: LLM) -> Counter[str]:
    """Return the counts of drafts so far, by the ends of their metrics' names."""
    metrics = [one for one in llm.get_metrics() if "spec_decode" in one.name and not hasattr(one, "values")]
    return Counter({one.name.removeprefix("vllm:spec_decode_"): int(one.value) for one in metrics})


def _prompt(args: argparse.Namespace, number: int, text: str) -> Any:
    if args.model == "random":
        return {"prompt_token_ids": [(number * 37 + 11 * place) % 2000 + 1 for place in range(40)]}
    if text == "random":
        return f"The {number}th module"
    return question(number) if text == "questions" else repeating_text(number)


def question(number: int) -> str:
    """Return a conversation with a question about a name that the bundled head was not trained on."""
    name = _HELD_OUT[number % len(_HELD_OUT)]
    return f"<|im_start|>user\nWhat does {name} do?<|im_end|>\n<|im_start|>assistant\n"


def repeating_text(number: int) -> str:
    """Return a piece of Python's standard library, twice."""
    source = inspect.getsource(SOURCES[number % len(SOURCES)])[500 + 40 * number :][:600]
    return 2 * f"{source}\n"


def _parse() -> argparse.Namespace:
    parser = make_parser(__doc__)
    parser.add_argument("--model", default="", help="folder or id; empty: the bundled one; or random")
    parser.add_argument("--dtype", default="float32")
    parser.add_argument("--batch", type=int, nargs="+", default=[1, 8, 32])
    parser.add_argument("--max-tokens", type=int, default=100)
    parser.add_argument("--turns", type=int, default=5)
    parser.add_argument("--batch-invariant", action="store_true")
    parser.add_argument("--speculative-config", default=json.dumps(LOOKUP))
    parser.add_argument("--draft-model", action="store_true", help="draft by the bundled draft model")
    parser.add_argument("--head", action="store_true", help="draft by the bundled EAGLE-3 head")
    parser.add_argument("--texts", nargs="+", choices=TEXTS, default=TEXTS)
    args = parser.parse_args()
    if args.draft_model:
        args.speculative_config = json.dumps({"model": BUNDLED_DRAFT, "num_speculative_tokens": 5})
    if args.head:
        config = {"method": "eagle3", "model": BUNDLED_HEAD, "num_speculative_tokens": 3}
        args.speculative_config = json.dumps(config)
    return args


if __name__ == "__main__":
    main()
