"""Processes that have loaded the same weights use one copy of them, which nobody can change."""

from __future__ import annotations

import gc
import os
import re
import subprocess
import sys
from dataclasses import dataclass
from pathlib import Path

import pytest
import torch
from torch import Tensor

from baton_engine import shared_weights
from baton_engine.shared_weights import MIN_BYTES, share_weights

SIZE = MIN_BYTES // 4


@dataclass
class Layer:
    """Two views of one piece of memory, a weight of another dtype, and one that is too small."""

    whole: Tensor
    part: Tensor
    codes: Tensor
    bias: Tensor


def load(seed: int = 0) -> Layer:
    generator = torch.Generator().manual_seed(seed)
    whole = torch.randn(4, SIZE, generator=generator)
    codes = torch.randint(0, 100, (MIN_BYTES,), generator=generator, dtype=torch.uint8)
    return Layer(whole, whole[1:3].t(), codes, torch.randn(8, generator=generator))


def inodes(pid: int | str = "self") -> set[str]:
    """Inodes of the shared weights that a process has mapped."""
    maps = Path(f"/proc/{pid}/maps").read_text()
    return {line.split()[4] for line in maps.splitlines() if "memfd:baton-weights-" in line}


def assert_equal(found: Layer, expected: Layer) -> None:
    for name in ("whole", "part", "codes", "bias"):
        assert torch.equal(getattr(found, name), getattr(expected, name))


def test_the_second_that_has_them_uses_the_memory_of_the_first(tmp_path: Path) -> None:
    first, second, expected = load(), load(), load()
    assert share_weights(first, "key", tmp_path) == share_weights(second, "key", tmp_path) == 5 * MIN_BYTES
    assert_equal(first, expected)
    assert_equal(second, expected)
    assert first.part.data_ptr() == first.whole.data_ptr() + 4 * SIZE
    assert len(inodes()) == 1
    first.whole.zero_()  # a page that is written is a process's own
    assert_equal(second, expected)
    del first
    gc.collect()
    third = load()
    assert share_weights(third, "key", tmp_path) == 5 * MIN_BYTES
    assert len(inodes()) == 1
    del second, third
    gc.collect()
    assert inodes() == set()
    fourth = load()
    share_weights(fourth, "key", tmp_path)
    assert_equal(fourth, expected)
    (registry,) = tmp_path.iterdir()
    assert len(registry.read_text().splitlines()) == 1


def test_other_weights_stay_with_their_process(tmp_path: Path, caplog: pytest.LogCaptureFixture) -> None:
    first, second = load(), load()
    second.codes[-1] += 1
    share_weights(first, "key", tmp_path)
    assert share_weights(second, "key", tmp_path) == 4 * MIN_BYTES
    assert second.codes[-1] == first.codes[-1] + 1
    assert not caplog.records
    assert share_weights(load(1), "key", tmp_path) == 0
    assert "of 327680 bytes of weights 0 are those of other processes" in caplog.text
    assert share_weights(load(1), "another key", tmp_path) == 5 * MIN_BYTES


CODE = """
import os, sys
from pathlib import Path
from baton_engine.shared_weights import share_weights
from tests.unit.engine.test_shared_weights import inodes, load
layer = load()
print(share_weights(layer, "key", Path(sys.argv[1])), *inodes(), flush=True)
sys.stdin.read()
print(float(layer.whole.sum()), flush=True)
"""


def start(folder: Path) -> subprocess.Popen[str]:
    return subprocess.Popen(
        [sys.executable, "-c", CODE, str(folder)],
        stdin=subprocess.PIPE,
        stdout=subprocess.PIPE,
        text=True,
        cwd=Path(__file__).parents[3],
    )


def line_of(process: subprocess.Popen[str]) -> str:
    assert process.stdout is not None
    return process.stdout.readline().strip()


@pytest.mark.slow
def test_memory_outlives_the_process_that_made_it_and_ends_with_the_last(tmp_path: Path) -> None:
    expected = float(load().whole.sum())
    with start(tmp_path) as first:
        said = line_of(first)
        assert re.fullmatch(rf"{5 * MIN_BYTES} [0-9]+", said)
        with start(tmp_path) as second:
            assert line_of(second) == said
            first.kill()
            first.wait(20)
            third = load()
            assert share_weights(third, "key", tmp_path) == 5 * MIN_BYTES
            assert inodes() == {said.split()[1]}
            output, _ = second.communicate(timeout=20)
            assert float(output) == float(third.whole.sum()) == expected
    del third
    gc.collect()
    fourth = load()
    assert share_weights(fourth, "key", tmp_path) == 5 * MIN_BYTES
    (registry,) = tmp_path.iterdir()
    assert registry.read_text().split()[0] == str(os.getpid())


def test_memory_that_can_still_change_is_not_taken(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    first, second = load(), load()
    with monkeypatch.context() as patch:
        patch.setattr(shared_weights, "_SEALS", 0)
        share_weights(first, "key", tmp_path)
    share_weights(second, "key", tmp_path)
    assert len(inodes()) == 2


def test_a_lock_that_is_held_is_waited_for_in_vain(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(shared_weights, "WAIT_S", 0.1)
    with (
        shared_weights._locked(tmp_path, "name"),
        pytest.raises(TimeoutError, match=r"is locked for more than 0\.1 s"),
        shared_weights._locked(tmp_path, "name"),
    ):
        pass
