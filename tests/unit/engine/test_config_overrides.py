"""Values that come before those of config.json, for native models and those of Transformers."""

from __future__ import annotations

from pathlib import Path

import pytest
import torch

from baton_core.errors import IncompatibleWorkerError
from baton_engine.checkpoint.config_fields import ConfigFields
from baton_engine.checkpoint.dummy_weights import DummyWeights
from baton_engine.engine_settings import EngineSettings
from baton_engine.loading import load_model
from baton_engine.models.registry import read_model_config
from baton_engine.sizing import KVCacheSettings
from baton_engine.weight_check import check_weights
from tests.models import make_model


@pytest.mark.parametrize("variant", ["llama", "gpt-neox"])
def test_overrides_come_before_the_file(tmp_path: Path, variant: str) -> None:
    folder = make_model(tmp_path / variant, variant)
    assert read_model_config(folder).max_position_embeddings != 64
    overrides = {"max_position_embeddings": 64}
    assert read_model_config(folder, overrides=overrides).max_position_embeddings == 64
    cache = KVCacheSettings(kv_cache_memory_bytes=1 << 20)
    plain, changed = (
        load_model(EngineSettings(model=str(folder), kv_cache=cache, config_overrides=values))
        for values in ({}, overrides)
    )
    assert changed.kv_cache.max_model_len == 64
    assert plain.read.weights == changed.read.weights
    assert plain.read.description != changed.read.description


def test_a_new_version_of_the_weights_is_checked_under_the_same_overrides(tmp_path: Path) -> None:
    folder, overrides = make_model(tmp_path / "llama", "llama"), {"rms_norm_eps": 0.5}
    cache = KVCacheSettings(kv_cache_memory_bytes=1 << 20)
    read = load_model(EngineSettings(model=str(folder), kv_cache=cache, config_overrides=overrides)).read
    assert check_weights(folder, read, overrides) == read.weights
    with pytest.raises(IncompatibleWorkerError, match=r"config\.rms_norm_eps is "):
        check_weights(folder, read)


def test_fields_are_updated_in_a_copy() -> None:
    fields = ConfigFields("here", {"a": 1, "b": 2})
    changed = fields.updated({"b": 3, "c": None})
    assert [changed.raw(key) for key in "abc"] == [1, 3, None]
    assert fields.raw("b") == 2


def test_dummy_weights_follow_from_their_names(tmp_path: Path) -> None:
    one, other = (DummyWeights(tmp_path, torch.bfloat16) for _ in range(2))
    tensor = one.load("a.weight", (3, 4))
    assert (tensor.dtype, tensor.shape) == (torch.bfloat16, (3, 4))
    assert torch.equal(tensor, other.load("a.weight", (3, 4)))
    assert not torch.equal(tensor, one.load("b.weight", (3, 4)))
    stacked = other.load_stacked(["a.weight", "b.weight"], [(3, 4)] * 2, torch.float32)
    assert (stacked.dtype, stacked.shape) == (torch.float32, (6, 4))
    assert torch.equal(stacked[:3].bfloat16(), tensor)
    assert "anything" in one
    assert one.loaded_bytes == 2 * tensor.nbytes
    assert one.digest() == other.digest() == "dummy"
