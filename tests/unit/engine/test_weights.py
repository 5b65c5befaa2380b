"""Reading weights, and refusing folders that do not hold them."""

from __future__ import annotations

import json
import shutil
from collections.abc import Callable
from pathlib import Path

import pytest
import torch
from safetensors.torch import load_file, save_file

from baton_core.errors import InvalidModelError
from baton_engine.checkpoint import weights
from baton_engine.checkpoint.dummy_weights import DummyWeights
from baton_engine.checkpoint.weights import WeightReader
from baton_engine.models.vocabulary import Embedding
from baton_engine.ranks.ranks import ALONE
from baton_kernels.interface.kernels import LayerKernels
from tests.models import make_model, make_prompt, reference_logits
from tests.unit.engine.steps import load_model
from tests.unit.engine.test_forward import native_logits

Q_NAME = "model.layers.0.self_attn.q_proj.weight"
K_NAME = "model.layers.0.self_attn.k_proj.weight"


@pytest.fixture
def folder(tmp_path: Path, model_folder: Callable[[str], Path]) -> Path:
    return Path(shutil.copytree(model_folder("llama"), tmp_path / "model"))


def rewrite(folder: Path, **tensors: torch.Tensor | None) -> None:
    """Change tensors of the single weight file; None removes one."""
    path = folder / "model.safetensors"
    changed = load_file(path) | tensors
    save_file({name: tensor for name, tensor in changed.items() if tensor is not None}, path)


@pytest.mark.parametrize("dtype", [torch.float32, torch.bfloat16])
def test_tensors_are_read_as_safetensors_reads_them(folder: Path, dtype: torch.dtype) -> None:
    reader = WeightReader(folder, dtype)
    expected = {name: tensor.to(dtype) for name, tensor in load_file(folder / "model.safetensors").items()}
    for name, tensor in expected.items():
        assert torch.equal(reader.load(name, tensor.shape), tensor)
    assert reader.loaded_bytes == sum(tensor.nbytes for tensor in expected.values())
    stacked = reader.load_stacked([Q_NAME, K_NAME], [(64, 64), (32, 64)])
    assert torch.equal(stacked, torch.cat([expected[Q_NAME], expected[K_NAME]]))


@pytest.mark.parametrize("dtype", [torch.float16, torch.bfloat16])
def test_half_precision_weights_are_widened(folder: Path, dtype: torch.dtype) -> None:
    halved = load_file(folder / "model.safetensors")[Q_NAME].to(dtype)
    rewrite(folder, **{Q_NAME: halved})
    assert torch.equal(WeightReader(folder, torch.float32).load(Q_NAME, (64, 64)), halved.float())


def test_a_tensor_larger_than_the_staging_buffer_is_converted_whole(
    folder: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(weights, "_STAGING_BYTES", 1000)
    expected = load_file(folder / "model.safetensors")[Q_NAME].bfloat16()
    assert torch.equal(WeightReader(folder, torch.bfloat16).load(Q_NAME, (64, 64)), expected)


def test_a_missing_folder_is_refused(tmp_path: Path) -> None:
    with pytest.raises(InvalidModelError, match="none is missing; allowed: an existing folder"):
        WeightReader(tmp_path / "none", torch.float32)


def test_a_folder_without_weights_is_refused(folder: Path) -> None:
    (folder / "model.safetensors").unlink()
    with pytest.raises(InvalidModelError, match=r"holds no weights; allowed: model\.safetensors"):
        load_model(folder)


def test_a_missing_tensor_is_refused_by_name(folder: Path) -> None:
    rewrite(folder, **{Q_NAME: None})
    with pytest.raises(InvalidModelError, match=f"tensor {Q_NAME} is missing"):
        load_model(folder)


def test_a_tensor_of_another_shape_is_refused(folder: Path) -> None:
    rewrite(folder, **{K_NAME: torch.zeros(16, 64)})
    with pytest.raises(InvalidModelError, match=rf"{K_NAME} has shape \[16, 64\]; allowed: \[32, 64\]"):
        load_model(folder)


def test_a_tensor_of_another_dtype_is_refused(folder: Path) -> None:
    rewrite(folder, **{K_NAME: torch.zeros(32, 64, dtype=torch.int8)})
    with pytest.raises(InvalidModelError, match=f"{K_NAME} has dtype I8; allowed: F32, BF16, F16"):
        load_model(folder)


@pytest.mark.parametrize("kept_bytes", [0, 5, 200, 30_000])
def test_a_truncated_file_is_refused(folder: Path, kept_bytes: int) -> None:
    path = folder / "model.safetensors"
    path.write_bytes(path.read_bytes()[:kept_bytes])
    with pytest.raises(
        InvalidModelError, match=r"model\.safetensors (has no complete header|holds 30000 bytes)"
    ):
        load_model(folder)


@pytest.mark.parametrize(
    "header",
    [
        b"not JSON",
        b'{"a": {"dtype": "F32"}}',
        b'{"a": {"dtype": "F32", "shape": [2], "data_offsets": [0, 4]}}',
        b'{"a": {"dtype": "F32", "shape": [-1], "data_offsets": [8, 4]}}',
    ],
)
def test_a_damaged_header_is_refused(folder: Path, header: bytes) -> None:
    (folder / "model.safetensors").write_bytes(len(header).to_bytes(8, "little") + header + bytes(4))
    with pytest.raises(InvalidModelError, match="damaged header"):
        load_model(folder)


def test_a_missing_shard_is_refused_by_name(tmp_path: Path) -> None:
    folder = make_model(tmp_path / "model", is_sharded=True)
    shard = sorted(folder.glob("*.safetensors"))[1]
    shard.unlink()
    with pytest.raises(InvalidModelError, match=f"names {shard.name}, which is missing"):
        load_model(folder)


def test_of_a_tensor_in_two_shards_that_which_the_index_names_is_read(tmp_path: Path) -> None:
    folder = make_model(tmp_path / "model", is_sharded=True)
    index = json.loads((folder / "model.safetensors.index.json").read_text())
    expected = WeightReader(folder, torch.float32).load(Q_NAME, (64, 64))
    others = [
        path for path in sorted(folder.glob("*.safetensors")) if path.name != index["weight_map"][Q_NAME]
    ]
    for other in (others[0], others[-1]):
        save_file(load_file(other) | {Q_NAME: torch.zeros(64, 64)}, other, {"format": "pt"})
    assert torch.equal(WeightReader(folder, torch.float32).load(Q_NAME, (64, 64)), expected)
    del index["weight_map"][Q_NAME]
    (folder / "model.safetensors.index.json").write_text(json.dumps(index))
    with pytest.raises(InvalidModelError, match=rf"tensor {Q_NAME} is in model-.*; allowed: that which"):
        WeightReader(folder, torch.float32)


@pytest.mark.parametrize("weight_map", [None, {}, {"a": "../secret.safetensors"}, {"a": 3}, {"a": ["b"]}])
def test_a_damaged_index_is_refused(folder: Path, weight_map: object) -> None:
    (folder / "model.safetensors").unlink()
    (folder / "model.safetensors.index.json").write_text(json.dumps({"weight_map": weight_map}))
    with pytest.raises(InvalidModelError, match="weight_map"):
        load_model(folder)


def test_a_single_file_is_read_and_not_older_shards_beside_it(folder: Path, tmp_path: Path) -> None:
    older = make_model(tmp_path / "older", is_sharded=True, seed=1)
    for path in older.glob("model*"):
        shutil.copy(path, folder)
    prompt = make_prompt(9)
    assert torch.allclose(native_logits(folder, prompt, 9), reference_logits(folder, prompt), atol=1e-4)


def test_a_head_that_differs_from_the_table_it_is_tied_to_is_used(
    folder: Path, caplog: pytest.LogCaptureFixture
) -> None:
    path, prompt = folder / "config.json", make_prompt(9)
    own = native_logits(folder, prompt, 9)
    path.write_text(json.dumps(json.loads(path.read_text()) | {"tie_word_embeddings": True}))
    assert torch.equal(native_logits(folder, prompt, 9), own)
    assert "lm_head.weight, which is stored as well, differs from model.embed_tokens.weight" in caplog.text
    assert torch.allclose(own, reference_logits(folder, prompt), atol=1e-4)


def test_a_head_that_equals_the_table_it_is_tied_to_is_the_table(
    folder: Path, caplog: pytest.LogCaptureFixture
) -> None:
    path, weights, prompt = folder / "config.json", folder / "model.safetensors", make_prompt(9)
    tensors = load_file(weights)
    tensors["lm_head.weight"] = tensors["model.embed_tokens.weight"].clone()
    save_file(tensors, weights, {"format": "pt"})
    own = native_logits(folder, prompt, 9)
    path.write_text(json.dumps(json.loads(path.read_text()) | {"tie_word_embeddings": True}))
    assert torch.equal(native_logits(folder, prompt, 9), own)
    assert not caplog.records


def test_a_head_that_is_compared_is_not_counted_as_loaded(folder: Path) -> None:
    reader = WeightReader(folder, torch.float32)
    embedding = Embedding(reader, "model.embed_tokens.weight", 512, 64, LayerKernels(), ALONE)
    num_bytes = reader.loaded_bytes
    assert not embedding.is_head(reader)
    assert reader.loaded_bytes == num_bytes > 0
    assert embedding.is_head(DummyWeights(folder, torch.float32)), "of these none is stored"
