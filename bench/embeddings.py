"""Embeddings beside vLLM on CPU: the same models, prompts, cores and type of numbers, over HTTP, in turns.

    bash bench/peer/make_environment.sh /tmp/peer
    python -m bench.embeddings --peer /tmp/peer --dtype bfloat16 --repeats 3

The models have random weights in the shapes of BERT-base and of Qwen3-0.6B. Each round starts each engine's
server anew and asks for embeddings in calls of 1 prompt and of 64, one call at a time. Prints embeddings per
second, the 99th percentile of the calls' latency, by how much Baton is better, and the least cosine of two
embeddings of one prompt.
"""

from __future__ import annotations

import argparse
import json
import math
import tempfile
import time
import urllib.request
from collections import defaultdict
from collections.abc import Sequence
from contextlib import ExitStack
from dataclasses import dataclass, field
from operator import mul
from pathlib import Path
from random import Random
from statistics import median
from typing import Any, Final

from baton_simulator.capacity.figures import percentile
from bench.command_line import make_parser
from bench.peer.engine_process import EngineProcess
from bench.peer.engines import Engines
from bench.peer.server import MODEL_NAME

ENGINES: Final = ("baton", "vllm")
SHAPES: Final = ("bert-base", "qwen3-0.6b")
CALLS: Final = {1: 60, 64: 6}
"""Calls of each round, by the prompts of a call."""
NUM_TOKENS: Final = 128
"""Length of a prompt."""
TOKENS: Final = range(4, 500)
WARM_UPS: Final = 2
START_WITHIN_S: Final = 1200.0
ANSWER_WITHIN_S: Final = 300.0
_POLL_S: Final = 0.2


def make_model(folder: Path, shape: str) -> None:
    """Write a model of random weights in bfloat16."""
    import torch
    from transformers import BertConfig, BertModel, Qwen3Config, Qwen3ForCausalLM

    from tests.models import make_tokenizer

    torch.manual_seed(0)
    if shape == "bert-base":
        model: Any = BertModel(BertConfig())
    else:
        sizes = {"hidden_size": 1024, "intermediate_size": 3072, "num_hidden_layers": 28, "head_dim": 128}
        heads = {"num_attention_heads": 16, "num_key_value_heads": 8, "max_position_embeddings": 2048}
        model = Qwen3ForCausalLM(Qwen3Config(**sizes, **heads, tie_word_embeddings=True))
    model.to(torch.bfloat16).save_pretrained(folder)
    make_tokenizer().save_pretrained(folder)


@dataclass(slots=True, kw_only=True)
class Server:
    """An engine's server, while it runs."""

    process: EngineProcess
    port: int

    def embed(self, prompts: Sequence[Sequence[int]]) -> list[list[float]]:
        """Return the embeddings of prompts; raises OSError where there is no answer."""
        body = json.dumps({"model": MODEL_NAME, "input": prompts}).encode()
        request = urllib.request.Request(
            f"http://127.0.0.1:{self.port}/v1/embeddings", body, {"Content-Type": "application/json"}
        )
        with urllib.request.urlopen(request, timeout=ANSWER_WITHIN_S) as answer:
            return [item["embedding"] for item in json.load(answer)["data"]]

    def wait(self) -> None:
        """Ask for an embedding until it comes.

        Raises:
            EngineFailedError: the process has ended, or it takes too long.
        """
        until_s = time.monotonic() + START_WITHIN_S
        while True:
            self.process.check_alive()
            if time.monotonic() > until_s:
                raise self.process.failure(f"gave no embedding within {START_WITHIN_S:g} s")
            try:
                self.embed([[TOKENS.start]])
            except OSError:
                time.sleep(_POLL_S)
            else:
                return


@dataclass(slots=True)
class Figures:
    """The figures of all rounds, by prompts of a call and engine."""

    rates: defaultdict[tuple[int, str], list[float]] = field(default_factory=lambda: defaultdict(list))
    latencies_s: defaultdict[tuple[int, str], list[float]] = field(default_factory=lambda: defaultdict(list))
    cosines: list[float] = field(default_factory=list)


def run_round(server: Server, engine: str, number: int, figures: Figures) -> list[list[float]]:
    """Make the calls of one round; returns the embeddings of the last large call."""
    last: list[list[float]] = []
    for size, num_calls in CALLS.items():
        random = Random(f"{number} {size}")
        for call in range(-WARM_UPS, num_calls):
            prompts = [random.choices(TOKENS, k=NUM_TOKENS) for _ in range(size)]
            began_s = time.perf_counter()
            last = server.embed(prompts)
            took_s = time.perf_counter() - began_s
            if call >= 0:
                figures.latencies_s[size, engine].append(took_s)
        own = figures.latencies_s[size, engine][-num_calls:]
        figures.rates[size, engine].append(size * num_calls / sum(own))
    return last


def cosine(one: Sequence[float], other: Sequence[float]) -> float:
    return sum(map(mul, one, other)) / (math.hypot(*one) * math.hypot(*other))


def measure(arguments: argparse.Namespace, shape: str, folder: Path, logs: Path) -> Figures:
    """Run all rounds of one model."""
    model, figures = folder / shape, Figures()
    if not (model / "config.json").exists():
        make_model(model, shape)
    engines = Engines(model=model, peer_folder=arguments.peer, dtype=arguments.dtype, logs=logs)
    for number in range(arguments.repeats):
        results = {}
        for name in ENGINES:
            with ExitStack() as stack:
                (process,), client = engines.serve(name, "--runner", "pooling")
                server = Server(process=stack.enter_context(process), port=client.port)
                server.wait()
                results[name] = run_round(server, name, number, figures)
        pairs = zip(*results.values(), strict=True)
        figures.cosines.append(min(cosine(one, other) for one, other in pairs))
    return figures


def show(shape: str, figures: Figures) -> None:
    for size in CALLS:
        rates = {name: median(figures.rates[size, name]) for name in ENGINES}
        tails = {name: percentile(figures.latencies_s[size, name], 99) for name in ENGINES}
        rate, tail = rates["baton"] / rates["vllm"], tails["vllm"] / tails["baton"]
        print(
            f"{shape}, calls of {size}: {rates['baton']:.1f} embeddings/s beside {rates['vllm']:.1f} "
            f"({rate:.2f}); p99 {1e3 * tails['baton']:.1f} ms beside {1e3 * tails['vllm']:.1f} ({tail:.2f}); "
            f"rounds {', '.join(f'{one:.1f}' for one in figures.rates[size, 'baton'])}"
            f" beside {', '.join(f'{one:.1f}' for one in figures.rates[size, 'vllm'])}"
        )
    print(f"{shape}: least cosine {min(figures.cosines):.6f}", flush=True)


def main() -> None:
    parser = make_parser(__doc__)
    parser.add_argument("--peer", type=Path, required=True, help="folder of make_environment.sh")
    parser.add_argument("--models", type=Path, help="folder for the models, kept; default: a temporary one")
    parser.add_argument("--logs", type=Path, help="folder for the engines' logs; default: a temporary one")
    parser.add_argument("--dtype", choices=("float32", "bfloat16"), default="bfloat16")
    parser.add_argument("--shapes", nargs="+", choices=SHAPES, default=SHAPES)
    parser.add_argument("--repeats", type=int, default=3, help="rounds, in each of which both have a turn")
    arguments = parser.parse_args()
    with tempfile.TemporaryDirectory() as temporary:
        logs = arguments.logs or Path(temporary, "logs")
        logs.mkdir(parents=True, exist_ok=True)
        for shape in arguments.shapes:
            folder = arguments.models or Path(temporary)
            show(shape, measure(arguments, shape, folder, logs))


if __name__ == "__main__":
    main()
