"""Tools of the parts of `bench.gpu`: a clock, a device's limits, floors, tables."""

from __future__ import annotations

import math
import statistics
import time
from collections.abc import Callable
from dataclasses import dataclass
from typing import Final

import torch

FLUSHED_BYTES: Final = 512 << 20
"""Written between two measurements, so that no cache holds what the next one reads."""
COPIED_BYTES: Final = 2 << 30


@dataclass(frozen=True, slots=True, kw_only=True)
class Setup:
    """The device of a part, and how thoroughly it measures."""

    device: torch.device
    dtype: torch.dtype
    is_quick: bool
    """Tiny shapes, few repetitions: that everything runs, not how fast."""
    ends_s: float = math.inf
    """Time of the monotonic clock after which peers are left out, so that our own figures are not lost."""


class Clock:
    """Times work on one device: captured as a CUDA graph where it can be, so that launches cost nothing.

    The repetitions of one measurement take about `budget_s`.
    """

    def __init__(self, setup: Setup, budget_s: float = 0.4) -> None:
        self._budget_s = budget_s
        self._is_cuda = setup.device.type == "cuda"
        self._most = 2 if setup.is_quick else 50
        num_bytes = FLUSHED_BYTES if self._is_cuda else 0
        self._flushed = torch.empty(num_bytes, dtype=torch.uint8, device=setup.device)

    def seconds(self, call: Callable[[], object], *, is_captured: bool = True) -> float:
        """Return the median time of `call` on the device, with cold caches."""
        call()
        replay = _captured(call) if self._is_cuda and is_captured else call
        first = self._once(replay)
        count = max(2, min(self._most, int(self._budget_s / max(first, 1e-6))))
        return statistics.median(self._once(replay) for _ in range(count))

    def host_seconds(self, call: Callable[[], object]) -> float:
        """Return the median time of `call` as whoever waits for it sees it, launches included."""
        call()
        count = 2 if self._most == 2 else 20
        return statistics.median(self._waited(call) for _ in range(count))

    def _once(self, call: Callable[[], object]) -> float:
        if not self._is_cuda:
            return self._waited(call)
        start, end = (torch.cuda.Event(enable_timing=True) for _ in range(2))
        self._flushed.zero_()
        start.record()
        call()
        end.record()
        end.synchronize()
        return start.elapsed_time(end) / 1e3

    def _waited(self, call: Callable[[], object]) -> float:
        start = time.perf_counter()
        call()
        if self._is_cuda:
            torch.cuda.synchronize()
        return time.perf_counter() - start


def _captured(call: Callable[[], object]) -> Callable[[], object]:
    """Its replay, or `call` itself where it cannot be captured."""
    torch.cuda.synchronize()
    graph = torch.cuda.CUDAGraph()
    try:
        with torch.cuda.graph(graph):
            call()
    except RuntimeError:
        torch.cuda.synchronize()
        return call
    return graph.replay


@dataclass(frozen=True, slots=True, kw_only=True)
class Limits:
    """The limits of this device, measured in the same process as the kernels that are compared with them."""

    copy_bytes_per_s: float
    """Read plus written."""
    matrix_flops_per_s: float


def measure_limits(setup: Setup, clock: Clock) -> Limits:
    """A large copy, and the best of some square matrix products in the type of the models."""
    num_bytes, sizes = (1 << 16, (32,)) if setup.is_quick else (COPIED_BYTES, (4096, 8192))
    source = torch.ones(num_bytes, dtype=torch.uint8, device=setup.device)
    target = torch.empty_like(source)
    copied_s = clock.seconds(lambda: target.copy_(source))
    rates = []
    for size in sizes:
        a, b = (torch.randn(size, size, device=setup.device, dtype=setup.dtype) for _ in range(2))
        rates.append(2 * size**3 / clock.seconds(lambda a=a, b=b: a @ b))
    return Limits(copy_bytes_per_s=2 * num_bytes / copied_s, matrix_flops_per_s=max(rates))


@dataclass(frozen=True, slots=True, kw_only=True)
class Heads:
    """The attention of one model."""

    name: str
    num_q_heads: int
    num_kv_heads: int
    head_dim: int


def decode_attention_bytes(heads: Heads, num_seqs: int, context: int, element_bytes: int) -> int:
    """Keys and values once, queries and results."""
    rows = 2 * context * heads.num_kv_heads + 2 * heads.num_q_heads
    return num_seqs * rows * heads.head_dim * element_bytes


def prefill_attention_flops(heads: Heads, num_tokens: int, context: int) -> int:
    """Two products over each pair of a token and a key that it sees; the tokens end the context."""
    pairs = num_tokens * (context - num_tokens) + num_tokens * (num_tokens + 1) // 2
    return 4 * heads.num_q_heads * heads.head_dim * pairs


@dataclass(frozen=True, slots=True, kw_only=True)
class ModelShape:
    """A decoder whose layers are alike; the fields are those of its config.json."""

    hidden_size: int
    num_hidden_layers: int
    num_attention_heads: int
    num_key_value_heads: int
    head_dim: int
    intermediate_size: int
    vocab_size: int
    tie_word_embeddings: bool

    @property
    def heads(self) -> Heads:
        return Heads(
            name="",
            num_q_heads=self.num_attention_heads,
            num_kv_heads=self.num_key_value_heads,
            head_dim=self.head_dim,
        )

    @property
    def num_layer_weights(self) -> int:
        """Weights of the matrices of one layer."""
        rows = 2 * (self.num_attention_heads + self.num_key_value_heads) * self.head_dim
        return self.hidden_size * (rows + 3 * self.intermediate_size)

    @property
    def num_read_weights(self) -> int:
        """Weights of the matrices that a decode step reads whole: the layers' and the head's."""
        return self.num_hidden_layers * self.num_layer_weights + self.hidden_size * self.vocab_size

    def decode_bytes(self, num_seqs: int, context: int, element_bytes: int) -> int:
        """Bytes that one decode step has to read: weights and KV."""
        rows = 2 * self.num_hidden_layers * self.num_key_value_heads * num_seqs * context
        return element_bytes * (self.num_read_weights + rows * self.head_dim)

    def prefill_flops(self, num_tokens: int) -> int:
        """Operations of a prompt without a prefix, whose last token alone gets logits."""
        products = 2 * num_tokens * self.num_hidden_layers * self.num_layer_weights
        attention = self.num_hidden_layers * prefill_attention_flops(self.heads, num_tokens, num_tokens)
        return products + attention + 2 * self.hidden_size * self.vocab_size


QWEN2_387M: Final = ModelShape(
    hidden_size=896,
    num_hidden_layers=24,
    num_attention_heads=14,
    num_key_value_heads=2,
    head_dim=64,
    intermediate_size=4864,
    vocab_size=32_000,
    tie_word_embeddings=True,
)
LLAMA3_8B: Final = ModelShape(
    hidden_size=4096,
    num_hidden_layers=32,
    num_attention_heads=32,
    num_key_value_heads=8,
    head_dim=128,
    intermediate_size=14_336,
    vocab_size=128_256,
    tie_word_embeddings=False,
)
TINY: Final = ModelShape(
    hidden_size=32,
    num_hidden_layers=2,
    num_attention_heads=4,
    num_key_value_heads=2,
    head_dim=8,
    intermediate_size=48,
    vocab_size=64,
    tie_word_embeddings=False,
)

Cell = str | int | float | None


@dataclass(frozen=True, slots=True, kw_only=True)
class Table:
    """The results of a part; None stands for a cell that does not apply."""

    title: str
    columns: tuple[str, ...]
    rows: list[tuple[Cell, ...]]

    def markdown(self) -> str:
        """A heading and a table, numbers with three digits that count."""
        lines = [self.columns, ("---",) * len(self.columns)]
        lines += [tuple(show(cell) for cell in row) for row in self.rows]
        return f"### {self.title}\n\n" + "\n".join(f"| {' | '.join(line)} |" for line in lines) + "\n"


def show(cell: Cell) -> str:
    if cell is None:
        return "–"
    if not isinstance(cell, float):
        return str(cell)
    if cell == 0 or not math.isfinite(cell):
        return str(cell)
    digits = 2 - math.floor(math.log10(abs(cell)))
    return f"{cell:,.{max(0, digits)}f}" if digits <= 6 else f"{cell:.2e}"


def attempt(measure: Callable[[], float], scale: float = 1.0) -> Cell:
    """Return a measurement times `scale`; a contender that fails is no reason to stop."""
    try:
        return measure() * scale
    except ModuleNotFoundError as error:
        return f"{error.name} is not installed"
    except Exception as error:
        return f"{type(error).__name__}: {str(error).splitlines()[0][:60] if str(error) else ''}"


def attempt_peer(setup: Setup, measure: Callable[[], float], scale: float) -> Cell:
    """`attempt`, while there is time."""
    return attempt(measure, scale) if time.monotonic() < setup.ends_s else "no time left"


def percent(floor_s: float, seconds: Cell) -> Cell:
    """Which part of a time the limit explains."""
    return f"{floor_s / seconds:.0%}" if isinstance(seconds, float) and seconds > 0 else None
