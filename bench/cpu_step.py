"""Time of a decode step on this CPU, against the bytes that it has to read and against plain torch.

    python -m bench.cpu_step --dtype float32 --batch 1 8 32 --context 512
    python -m bench.cpu_step --quantization int8

Builds a random model, fills the KV cache, and runs one step over and over on two paths in turns: the
engine's own, and `functional.linear` with gathered K and V, which have to sample the same tokens; with
`--quantization` or `--kv-cache-dtype`, the engine's own with and without it, which need not. The limit is the
time in which this machine reads the step's weights, K and V once, at the bandwidth that the same threads
reach in the same run.
"""

from __future__ import annotations

import argparse
import json
import os
import statistics
import sys
import tempfile
import time
from collections.abc import Callable, Sequence
from dataclasses import dataclass, field, replace
from pathlib import Path
from unittest.mock import patch

from baton import PASSIVE_OPENMP

os.environ.setdefault(*PASSIVE_OPENMP)

import torch
from msgspec import structs
from torch import Tensor

from baton_core.worker.step_plan import LogprobsSpec, SampleSpec, SeqId, SequenceSlice, StepPlan
from baton_engine.checkpoint.dummy_weights import DummyWeights
from baton_engine.checkpoint.quantization.methods import OnlineQuantization
from baton_engine.checkpoint.quantization.online_plan import OnlinePlan
from baton_engine.checkpoint.weights import Part
from baton_engine.models import linear
from baton_engine.models.registry import build_model, read_model_config
from baton_engine.ranks.ranks import ALONE, Ranks
from baton_engine.sampling.sampler import Sampler
from baton_engine.steps.runner import ModelRunner
from baton_kernels.cpu.memory import huge_zeros
from baton_kernels.interface.kernels import AttentionBatch, AttentionKernels, Kernels, LayerKernels
from baton_kernels.reference.torch_attention import TorchAttention
from baton_kernels.reference.torch_sampling import TorchSampling
from baton_kernels.selection import select_kernels
from baton_kv.pool_bytes import allocate_pool
from bench.command_line import make_parser

BLOCK_SIZE = 32
CACHES = {"fp8_e4m3": torch.float8_e4m3fn, "fp8_e5m2": torch.float8_e5m2}
BANDWIDTH_BYTES = 512 << 20
MIN_GAP = {"float32": 0.01, "bfloat16": 0.3}  # in standard deviations of the logits
MAX_SEARCHES = 40
DTYPES = {"float32": torch.float32, "bfloat16": torch.bfloat16}
TORCH = Kernels(attention=TorchAttention(), layers=LayerKernels(), sampling=TorchSampling())
COLUMNS = ("limit ms", "min ms", "median ms", "of limit", "other min ms", "other median ms", "speedup")
QWEN2_387M = {
    "hidden_size": 896,
    "num_hidden_layers": 24,
    "num_attention_heads": 14,
    "num_key_value_heads": 2,
    "intermediate_size": 4864,
    "vocab_size": 32_000,
}
SMALL = {**QWEN2_387M, "num_hidden_layers": 2, "intermediate_size": 1024, "vocab_size": 4096}


class RandomWeights(DummyWeights):
    """Dummy weights with norms of ones: what the layers compute decides the tokens."""

    def load_stacked(
        self,
        names: Sequence[str],
        shapes: Sequence[Sequence[int]],
        dtype: torch.dtype | None = None,
        parts: Sequence[Part | None] | None = None,
    ) -> Tensor:
        stacked = super().load_stacked(names, shapes, dtype, parts)
        return stacked.fill_(1.0) if names[0].endswith("norm.weight") else stacked


@dataclass
class Contender:
    """One way to compute a step, with its times."""

    runner: ModelRunner
    clock_s: Callable[[], float] = time.perf_counter
    times_s: list[float] = field(default_factory=list)
    tokens: tuple[tuple[int, ...], ...] = ()

    def run(self, plan: StepPlan) -> None:
        start_s = self.clock_s()
        self.tokens = self.runner.execute(plan).sampled
        self.times_s.append(self.clock_s() - start_s)


def parse_arguments() -> argparse.Namespace:
    parser = make_parser(__doc__)
    parser.add_argument("--dtype", choices=DTYPES, default="float32")
    parser.add_argument(
        "--quantization",
        choices=[kind.value for kind in OnlineQuantization],
        help="compare with the step without it",
    )
    parser.add_argument(
        "--kv-cache-dtype",
        choices=CACHES,
        help="compare with a cache of the dtype of the model",
    )
    parser.add_argument(
        "--worker-pool",
        action="store_true",
        help="the KV cache in memory that other processes can read, as workers have it",
    )
    parser.add_argument("--batch", type=int, nargs="+", default=[1, 8, 32])
    parser.add_argument("--context", type=int, default=512, help="tokens of each sequence")
    parser.add_argument("--threads", type=int, default=torch.get_num_threads())
    parser.add_argument("--repeats", type=int, default=15, help="steps of each path")
    parser.add_argument("--small", action="store_true", help="a model of two narrow layers, for a quick run")
    for name, default in QWEN2_387M.items():
        parser.add_argument("--" + name.replace("_", "-"), type=int, help=f"default: {default}")
    return parser.parse_args()


def make_runner(
    arguments: argparse.Namespace,
    kernels: Kernels,
    *,
    online: OnlinePlan | None = None,
    kv_cache_dtype: str | None = None,
    ranks: Ranks = ALONE,
    is_pool_shared: bool = False,
) -> tuple[ModelRunner, int]:
    """Return a runner with a full cache for the largest batch, and the bytes of weights that a step reads."""
    dtype = DTYPES[arguments.dtype]
    shape = {name: getattr(arguments, name) or default for name, default in base_shape(arguments).items()}
    with tempfile.TemporaryDirectory() as folder:
        config_json = {"model_type": "qwen2", "architectures": ["Qwen2ForCausalLM"], "rms_norm_eps": 1e-6}
        config_json |= {"max_position_embeddings": 1 << 20, "tie_word_embeddings": True, **shape}
        (Path(folder) / "config.json").write_text(json.dumps(config_json))
        config = read_model_config(Path(folder))
    weights = RandomWeights(Path(), dtype, online=online)
    model = build_model(config, weights, kernels.layers, ranks)
    num_bytes = weights.loaded_bytes
    if model._head._layer.packed_bytes:  # type: ignore[attr-defined]
        # Tied: the head's packed copy is read whole, the table only for the rows of the tokens.
        num_bytes -= model._embedding.rows.nbytes  # type: ignore[attr-defined]
    cache_dtype = CACHES[kv_cache_dtype] if kv_cache_dtype else dtype
    spec = config.kv_spec(BLOCK_SIZE, str(cache_dtype).removeprefix("torch."))
    attention = kernels.attention
    spec = replace(spec, k_axes=attention.k_axes, v_axes=attention.v_axes)
    num_blocks = max(arguments.batch) * blocks_of_sequence(arguments.context)
    if is_pool_shared:
        kv_pool = allocate_pool(num_blocks, spec)
    else:
        kv_pool = huge_zeros((num_blocks, *spec.block_shape), cache_dtype)
    fill_cache(attention, kv_pool, arguments)
    runner = ModelRunner(model, attention, kv_pool, spec, Sampler(kernels.sampling))
    if attention.is_capturable(kv_pool) and model.is_capturable:
        runner.capture_decodes(max(arguments.batch), arguments.context)
    return runner, num_bytes


def base_shape(arguments: argparse.Namespace) -> dict[str, int]:
    return SMALL if arguments.small else QWEN2_387M


def blocks_of_sequence(context: int) -> int:
    return -(-context // BLOCK_SIZE)


def table_of_sequence(seq: int, arguments: argparse.Namespace) -> tuple[int, ...]:
    """Every sequence's blocks lie apart, as after some hours of service."""
    return tuple(seq + max(arguments.batch) * i for i in range(blocks_of_sequence(arguments.context)))


def fill_cache(kernels: AttentionKernels, kv_pool: Tensor, arguments: argparse.Namespace) -> None:
    """Write random K and V for the context of every sequence. Mutates `kv_pool`."""
    generator = torch.Generator().manual_seed(0)
    _, num_layers, _, num_heads, _, head_dim = kv_pool.shape
    for seq in range(max(arguments.batch)):
        batch = AttentionBatch.build(
            query_lens=[arguments.context],
            context_lens=[arguments.context],
            block_tables=[table_of_sequence(seq, arguments)],
            block_size=BLOCK_SIZE,
        )
        k, v = torch.randn(2, arguments.context, num_heads, head_dim, generator=generator).to(
            DTYPES[arguments.dtype]
        )
        for layer in range(num_layers):
            kernels.write(k, v, kv_pool, layer, batch)


def make_step(tokens: Sequence[int], arguments: argparse.Namespace) -> StepPlan:
    """A sequence for each of `tokens`, which is its last one."""
    slices = (make_slice(seq, (token,), arguments.context, arguments) for seq, token in enumerate(tokens))
    return StepPlan(step_id=0, slices=tuple(slices))


def make_slice(seq: int, token_ids: Sequence[int], end: int, arguments: argparse.Namespace) -> SequenceSlice:
    """The tokens of a sequence that lie before the position `end`, and a greedy one behind them."""
    return SequenceSlice(
        seq_id=SeqId(f"sequence-{seq}", 0),
        token_ids=tuple(token_ids),
        start=end - len(token_ids),
        block_tables=(table_of_sequence(seq, arguments)[: blocks_of_sequence(end)],),
        samples=(SampleSpec(seed=0, position=end, temperature=0.0, top_k=0, top_p=1.0, min_p=0.0),),
    )


def first_tokens(arguments: argparse.Namespace) -> list[int]:
    return [3 + 17 * seq for seq in range(max(arguments.batch))]


def find_decided_tokens(runner: ModelRunner, arguments: argparse.Namespace) -> list[int]:
    """Return a last token for each sequence whose successor is no near-tie: rounding must not decide it."""
    tokens = first_tokens(arguments)
    for _ in range(MAX_SEARCHES):
        with patch.object(runner.model, "logits", wraps=runner.model.logits) as logits_of:
            runner.execute(telling_logprobs(make_step(tokens, arguments)))
            (hidden,) = logits_of.call_args.args
        with torch.inference_mode():
            logits = runner.model.logits(hidden).float()
        best, second = logits.topk(2).values.unbind(1)
        is_tie = best - second < MIN_GAP[arguments.dtype] * logits.std(dim=1)
        if not is_tie.any():
            return tokens
        tokens = [token + int(tie) for token, tie in zip(tokens, is_tie.tolist(), strict=True)]
    sys.exit(f"no clear successors after {MAX_SEARCHES} searches; allowed: another shape or context")


def telling_logprobs(plan: StepPlan) -> StepPlan:
    """Return a plan whose logits are not computed within a replayed step."""
    slices = []
    for piece in plan.slices:
        samples = [structs.replace(sample, logprobs=LogprobsSpec()) for sample in piece.samples]
        slices.append(structs.replace(piece, samples=tuple(samples)))
    return replace(plan, slices=tuple(slices))


def measure_bandwidth(num_bytes: int = BANDWIDTH_BYTES) -> float:
    """Return bytes per second of reading so many, the better of a sum and of a copy (read and written)."""
    source = torch.ones(num_bytes // 4)
    destination = torch.empty_like(source)

    def shortest(work: Callable[[], object]) -> float:
        times = []
        for _ in range(8):
            start = time.perf_counter()
            work()
            times.append(time.perf_counter() - start)
        return min(times)

    read, copied = shortest(source.sum), shortest(lambda: destination.copy_(source))
    return max(source.nbytes / read, 2 * source.nbytes / copied)


@dataclass(frozen=True, slots=True, kw_only=True)
class Row:
    """One batch size's line of the table."""

    num_seqs: int
    num_bytes: float
    engine: Contender
    other: Contender

    def text(self, bandwidth: float) -> str:
        limit_s = self.num_bytes / bandwidth
        fastest, other_fastest = min(self.engine.times_s), min(self.other.times_s)
        cells = (
            f"{limit_s * 1e3:.1f}",
            f"{fastest * 1e3:.1f}",
            f"{statistics.median(self.engine.times_s) * 1e3:.1f}",
            f"{limit_s / fastest:.0%}",
            f"{other_fastest * 1e3:.1f}",
            f"{statistics.median(self.other.times_s) * 1e3:.1f}",
            f"{other_fastest / fastest:.2f}",
        )
        return f"{self.num_seqs:5}" + "".join(
            f"{cell:>{len(name) + 3}}" for name, cell in zip(COLUMNS, cells, strict=True)
        )


def never(*_: object) -> None:
    """Stand in for oneDNN's products, of which plain torch has none."""


def make_other_runner(arguments: argparse.Namespace, kernels: Kernels) -> ModelRunner:
    """Make the runner that the engine's step is compared with."""
    is_shared = arguments.worker_pool
    if arguments.quantization or arguments.kv_cache_dtype:
        return make_runner(arguments, kernels, is_pool_shared=is_shared)[0]
    with patch.object(linear, "onednn_product", never):
        return make_runner(arguments, TORCH, is_pool_shared=is_shared)[0]


def main() -> None:
    arguments = parse_arguments()
    torch.set_num_threads(arguments.threads)
    kernels = select_kernels("cpu", DTYPES[arguments.dtype])
    runner, weight_bytes = make_runner(
        arguments,
        kernels,
        online=arguments.quantization and OnlinePlan.of(OnlineQuantization(arguments.quantization)),
        kv_cache_dtype=arguments.kv_cache_dtype,
        is_pool_shared=arguments.worker_pool,
    )
    other_runner = make_other_runner(arguments, kernels)
    changed = " and ".join(filter(None, (arguments.quantization, arguments.kv_cache_dtype)))
    is_exact = not changed
    tokens = find_decided_tokens(runner, arguments) if is_exact else first_tokens(arguments)
    bandwidth, rows = measure_bandwidth(), []
    for num_seqs in arguments.batch:
        engine, other = Contender(runner), Contender(other_runner)
        plan = make_step(tokens[:num_seqs], arguments)
        for _ in range(arguments.repeats):
            engine.run(plan)
            other.run(plan)
        if is_exact and engine.tokens != other.tokens:
            sys.exit(f"the paths differ: {engine.tokens} and {other.tokens}; allowed: the same tokens")
        kv_bytes = num_seqs * arguments.context * runner.spec.block_bytes / BLOCK_SIZE
        rows.append(Row(num_seqs=num_seqs, num_bytes=weight_bytes + kv_bytes, engine=engine, other=other))
        bandwidth = max(bandwidth, measure_bandwidth())
    name = changed or arguments.dtype
    other_name = "plain torch, same tokens" if is_exact else f"without {changed}"
    print(
        f"{name}, context {arguments.context}, {arguments.threads} threads, {bandwidth / 1e9:.1f} GB/s, "
        f"{weight_bytes / 1e6:.0f} MB of weights; other: {other_name}"
    )
    print("batch" + "".join(f"   {name}" for name in COLUMNS))
    for row in rows:
        print(row.text(bandwidth))


if __name__ == "__main__":
    main()
