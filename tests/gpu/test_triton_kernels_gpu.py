"""The cache, layer and sampling kernels on a device, against torch on the CPU."""

from __future__ import annotations

import pytest
import torch

from baton_kernels.interface.kernels import AttentionBatch, Function, LayerKernels, rotate
from baton_kernels.interface.sampling import SampleBatch
from baton_kernels.reference.torch_sampling import TorchSampling
from baton_kernels.selection import select_kernels

pytestmark = [
    pytest.mark.gpu,
    pytest.mark.skipif(not torch.cuda.is_available(), reason="needs a CUDA device"),
]

TOLERANCE = {torch.float32: 2e-6, torch.bfloat16: 2**-6, torch.float16: 2**-9}
VOCAB_SIZE = 151_936


def close(actual: torch.Tensor, expected: torch.Tensor, dtype: torch.dtype) -> None:
    torch.testing.assert_close(
        actual.cpu().double(), expected.double(), rtol=TOLERANCE[dtype], atol=TOLERANCE[dtype]
    )


@pytest.mark.parametrize("dtype", TOLERANCE, ids=str)
@pytest.mark.parametrize(("head_dim", "rotary_dim"), [(64, 64), (80, 32), (96, 96), (128, 128), (256, 128)])
def test_rotation_and_cache_equal_the_reference(dtype: torch.dtype, head_dim: int, rotary_dim: int) -> None:
    kernels = select_kernels("cuda").attention
    placed = {"query_lens": [5, 1], "context_lens": [9, 40], "block_tables": [[3], [1, 4]], "block_size": 32}
    batch = AttentionBatch.build(**placed, device="cuda")
    q, k, v = (torch.randn(6, heads, head_dim).to(dtype) for heads in (8, 2, 2))
    angles = torch.randn(6, 1, rotary_dim // 2).repeat(1, 1, 2)
    cos, sin = angles.cos().to(dtype), angles.sin().to(dtype)
    pool = torch.zeros((6, 2, 2, 2, 32, head_dim), dtype=dtype, device="cuda")
    turned = kernels.rotate_and_write(*(x.cuda() for x in (q, k, v, cos, sin)), pool, 1, batch)
    for actual, x in zip(turned, (q, k), strict=True):
        close(actual, rotate(x.double(), cos.double(), sin.double()), dtype)
    slots = batch.slot_mapping.cpu()
    cached = pool.cpu()[slots // 32, 1, :, :, slots % 32]
    assert torch.equal(cached[:, 0], turned[1].cpu())
    assert torch.equal(cached[:, 1], v)
    assert pool.count_nonzero() == cached.count_nonzero()


@pytest.mark.parametrize("dtype", TOLERANCE, ids=str)
@pytest.mark.parametrize("size", [80, 896, 5120, 16_384])
def test_layers_equal_the_reference(dtype: torch.dtype, size: int) -> None:
    layers, reference = select_kernels("cuda").layers, LayerKernels()
    x, residual, weight = (torch.randn(shape).to(dtype) for shape in ((33, size), (33, size), (size,)))
    total = (x + residual).double()
    close(layers.rms_norm(x.cuda(), weight.cuda(), 1e-6), reference.rms_norm(x, weight, 1e-6), dtype)
    normed, summed = layers.add_rms_norm(x.cuda(), residual.cuda(), weight.float().cuda(), 1e-6)
    close(summed, total, dtype)
    expected = total * (total.square().mean(-1, keepdim=True) + 1e-6).rsqrt() * weight.double()
    close(normed, expected, dtype)
    gate_up = torch.randn(33, 2 * size).to(dtype)
    expected = reference.apply_mul(Function.SILU, gate_up.double())
    close(layers.apply_mul(Function.SILU, gate_up.cuda()), expected, dtype)


@pytest.mark.parametrize("dtype", [torch.float32, torch.bfloat16], ids=str)
@pytest.mark.parametrize("spread", [0.0, 2.5, 10.0])
def test_both_samplers_draw_the_same_tokens(dtype: torch.dtype, spread: float) -> None:
    filters = [(0, 1.0, 0.0), (50, 1.0, 0.0), (0, 0.9, 0.0), (20, 0.8, 0.05), (1, 1.0, 0.0)]
    logits = (torch.randn(25, VOCAB_SIZE) * spread).to(dtype)
    top_k, top_p, min_p = zip(*(filters * 5), strict=True)
    values = {"top_k": top_k, "top_p": top_p, "min_p": min_p, "temperature": [0.0, *[0.7, 1.3] * 12]}
    batches = [
        SampleBatch.build(seeds=range(25), positions=range(100, 125), **values, device=device)
        for device in ("cuda", "cpu")
    ]
    drawn = select_kernels("cuda").sampling.sample(logits.cuda(), batches[0])
    assert drawn.tolist() == TorchSampling().sample(logits, batches[1]).tolist()
