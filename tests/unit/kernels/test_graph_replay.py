"""Recorded passes of C++ kernels and torch's operators, replayed on other numbers."""

from __future__ import annotations

import subprocess
import sys
import threading

import pytest
import torch
from torch import Tensor
from torch.nn import functional

from baton_kernels.cpu.graph_replay import GraphReplay, NotRecordableError
from baton_kernels.cpu.layers import CpuLayers
from baton_kernels.cpu.onednn import OneDnnProduct, can_pack
from baton_kernels.cpu.packed import PackedProduct
from baton_kernels.cpu.variants import PLAIN
from tests.unit.kernels.cpu_builds import load

ROWS, SIZE = 3, 64


def make_numbers(*shape: int, seed: int = 0) -> Tensor:
    return torch.randn(shape, generator=torch.Generator().manual_seed(seed))


class Pass:
    """Something of each kind: kernels, operators, views, sums in place, memory that somebody else writes."""

    def __init__(self) -> None:
        library = load(PLAIN)
        self.layers = CpuLayers(library)
        self.table = make_numbers(50, SIZE, seed=1)
        self.product = PackedProduct(library, make_numbers(2 * SIZE, SIZE, seed=2) / 8, None)
        self.small = make_numbers(SIZE, 2 * SIZE, seed=3) / 8
        self.norm = make_numbers(SIZE, seed=4)

    def __call__(self, token_ids: Tensor) -> Tensor:
        change = self.table[token_ids] * 2.0
        total = torch.zeros_like(change)
        for _ in range(3):
            normed, total = self.layers.add_rms_norm(change, total, self.norm, 1e-5)
            first, second = torch.split(self.product(normed), [SIZE, SIZE], dim=-1)
            change = functional.linear(torch.cat((first.contiguous(), second), dim=-1), self.small)
            change += normed.view(ROWS, 2, -1).flatten(-2)
        return self.layers.rms_norm(total, self.norm, 1e-5)


@torch.inference_mode()
def test_a_replay_computes_what_the_pass_would() -> None:
    compute, token_ids = Pass(), torch.tensor([4, 9, 30])
    calls, result = GraphReplay.record(lambda: compute(token_ids))
    assert torch.equal(result, compute(token_ids.clone()))
    for other in ([7, 7, 1], [49, 0, 12], [4, 9, 30]):
        token_ids.copy_(torch.tensor(other))
        for _ in range(2):
            calls.replay()
            assert torch.equal(result, compute(torch.tensor(other)))


@torch.inference_mode()
def test_pointwise_operators_and_conversions_write_where_their_results_lie() -> None:
    positions, frequencies = torch.tensor([4, 9, 30]), make_numbers(SIZE)

    def compute(numbers: Tensor) -> Tensor:
        angles = numbers[:, None] * frequencies
        return torch.stack((angles.cos().bfloat16(), angles.sin().to(torch.bfloat16)))

    calls, result = GraphReplay.record(lambda: compute(positions))
    positions.copy_(torch.tensor([7, 0, 1000]))
    calls.replay()
    assert torch.equal(result, compute(torch.tensor([7, 0, 1000])))


@torch.inference_mode()
def test_a_replay_refuses_a_row_that_a_table_has_not() -> None:
    layers, table, token_ids = CpuLayers(load(PLAIN)), make_numbers(50, SIZE), torch.tensor([4, 9, 30])
    calls, _ = GraphReplay.record(lambda: layers.look_up(table, token_ids))
    token_ids[1] = 50
    with pytest.raises(IndexError, match="a row is out of range"):
        calls.replay()


@torch.inference_mode()
def test_a_pass_that_looks_at_a_number_is_refused_and_the_next_is_not() -> None:
    x = make_numbers(ROWS, SIZE)
    with pytest.raises(NotRecordableError, match=r"aten\.item") as caught:
        GraphReplay.record(lambda: x * float(x[0, 0].item()))
    assert torch.equal(caught.value.result, x * x[0, 0])
    calls, result = GraphReplay.record(lambda: x * 2)
    x.fill_(3.0)
    calls.replay()
    assert (result == 6.0).all()


@torch.inference_mode()
def test_what_other_threads_call_meanwhile_is_not_recorded() -> None:
    compute, token_ids = Pass(), torch.tensor([4, 9, 30])
    others = make_numbers(ROWS, SIZE, seed=9)
    changed = others.clone()

    def add() -> None:
        compute.layers.add_rms_norm(torch.ones_like(changed), changed, compute.norm, 1e-5)

    def run() -> Tensor:
        thread = threading.Thread(target=add)
        thread.start()
        thread.join()
        return compute(token_ids)

    calls, result = GraphReplay.record(run)
    calls.replay()
    assert torch.equal(changed, others + 1)
    assert torch.equal(result, compute(token_ids))


@torch.inference_mode()
def test_a_weight_that_onednn_has_packed_is_multiplied_again() -> None:
    if not can_pack(torch.float32):
        pytest.skip("this torch packs no weights for oneDNN")
    weight, x = make_numbers(512, 512), make_numbers(ROWS, 512, seed=1)
    layer = OneDnnProduct(weight, None)
    calls, result = GraphReplay.record(lambda: layer(x) * 2)
    x.copy_(make_numbers(ROWS, 512, seed=2))
    calls.replay()
    assert torch.equal(result, layer(x) * 2)


@torch.inference_mode()
def test_a_pass_that_makes_tensors_of_a_library_is_refused() -> None:
    x = make_numbers(ROWS, SIZE)
    with pytest.raises(NotRecordableError, match=r"a tensor of the layout torch\._mkldnn"):
        GraphReplay.record(lambda: x.to_mkldnn().to_dense())


@pytest.mark.slow
def test_recording_does_not_import_the_compiler_of_torch() -> None:
    """The import takes a second or two, which the first decode step would take longer."""
    program = (
        "import sys, torch\n"
        "from baton_kernels.cpu.graph_replay import GraphReplay\n"
        "numbers = torch.ones(3)\n"
        "calls, result = GraphReplay.record(lambda: numbers + 1)\n"
        "numbers += 1\n"
        "calls.replay()\n"
        "assert result.tolist() == [3.0, 3.0, 3.0], result\n"
        "assert 'torch._dynamo' not in sys.modules\n"
    )
    done = subprocess.run([sys.executable, "-c", program], capture_output=True, text=True, check=False)
    assert done.returncode == 0, done.stderr
