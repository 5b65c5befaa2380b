"""Values that come before those of config.json, for native models and those of Transformers."""

from __future__ import annotations

import copy
from dataclasses import replace
from pathlib import Path
from typing import Any, Final

import pytest
import torch

from baton.config.engine_args import EngineArgs
from baton.config.engine_folders import pools, with_local_folders
from baton_core.errors import IncompatibleWorkerError
from baton_engine.checkpoint.config_fields import ConfigFields
from baton_engine.checkpoint.dummy_weights import DummyWeights
from baton_engine.checkpoint.folder_description import describe_folder
from baton_engine.checkpoint.weights import Part
from baton_engine.engine_settings import EngineSettings
from baton_engine.loading import load_model
from baton_engine.models.registry import read_model_config
from baton_engine.models.transformers_config import load_transformers_config
from baton_engine.sizing import KVCacheSettings
from baton_engine.weight_check import check_weights
from baton_router.text.model_folder import read_model_folder
from baton_router.text.model_to_serve import read_served_model
from tests.models import change_config, make_model

YARN: Final = {"rope_type": "yarn", "factor": 4.0, "original_max_position_embeddings": 128}
LINEAR: Final = {"rope_type": "linear", "factor": 2.0}


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


@pytest.mark.parametrize("variant", ["llama", "granite"])
@pytest.mark.parametrize(
    ("file", "overrides", "section"),
    [
        (
            {"rope_scaling": YARN, "rope_theta": 5e5},
            {"rope_parameters": {**LINEAR, "rope_theta": 7e5}},
            {**LINEAR, "rope_theta": 7e5},
        ),
        (
            {"rope_scaling": YARN, "rope_theta": 5e5},
            {"rope_parameters": LINEAR},
            {**LINEAR, "rope_theta": 5e5},
        ),
        (
            {"rope_parameters": {**YARN, "rope_theta": 1e6}},
            {"rope_scaling": LINEAR},
            {**LINEAR, "rope_theta": 1e6},
        ),
        (
            {"rope_parameters": {**YARN, "rope_theta": 1e6}},
            {"rope_parameters": LINEAR},
            {**LINEAR, "rope_theta": 1e6},
        ),
        (
            {"rope_parameters": {**YARN, "rope_theta": 1e6}},
            {"rope_scaling": LINEAR, "rope_theta": 5e5},
            {**LINEAR, "rope_theta": 5e5},
        ),
        (
            {"rope_parameters": {**YARN, "rope_theta": 1e6}},
            {"rope_scaling": None},
            {"rope_type": "default", "rope_theta": 1e6},
        ),
        (
            {"rope_parameters": {**LINEAR, "rope_theta": 1e6}},
            {"rope_theta": 5e5},
            {**LINEAR, "rope_theta": 5e5},
        ),
    ],
    ids=["older file", "base beside", "newer file", "same key", "both", "none", "base alone"],
)
def test_rope_is_overridden_under_either_name(
    variant: str, file: dict[str, Any], overrides: dict[str, Any], section: dict[str, Any], tmp_path: Path
) -> None:
    folder = make_model(tmp_path / "model", variant)
    plain = read_model_config(change_config(folder, rope_parameters=section))
    given = copy.deepcopy(overrides)
    change_config(folder, **{"rope_parameters": None, **file})
    config = read_model_config(folder, overrides=overrides)
    at_router = read_served_model(read_model_folder(folder, overrides=overrides)).description
    at_worker = describe_folder(folder, config, overrides)
    assert replace(at_router, tokenizer="") == replace(at_worker, tokenizer="")
    if variant == "llama":
        assert config.kv_variant == plain.kv_variant
    assert load_transformers_config(folder, overrides).rope_parameters == section
    assert overrides == given


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
    for part in (Part(0, range(1, 3)), Part(0, range(0, 3, 2)), Part(1, range(2, 4))):
        of_rank = one.load("a.weight", (3, 4), part=part)
        assert torch.equal(of_rank, tensor.index_select(part.axis, torch.tensor(part.indices))), part


@pytest.mark.parametrize("variant", ["llama", "granite"])
def test_yarn_by_overrides_makes_a_model_longer(variant: str, tmp_path: Path) -> None:
    folder = make_model(tmp_path / "model", variant, max_position_embeddings=128)
    assert read_model_config(folder, 512, {"rope_scaling": YARN}).max_position_embeddings == 512
    assert read_model_config(folder, 256, {"rope_scaling": LINEAR}).max_position_embeddings == 256


def test_a_function_changes_the_rope_of_an_older_file(tmp_path: Path) -> None:
    def doubled(config: Any) -> Any:
        config.rope_parameters = {**config.rope_parameters, "factor": 8.0}
        return config

    folder = make_model(tmp_path / "model")
    plain = read_model_config(
        change_config(folder, rope_parameters={**YARN, "factor": 8.0, "rope_theta": 5e5})
    )
    change_config(folder, rope_parameters=None, rope_scaling=YARN, rope_theta=5e5)
    overrides = with_local_folders(EngineArgs(model=str(folder), hf_overrides=doubled)).hf_overrides
    assert read_model_config(folder, overrides=overrides).kv_variant == plain.kv_variant


def test_whether_a_model_pools_is_said_by_its_files(tmp_path: Path) -> None:
    args = EngineArgs(str(make_model(tmp_path, "llama")))
    assert not pools(args)
    assert pools(replace(args, runner="pooling"))
    assert pools(replace(args, hf_overrides={"architectures": ["LlamaForSequenceClassification"]}))
