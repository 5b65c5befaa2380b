"""The table of configurations: what is in it, what an architecture gets, and how it is written."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import pytest
import torch

from baton_kernels.triton import kernel_configs
from baton_kernels.triton.kernel_configs import (
    DEFAULT_ARCH,
    HEAD_PADS,
    TABLE_PATH,
    KernelConfig,
    format_table,
    kernel_config,
    read_table,
    shape_class,
    tuned_archs,
)

KERNELS = ("attention_splits", "attention_chunks")
ROW = {"rows": 16, "tile": 32, "num_warps": 2, "num_stages": 4, "programs_per_sm": 8}


@pytest.fixture
def measured_table(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> dict[str, Any]:
    """The committed one with an entry for sm_77, whose decode is measured for one class."""
    entry = {"measured": "on a device", "attention_splits": {"16-bit, head 128": ROW}}
    table = {**read_table(), "77": entry}
    monkeypatch.setattr(kernel_configs, "read_table", lambda: table)
    kernel_config.cache_clear()
    return table


@pytest.mark.parametrize("kernel", KERNELS)
@pytest.mark.parametrize("dtype", [torch.bfloat16, torch.float32], ids=str)
@pytest.mark.parametrize("head_pad", HEAD_PADS)
def test_every_class_has_a_default(kernel: str, dtype: torch.dtype, head_pad: int) -> None:
    config = kernel_config(kernel, dtype, head_pad, DEFAULT_ARCH)
    assert config == kernel_config(kernel, dtype, head_pad, 75)
    assert (config.programs_per_sm > 0) == (kernel == "attention_splits")


def test_heads_share_what_their_padded_size_has() -> None:
    assert shape_class(torch.float16, 80) == shape_class(torch.bfloat16, 128) == "16-bit, head 128"
    assert shape_class(torch.float32, 4) == "32-bit, head 16"


def test_a_measured_architecture_has_its_own_and_the_defaults_for_the_rest(
    measured_table: dict[str, Any],
) -> None:
    assert tuned_archs() == (DEFAULT_ARCH, 77)
    assert kernel_config("attention_splits", torch.float16, 96, 77) == KernelConfig(**ROW)
    for kernel, dtype, head_dim, arch in (
        ("attention_splits", torch.float16, 96, 90),
        ("attention_splits", torch.float16, 64, 77),
        ("attention_chunks", torch.float16, 96, 77),
    ):
        default = measured_table["default"][kernel][shape_class(dtype, head_dim)]
        assert kernel_config(kernel, dtype, head_dim, arch) == KernelConfig(**default)


def test_the_table_says_where_it_was_measured_and_is_written_as_it_lies_there() -> None:
    table = json.loads(TABLE_PATH.read_text())
    assert all(isinstance(entry["measured"], str) for entry in table.values())
    assert format_table(table) == TABLE_PATH.read_text()
