"""An adapter's folder is read, and what cannot be had is refused by name."""

from __future__ import annotations

import json
import math
from pathlib import Path
from typing import Any

import pytest
import torch
from safetensors.torch import save_file

from baton_core.errors import InvalidRequestError
from baton_sandbox.adapter_folder import read_adapter_folder

CONFIG: dict[str, Any] = {"peft_type": "LORA", "r": 8, "lora_alpha": 16}


def write(folder: Path, tensors: dict[str, torch.Tensor] | None = None, **fields: Any) -> Path:
    folder.mkdir(exist_ok=True)
    (folder / "adapter_config.json").write_text(json.dumps(CONFIG | fields))
    save_file(tensors or {"a": torch.zeros(2)}, folder / "adapter_model.safetensors")
    return folder


@pytest.mark.parametrize(
    ("fields", "said"),
    [
        ({"peft_type": "LOHA"}, "peft_type is 'LOHA'; allowed: 'LORA'"),
        ({"use_dora": True}, "use_dora is True; allowed: nothing"),
        ({"lora_bias": True}, "lora_bias is True"),
        ({"bias": "all"}, "bias is 'all'; allowed: 'none'"),
        ({"modules_to_save": ["lm_head"]}, r"modules_to_save is \['lm_head'\]"),
        ({"init_lora_weights": "pissa"}, "init_lora_weights is 'pissa'; allowed: True, False"),
        ({"trainable_token_indices": [1]}, "trainable_token_indices"),
        ({"target_parameters": ["experts"]}, "target_parameters"),
        ({"r": 0}, "r is 0; allowed: a positive number without fraction"),
        ({"r": True}, "r is True"),
        ({"lora_alpha": "x"}, "lora_alpha is 'x'; allowed: a positive number"),
        ({"rank_pattern": {"(": 2}}, r"rank_pattern is '\('"),
        ({"rank_pattern": {"q_proj": 32}}, "r is 32; allowed: 1 to 16, the max_lora_rank"),
    ],
)
def test_what_cannot_be_had_is_refused_by_its_field(
    tmp_path: Path, fields: dict[str, Any], said: str
) -> None:
    with pytest.raises(InvalidRequestError, match=said):
        read_adapter_folder(write(tmp_path / "a", **fields), 16)


def test_ranks_and_scales_follow_the_first_pattern_that_matches_a_names_end(tmp_path: Path) -> None:
    patterns = {"rank_pattern": {"layers.1.*q_proj": 2, "q_proj": 4}, "alpha_pattern": {"q_proj": 4}}
    read = read_adapter_folder(write(tmp_path / "a", **patterns))
    assert [read.rank_of(f"model.layers.{n}.self_attn.q_proj") for n in (0, 1)] == [4, 2]
    assert read.scale_of("model.layers.0.self_attn.q_proj") == 1.0
    assert (read.rank_of("model.k_proj"), read.scale_of("model.k_proj"), read.max_rank) == (8, 2.0, 8)
    stabilized = read_adapter_folder(write(tmp_path / "b", use_rslora=True))
    assert stabilized.scale_of("any") == 16 / math.sqrt(8)


def test_the_digest_follows_tensors_and_scaling_and_nothing_else(tmp_path: Path) -> None:
    one = read_adapter_folder(write(tmp_path / "a", {"a": torch.ones(2), "b": torch.zeros(3)})).digest
    again = write(tmp_path / "b", {"b": torch.zeros(3), "a": torch.ones(2)}, target_modules=["x"])
    assert read_adapter_folder(again).digest == one
    others = [
        write(tmp_path / "c", {"a": torch.ones(2), "b": torch.ones(3)}),
        write(tmp_path / "d", {"a": torch.ones(2), "b": torch.zeros(3)}, lora_alpha=8),
    ]
    assert len({one, *(read_adapter_folder(folder).digest for folder in others)}) == 3


def test_damaged_folders_are_refused(tmp_path: Path) -> None:
    with pytest.raises(InvalidRequestError, match=r"lora_path is .*; allowed: a folder with adapter_config"):
        read_adapter_folder(tmp_path / "none")
    folder = write(tmp_path / "a")
    (folder / "adapter_model.safetensors").write_bytes(b"\xff" * 20)
    with pytest.raises(InvalidRequestError, match="a file of safetensors"):
        read_adapter_folder(folder)
    (folder / "adapter_model.safetensors").unlink()
    with pytest.raises(InvalidRequestError, match=r"adapter_model\.safetensors or adapter_model\.bin"):
        read_adapter_folder(folder)
    (folder / "adapter_config.json").write_text("[]")
    with pytest.raises(InvalidRequestError, match="allowed: an object"):
        read_adapter_folder(folder)
