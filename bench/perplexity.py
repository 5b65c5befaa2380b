"""Perplexity of a model in several ways of computing it, each through the whole engine.

    apt-get install python3.11-doc
    python tools/train_bundled_model/corpus.py --docs /usr/share/doc/python3.11/html --out corpus.jsonl
    python -m bench.perplexity corpus.jsonl

Scores the documents of the corpus that the bundled model has not been trained on, in windows: each token is
predicted from `<|endoftext|>` and those before it in its window, as in the card of that model. A way is an
element type, a quantization while the model is loaded, or the folder of a checkpoint of the same model that
is stored quantized. With `--engine vllm`, in the environment of bench/peer, vLLM computes.
"""

from __future__ import annotations

import argparse
import json
import math
import time
from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from importlib import import_module
from pathlib import Path
from typing import Any, Final

from bench.command_line import make_parser

BUNDLED: Final = Path(__file__).parents[1] / "api" / "baton" / "bundled"
DTYPES: Final = ("float32", "bfloat16")
COLUMNS = ("perplexity", "against the first", "bits per byte", "seconds")


@dataclass(frozen=True, slots=True, kw_only=True)
class Score:
    """The score of the texts in one configuration."""

    num_tokens: int
    num_bytes: int
    nats: float
    seconds: float

    @property
    def perplexity(self) -> float:
        return math.exp(self.nats / self.num_tokens)

    @property
    def bits_per_byte(self) -> float:
        return self.nats / math.log(2) / self.num_bytes


def parse_arguments(description: str | None = __doc__) -> argparse.Namespace:
    parser = make_parser(description)
    parser.add_argument("corpus", type=Path, help="JSON lines with kind and text; held_out ones are scored")
    parser.add_argument("--model", default=str(BUNDLED), help="folder of the model; default: the bundled one")
    parser.add_argument(
        "--ways",
        nargs="+",
        default=[*DTYPES, "int8"],
        help="dtypes, quantizations and folders of checkpoints",
    )
    parser.add_argument("--dtype", default="bfloat16", help="of quantizations and checkpoints")
    parser.add_argument("--kv-cache-dtype", default="auto")
    parser.add_argument("--engine", choices=("baton", "vllm"), default="baton")
    parser.add_argument("--window", type=int, default=1024, help="tokens of a window")
    parser.add_argument("--documents", type=int, help="score the first ones alone")
    return parser.parse_args()


def read_held_out(corpus: Path) -> list[str]:
    lines = map(json.loads, corpus.read_text().splitlines())
    return [line["text"] for line in lines if line["kind"] == "held_out"]


def windows(llm: Any, texts: Sequence[str], length: int) -> Iterator[list[int]]:
    """Prompts whose tokens after the first are `length` tokens of a text, or its last ones."""
    tokenizer = llm.get_tokenizer()
    start = tokenizer.encode("<|endoftext|>")
    for text in texts:
        ids = tokenizer.encode(text, verbose=False)  # which would warn of texts longer than the model takes
        yield from (start + ids[begin : begin + length] for begin in range(0, len(ids), length))


def nats_of(prompt: Sequence[int], logprobs: Sequence[dict | None]) -> float:
    """Return the nats of all tokens of a prompt but the first."""
    return -sum(one[token].logprob for token, one in zip(prompt[1:], logprobs[1:], strict=True))


def settings_of(arguments: argparse.Namespace, way: str) -> dict[str, str]:
    """Return the arguments of `LLM` that a way needs."""
    if way in DTYPES:
        return {"model": arguments.model, "dtype": way}
    if Path(way).is_dir():
        return {"model": way, "tokenizer": arguments.model, "dtype": arguments.dtype}
    return {"model": arguments.model, "quantization": way, "dtype": arguments.dtype}


def score(arguments: argparse.Namespace, texts: Sequence[str], way: str) -> Score:
    engine = import_module(arguments.engine)
    scored = engine.SamplingParams(prompt_logprobs=0, max_tokens=1, temperature=0.0)
    llm = engine.LLM(
        kv_cache_memory_bytes=256 << 20,
        max_model_len=arguments.window + 2,
        kv_cache_dtype=arguments.kv_cache_dtype,
        **settings_of(arguments, way),
    )
    prompts = list(windows(llm, texts, arguments.window))
    began = time.perf_counter()
    outputs = llm.generate([{"prompt_token_ids": prompt} for prompt in prompts], scored, use_tqdm=False)
    seconds = time.perf_counter() - began
    del llm
    return Score(
        num_tokens=sum(len(prompt) - 1 for prompt in prompts),
        num_bytes=sum(len(text.encode()) for text in texts),
        nats=sum(
            nats_of(prompt, output.prompt_logprobs) for prompt, output in zip(prompts, outputs, strict=True)
        ),
        seconds=seconds,
    )


def main() -> None:
    arguments = parse_arguments()
    texts = read_held_out(arguments.corpus)[: arguments.documents]
    scores = {way: score(arguments, texts, way) for way in arguments.ways}
    first = scores[arguments.ways[0]]
    print(f"{len(texts)} documents, {first.num_tokens:,} tokens, {first.num_bytes:,} bytes")
    widest = max(len(Path(way).name) for way in scores)
    print(f"{'':{widest}}" + "".join(f"   {name}" for name in COLUMNS))
    for way, one in scores.items():
        cells = (
            f"{one.perplexity:.3f}",
            f"{one.perplexity / first.perplexity - 1:+.3%}",
            f"{one.bits_per_byte:.4f}",
            f"{one.seconds:.1f}",
        )
        print(
            f"{Path(way).name:{widest}}"
            + "".join(f"{cell:>{len(name) + 3}}" for cell, name in zip(cells, COLUMNS, strict=True))
        )


if __name__ == "__main__":
    main()
