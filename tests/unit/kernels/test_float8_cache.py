"""A KV cache of 8 bits: every build and torch against a float64 reference that rounds the cache alike."""

from __future__ import annotations

from dataclasses import replace

import pytest
import torch
from torch import Tensor

from baton_kernels.cpu.attention import CpuAttention
from baton_kernels.cpu.invariant import InvariantCpuAttention
from baton_kernels.cpu.variants import CpuVariant
from baton_kernels.interface.cache_dtype import FLOAT8, UNSCALED, LayerKVScales, encode
from baton_kernels.interface.kernels import AttentionKernels
from baton_kernels.reference.torch_attention import TorchAttention
from tests.attention_reference import attention_reference, write_kv_reference
from tests.tiers import exhaustive
from tests.unit.kernels.cpu_builds import builds, load
from tests.unit.kernels.paged_batches import LAYER, PagedBatch, make_paged_batch
from tests.unit.kernels.test_cpu_attention import (
    ROUNDING,
    TOLERANCE,
    is_v_transposed,
    transpose_back,
    transpose_v,
)

pytestmark = [pytest.mark.slow, pytest.mark.usefixtures("one_thread")]

SCALES = LayerKVScales(k=0.37, v=2.9)
SLICES = ((1, 1), (1, 97), (3, 3), (9, 70), (1, 64), (2, 9), (1, 300))
formats = pytest.mark.parametrize("kv_dtype", FLOAT8, ids=str)
dtypes = pytest.mark.parametrize("dtype", TOLERANCE, ids=str)
scaled = pytest.mark.parametrize("scales", [UNSCALED, SCALES], ids=["", "scaled"])


def with_new_tokens(step: PagedBatch) -> PagedBatch:
    """The step with other K and V to write, in the dtype of its queries, as views of one projection."""
    generator = torch.Generator().manual_seed(1)
    shape = (len(step.q), step.q.shape[1] + 2 * step.k.shape[1], step.q.shape[2])
    fused = (torch.randn(shape, generator=generator) * 3.0).to(step.q.dtype)
    _, k, v = fused.split((step.q.shape[1], step.k.shape[1], step.v.shape[1]), dim=1)
    return replace(step, k=k, v=v)


def check(
    kernels: AttentionKernels, step: PagedBatch, scales: LayerKVScales, softcap: float | None = None
) -> None:
    """Write the step's K and V, which must lie in the pool bit by bit as the reference has it, and attend."""
    is_transposed = kernels.v_axes == "HDT"
    expected_pool = step.kv_pool.clone()
    write_kv_reference(step.k, step.v, expected_pool, LAYER, step.batch, scales)
    pool = transpose_v(step.kv_pool) if is_transposed else step.kv_pool.clone()
    kernels.write(step.k, step.v, pool, LAYER, step.batch, scales)
    written = transpose_back(pool) if is_transposed else pool
    torch.testing.assert_close(written.float(), expected_pool.float(), rtol=0, atol=0, equal_nan=True)
    out = kernels.attention(
        step.q, step.k, step.v, pool, LAYER, step.batch, step.scale, softcap, scales=scales
    )
    expected = attention_reference(
        step.q, expected_pool, LAYER, step.batch, step.scale, softcap, scales=scales
    )
    assert out.dtype == step.q.dtype
    # Errors grow with the values, which are up to about 3 times the scale of V.
    atol = TOLERANCE[out.dtype] * 3 * max(1, scales.v)
    torch.testing.assert_close(out.double(), expected, rtol=ROUNDING[out.dtype], atol=atol)


def kernels_of(variant: CpuVariant, dtype: torch.dtype) -> tuple[AttentionKernels, AttentionKernels]:
    """The kernels that a worker which computes in `dtype` would choose, and its batch-invariant ones."""
    library = load(variant)
    attention = CpuAttention(library, is_v_transposed=is_v_transposed(variant, dtype))
    return attention, InvariantCpuAttention(library)


@builds
@dtypes
@pytest.mark.parametrize(
    ("kv_dtype", "scales"),
    [
        (torch.float8_e4m3fn, SCALES),
        (torch.float8_e5m2, UNSCALED),
        exhaustive(torch.float8_e4m3fn, UNSCALED),
        exhaustive(torch.float8_e5m2, SCALES),
    ],
    ids=[
        "torch.float8_e4m3fn-scaled",
        "torch.float8_e5m2",
        "torch.float8_e4m3fn",
        "torch.float8_e5m2-scaled",
    ],
)
def test_each_build_equals_the_reference(
    variant: CpuVariant, dtype: torch.dtype, kv_dtype: torch.dtype, scales: LayerKVScales
) -> None:
    for kernels in kernels_of(variant, dtype):
        for head_dim, group, block_size in ((64, 7, 32), (80, 1, 16), (17, 20, 3)):
            shape = {"head_dim": head_dim, "group": group, "block_size": block_size}
            step = make_paged_batch(SLICES, dtype=dtype, kv_dtype=kv_dtype, **shape)
            check(kernels, with_new_tokens(step), scales)


@builds
@dtypes
def test_windows_and_caps_equal_the_reference(variant: CpuVariant, dtype: torch.dtype) -> None:
    for kernels in kernels_of(variant, dtype):
        for window in (1, 40, None):
            step = make_paged_batch(
                SLICES, window=window, dtype=dtype, kv_dtype=torch.float8_e4m3fn, block_size=32
            )
            for softcap in (None, 3.0):
                check(kernels, with_new_tokens(step), SCALES, softcap)


@pytest.mark.parametrize("dtype", [*TOLERANCE, torch.float16], ids=str)
@formats
@scaled
def test_torch_equals_the_reference(
    dtype: torch.dtype, kv_dtype: torch.dtype, scales: LayerKVScales, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setitem(TOLERANCE, torch.float16, 2e-3)
    monkeypatch.setitem(ROUNDING, torch.float16, 2**-10)
    for window, softcap in ((None, None), (20, None), (40, 3.0)):
        step = make_paged_batch(SLICES, window=window, dtype=dtype, kv_dtype=kv_dtype)
        check(TorchAttention(), with_new_tokens(step), scales, softcap)


def every_value() -> Tensor:
    """Values next to all numbers of both formats and halfway between them, and what is beyond, `[n]`."""
    steps = torch.arange(256, dtype=torch.uint8)
    numbers = torch.cat([steps.view(kv_dtype).double() for kv_dtype in FLOAT8])
    numbers = numbers[numbers.isfinite()].unique()
    between = torch.cat((numbers, (numbers[1:] + numbers[:-1]) / 2)).float()
    towards = [torch.nextafter(between, torch.full_like(between, end)) for end in (-torch.inf, torch.inf)]
    beyond = torch.tensor([464.0, 480.0, 61440.0, 65536.0, 3e38, 1e-40, torch.inf, torch.nan])
    return torch.cat((between, *towards, beyond, -beyond))


@builds
@formats
def test_every_value_is_rounded_to_nearest_and_saturates(variant: CpuVariant, kv_dtype: torch.dtype) -> None:
    values = every_value()
    head_dim = 16
    num_tokens = -(-len(values) // head_dim)
    padded = torch.zeros(num_tokens * head_dim)
    padded[: len(values)] = values
    step = make_paged_batch([(num_tokens, num_tokens)], num_kv_heads=1, head_dim=head_dim, kv_dtype=kv_dtype)
    k = padded.view(num_tokens, 1, head_dim)
    expected, pool = step.kv_pool.clone(), step.kv_pool.clone()
    write_kv_reference(k, -k, expected, LAYER, step.batch)
    CpuAttention(load(variant)).write(k, -k, pool, LAYER, step.batch)
    torch.testing.assert_close(pool.float(), expected.float(), rtol=0, atol=0, equal_nan=True)
    largest = torch.finfo(kv_dtype).max
    assert encode(torch.tensor([torch.inf, -1e30]), kv_dtype).tolist() == [largest, -largest]


@builds
@dtypes
@formats
def test_every_number_of_the_cache_is_read_exactly(
    variant: CpuVariant, dtype: torch.dtype, kv_dtype: torch.dtype
) -> None:
    """A query that sees one token alone gets its V."""
    codes = torch.arange(256, dtype=torch.uint8).view(kv_dtype)
    for kernels in kernels_of(variant, dtype):
        for query_len in (1, 2):
            step = make_paged_batch(
                [(query_len, 40)],
                window=1,
                num_kv_heads=1,
                head_dim=256,
                block_size=32,
                dtype=dtype,
                kv_dtype=kv_dtype,
            )
            pool = transpose_v(step.kv_pool) if kernels.v_axes == "HDT" else step.kv_pool.clone()
            v = codes.to(dtype).expand(query_len, 1, 256)
            kernels.write(torch.zeros_like(v), v, pool, LAYER, step.batch)
            out = kernels.attention(step.q, v, v, pool, LAYER, step.batch, step.scale)
            expected = encode(codes.float(), kv_dtype).to(dtype).expand_as(out)
            torch.testing.assert_close(out, expected, rtol=0, atol=0, equal_nan=True)


@builds
@formats
def test_rotated_keys_are_written_as_attention_gets_them(variant: CpuVariant, kv_dtype: torch.dtype) -> None:
    for dtype in TOLERANCE:
        kernels, _ = kernels_of(variant, dtype)
        step = with_new_tokens(
            make_paged_batch([(5, 9), (1, 70)], head_dim=20, dtype=dtype, kv_dtype=kv_dtype)
        )
        angles = torch.rand(len(step.q), 1, 20)
        cos, sin = angles.cos().to(dtype), angles.sin().to(dtype)
        pool = transpose_v(step.kv_pool) if kernels.v_axes == "HDT" else step.kv_pool.clone()
        expected = pool.clone()
        _, k = kernels.rotate_and_write(
            step.q, step.k, step.v, cos, sin, pool, LAYER, step.batch, scales=SCALES
        )
        kernels.write(k, step.v, expected, LAYER, step.batch, scales=SCALES)
        torch.testing.assert_close(pool.float(), expected.float(), rtol=0, atol=0, equal_nan=True)
        assert not torch.equal(k, step.k)


@formats
def test_blocks_are_copied_as_bytes(kv_dtype: torch.dtype) -> None:
    pool = torch.arange(4 * 240, dtype=torch.int64).to(torch.uint8).view(kv_dtype).view(4, 2, 2, 2, 3, 10)
    before = pool.clone()
    TorchAttention().copy_blocks(pool, [(0, 1), (1, 2), (2, 0)])
    assert torch.equal(pool.view(torch.uint8), before.view(torch.uint8)[[2, 0, 1, 3]])
