"""Whole models for `bench.gpu`: decode and prefill of random weights, against Transformers and the limit."""

from __future__ import annotations

import gc
import json
import tempfile
from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager
from dataclasses import asdict, replace
from pathlib import Path
from typing import Any, Final

import torch
from torch import Tensor

from baton_core.worker.step_plan import SampleSpec, SeqId, SequenceSlice, StepPlan
from baton_engine.checkpoint.dummy_weights import DummyWeights
from baton_engine.checkpoint.model_config import ModelConfig
from baton_engine.checkpoint.weights import Part
from baton_engine.models.model import Model
from baton_engine.models.registry import build_model, read_model_config
from baton_engine.sampling.sampler import Sampler
from baton_engine.steps.runner import ModelRunner
from baton_engine.warm_up import WarmUp, WarmUpLimits
from baton_kernels.interface.kernels import LayerKernels
from baton_kernels.selection import select_kernels
from bench.gpu.measures import (
    LLAMA3_8B,
    QWEN2_387M,
    TINY,
    Cell,
    Clock,
    Limits,
    ModelShape,
    Setup,
    Table,
    attempt,
    attempt_peer,
    measure_limits,
    percent,
)

BLOCK_SIZE: Final = 32
CONTEXT: Final = 2048
PROMPT: Final = 8192


class RandomWeights(DummyWeights):
    """Dummy weights of one process, drawn on the device, with norms of ones."""

    def load_stacked(
        self,
        names: Sequence[str],
        shapes: Sequence[Sequence[int]],
        dtype: torch.dtype | None = None,
        parts: Sequence[Part | None] | None = None,
    ) -> Tensor:
        assert not any(parts or ()), "one process has all of every layer"
        rows = sum(shape[0] for shape in shapes)
        stacked = torch.empty((rows, *shapes[0][1:]), dtype=dtype or self.dtype, device=self.device)
        self.loaded_bytes += stacked.nbytes
        return stacked.fill_(1.0) if names[0].endswith("norm.weight") else stacked.normal_(0, 0.02)


def config_of(shape: ModelShape, max_len: int) -> dict[str, Any]:
    """A config.json of Llama or, where the head is tied, Qwen2: what the two shapes are known by."""
    family = ("qwen2", "Qwen2ForCausalLM") if shape.tie_word_embeddings else ("llama", "LlamaForCausalLM")
    return {
        "model_type": family[0],
        "architectures": [family[1]],
        "rms_norm_eps": 1e-6,
        "rope_theta": 500_000.0,
        "max_position_embeddings": max_len,
        **asdict(shape),
    }


def build(
    weights: RandomWeights, shape: ModelShape, max_len: int, layers: LayerKernels
) -> tuple[Model, ModelConfig]:
    """A model of random weights, as a folder with such a config.json would be loaded."""
    with tempfile.TemporaryDirectory() as folder:
        Path(folder, "config.json").write_text(json.dumps(config_of(shape, max_len)))
        config = read_model_config(Path(folder))
    return build_model(config, weights, layers), config


def make_runner(setup: Setup, shape: ModelShape, num_seqs: int, max_len: int) -> ModelRunner:
    """A runner with room for `num_seqs` sequences of `max_len` tokens; on CUDA its decodes are captured."""
    kernels = select_kernels(setup.device, setup.dtype)
    model, config = build(RandomWeights(Path(), setup.dtype, setup.device), shape, max_len, kernels.layers)
    axes = {"k_axes": kernels.attention.k_axes, "v_axes": kernels.attention.v_axes}
    spec = replace(config.kv_spec(BLOCK_SIZE, str(setup.dtype).removeprefix("torch.")), **axes)
    num_blocks = num_seqs * -(-max_len // BLOCK_SIZE)
    pool = torch.zeros((num_blocks, *spec.block_shape), dtype=setup.dtype, device=setup.device).normal_()
    runner = ModelRunner(model, kernels.attention, pool, spec, Sampler(kernels.sampling))
    limits = WarmUpLimits(max_model_len=max_len, max_num_batched_tokens=max_len, max_decode_rows=num_seqs)
    WarmUp(runner=runner, limits=limits).run_prompts()
    if kernels.attention.is_capturable(pool):
        runner.capture_decodes(num_seqs, max_len)
    return runner


def make_plan(num_seqs: int, num_tokens: int, context: int, token_ids: Sequence[int] = ()) -> StepPlan:
    """`num_tokens` new tokens of each sequence, at the end of its context; the next one drawn greedily."""
    spec = SampleSpec(seed=0, position=context, temperature=0.0, top_k=0, top_p=1.0, min_p=0.0)
    per_seq = -(-context // BLOCK_SIZE)
    slices = tuple(
        SequenceSlice(
            seq_id=SeqId(f"sequence-{seq}", 0),
            token_ids=tuple(token_ids) or tuple((7 * seq + place) % 61 for place in range(num_tokens)),
            start=context - num_tokens,
            block_tables=(tuple(seq + num_seqs * block for block in range(per_seq)),),
            samples=(spec,),
        )
        for seq in range(num_seqs)
    )
    return StepPlan(step_id=0, slices=slices)


@contextmanager
def default_dtype(dtype: torch.dtype) -> Iterator[None]:
    """Tensors are made in `dtype` meanwhile."""
    before = torch.get_default_dtype()
    torch.set_default_dtype(dtype)
    try:
        yield
    finally:
        torch.set_default_dtype(before)


class Peer:
    """Transformers' model of the same shape, by its own attention over its own cache."""

    def __init__(self, setup: Setup, shape: ModelShape, max_len: int) -> None:
        import transformers  # an optional peer

        fields = config_of(shape, max_len)
        (name,) = fields["architectures"]
        config = getattr(transformers, name.replace("ForCausalLM", "Config"))(**fields)
        with torch.device(setup.device), default_dtype(setup.dtype):
            self._model = getattr(transformers, name)(config).eval()
        self._device = setup.device

    @torch.inference_mode()
    def decoder(self, num_seqs: int, context: int) -> Callable[[], Tensor]:
        """A step after `context - 1` tokens, over and over: its token leaves the cache again."""
        from transformers import DynamicCache

        cache = DynamicCache(config=self._model.config)
        for start in range(0, context - 1, 512):  # short parts: their scores and logits stay small
            tokens = torch.ones(
                num_seqs, min(512, context - 1 - start), dtype=torch.long, device=self._device
            )
            self._model(tokens, past_key_values=cache, logits_to_keep=1)
        last = torch.ones(num_seqs, 1, dtype=torch.long, device=self._device)

        def step() -> Tensor:
            with torch.inference_mode():
                logits: Tensor = self._model(last, past_key_values=cache).logits
                cache.crop(-1)
                return logits[:, -1].argmax(-1)

        return step

    def prefiller(self, num_tokens: int) -> Callable[[], Tensor]:
        tokens = torch.ones(1, num_tokens, dtype=torch.long, device=self._device)

        def prefill() -> Tensor:
            with torch.inference_mode():
                logits: Tensor = self._model(tokens, use_cache=True, logits_to_keep=1).logits
                return logits.argmax(-1)

        return prefill


@torch.inference_mode()
def forward_pass(runner: ModelRunner, plan: StepPlan) -> Tensor:
    """The model's part of a step, its inputs included; no draws."""
    return runner._forward(plan.slices, None)


def small_model(setup: Setup) -> list[Table]:
    tiny = replace(TINY, tie_word_embeddings=True)
    return _model(setup, "Qwen2 shape, 387 M", tiny if setup.is_quick else QWEN2_387M)


def large_model(setup: Setup) -> list[Table]:
    return _model(setup, "Llama-3-8B shape", TINY if setup.is_quick else LLAMA3_8B)


def _model(setup: Setup, name: str, shape: ModelShape) -> list[Table]:
    """Our steps, then the peer's: the two models are not in memory together."""
    clock = Clock(setup)
    limits = measure_limits(setup, clock)
    rows = _our_rows(setup, clock, shape, limits)
    gc.collect()
    if setup.device.type == "cuda":
        torch.cuda.empty_cache()
    title = (
        f"{name}, ms per step; floors: weights and KV at {limits.copy_bytes_per_s / 1e12:.2f} TB/s, "
        f"products at {limits.matrix_flops_per_s / 1e12:.0f} TFLOP/s"
    )
    columns = (
        "step",
        "batch",
        "context",
        "floor",
        "forward",
        "Baton",
        "of the floor",
        "Transformers",
        "ratio",
    )
    return [Table(title=title, columns=columns, rows=_with_peer(setup, clock, shape, rows))]


def _our_rows(setup: Setup, clock: Clock, shape: ModelShape, limits: Limits) -> list[tuple[Cell, ...]]:
    """Steps as the engine thread runs them: inputs, forward pass, draws, tokens on the host."""
    context, prompt, batches = (64, 40, (1, 2)) if setup.is_quick else (CONTEXT, PROMPT, (1, 32))
    runner = make_runner(setup, shape, max(batches), max(context, prompt))

    def row(step: str, num_seqs: int, length: int, floor_s: float) -> tuple[Cell, ...]:
        plan = make_plan(num_seqs, length if step == "prefill" else 1, length)
        ours = attempt(lambda: clock.host_seconds(lambda: runner.execute(plan)), 1e3)
        forward = attempt(lambda: clock.seconds(lambda: forward_pass(runner, plan), is_captured=False), 1e3)
        floor_ms = floor_s * 1e3
        return (step, num_seqs, length, floor_ms, forward, ours, percent(floor_ms, ours))

    size, bandwidth = setup.dtype.itemsize, limits.copy_bytes_per_s
    rows = [row("decode", n, context, shape.decode_bytes(n, context, size) / bandwidth) for n in batches]
    return [*rows, row("prefill", 1, prompt, shape.prefill_flops(prompt) / limits.matrix_flops_per_s)]


def _with_peer(
    setup: Setup, clock: Clock, shape: ModelShape, rows: list[tuple[Cell, ...]]
) -> list[tuple[Cell, ...]]:
    """The rows with the peer's time and how many times ours it is."""
    max_len = max(int(row[2]) for row in rows if isinstance(row[2], int))
    try:
        peer = Peer(setup, shape, max_len)
    except Exception as error:
        return [(*row, f"{type(error).__name__}: {error}"[:60], None) for row in rows]
    whole = []
    for row in rows:
        step, num_seqs, context, _, _, ours, _ = row
        make = peer.prefiller if step == "prefill" else lambda context, n=num_seqs: peer.decoder(n, context)
        theirs = attempt_peer(setup, lambda make=make, n=context: clock.host_seconds(make(n)), 1e3)
        is_both = isinstance(theirs, float) and isinstance(ours, float)
        whole.append((*row, theirs, theirs / ours if is_both else None))
    return whole
