"""A router and a worker read the same in a model's folder, and all in it that decides answers."""

from __future__ import annotations

import json
import shutil
from dataclasses import replace
from pathlib import Path

import pytest
from safetensors.torch import load_file, save_file

from baton_engine.checkpoint.folder_description import describe_folder
from baton_engine.engine_settings import EngineSettings
from baton_engine.loading import ReadModel, load_model
from baton_engine.models.registry import read_model_config
from baton_engine.sizing import KVCacheSettings
from baton_engine.weight_check import check_weights
from baton_router.text.model_folder import read_model_folder
from baton_router.text.model_to_serve import read_served_model
from tests.models import change_config

FIXTURES = Path(__file__).parents[2] / "fixtures" / "pooling"
FIXTURE = FIXTURES / "bert-mean-dense-normalize"
FOLDERS = sorted(path.parent for path in FIXTURES.glob("*/config.json"))


@pytest.mark.parametrize("folder", FOLDERS, ids=lambda folder: folder.name)
def test_a_router_and_a_worker_describe_a_folder_alike(folder: Path) -> None:
    at_router = read_served_model(read_model_folder(folder)).description
    assert at_router.eos_token_ids == (2,), "encoders name an end token, too"
    at_worker = describe_folder(folder, read_model_config(folder))
    assert replace(at_router, tokenizer="") == replace(at_worker, tokenizer="")


def test_an_end_token_of_minus_one_is_none_for_both(tmp_path: Path) -> None:
    folder = change_config(Path(shutil.copytree(FIXTURE, tmp_path / "model")), eos_token_id=-1)
    at_router = read_served_model(read_model_folder(folder)).description
    assert at_router.eos_token_ids == describe_folder(folder, read_model_config(folder)).eos_token_ids == ()


def read_of(folder: Path) -> ReadModel:
    cache = KVCacheSettings(kv_cache_memory_bytes=2**22)
    settings = EngineSettings(model=str(folder), dtype="float32", runner="pooling", kv_cache=cache)
    return load_model(settings).read


@pytest.mark.slow
def test_a_module_with_other_weights_or_settings_is_another_model(tmp_path: Path) -> None:
    folder = Path(shutil.copytree(FIXTURE, tmp_path / "model"))
    before = read_of(folder)
    assert before == read_of(FIXTURE)
    file = folder / "2_Dense" / "model.safetensors"
    tensors = load_file(file)
    tensors["linear.bias"][0] += 1.0
    save_file(tensors, file)
    after = read_of(folder)
    assert after.weights != before.weights
    assert check_weights(folder, before) == after.weights, "an update of the weights leads to the same digest"
    config = folder / "2_Dense" / "config.json"
    text = config.read_text()
    config.write_text(text.replace("torch.nn.modules.activation.Tanh", "torch.nn.modules.activation.ReLU"))
    assert config.read_text() != text
    digests = {before.weights, after.weights, read_of(folder).weights}
    pooling, modules = folder / "1_Pooling" / "config.json", folder / "modules.json"
    pooling.write_text(json.dumps({**json.loads(pooling.read_text()), "pooling_mode": "cls"}))
    digests.add(read_of(folder).weights)
    modules.write_text(json.dumps(json.loads(modules.read_text())[:-1]))
    digests.add(read_of(folder).weights)
    assert len(digests) == 5, "another pooling, and none that normalizes, are other models, too"
