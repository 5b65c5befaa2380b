"""The hash of the weights changes with every byte of every tensor, and with nothing else."""

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
from baton_engine.checkpoint.weight_files import TensorEntry, read_entries
from baton_engine.checkpoint.weights import WeightReader
from baton_engine.engine_settings import EngineSettings
from baton_engine.loading import load_model
from baton_engine.sizing import KVCacheSettings
from tests.models import make_model

pytestmark = pytest.mark.slow


@pytest.fixture
def folder(tmp_path: Path, model_folder: Callable[[str], Path]) -> Path:
    return Path(shutil.copytree(model_folder("llama"), tmp_path / "model"))


def digest(folder: Path, dtype: torch.dtype = torch.float32) -> str:
    return WeightReader(folder, dtype).digest()


def change_byte(entry: TensorEntry, place: float) -> None:
    """Flip a bit at a place from 0.0, the tensor's first byte, to 1.0, its last."""
    with entry.path.open("r+b") as file:
        file.seek(entry.offset + round(place * (entry.num_bytes - 1)))
        (byte,) = file.read(1)
        file.seek(-1, 1)
        file.write(bytes([byte ^ 1]))


@pytest.mark.parametrize("variant", ["llama", "mixtral", "opt"])
@pytest.mark.parametrize("place", [0.0, 0.37, 1.0])
def test_one_changed_byte_of_any_tensor_changes_it(variant: str, place: float, tmp_path: Path) -> None:
    folder = make_model(tmp_path / "model", variant)
    path = folder / "model.safetensors"
    before, content = digest(folder), path.read_bytes()
    entries = read_entries(path)
    assert len(entries) > 10
    for name, entry in entries.items():
        change_byte(entry, place)
        assert digest(folder) != before, name
        path.write_bytes(content)
    assert digest(folder) == before


def test_tensors_count_as_the_model_read_them(folder: Path) -> None:
    cache = KVCacheSettings(kv_cache_memory_bytes=4 << 20)
    loaded = load_model(EngineSettings(model=str(folder), kv_cache=cache))
    assert loaded.read.weights == digest(folder)
    reader = WeightReader(folder, torch.float32)
    (name, entry), *_ = read_entries(folder / "model.safetensors").items()
    reader.load(name, entry.shape)
    change_byte(entry, 0.5)
    assert reader.digest() == loaded.read.weights, "what was read is what counts"


def test_it_is_the_same_however_tensors_are_converted(folder: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    before = digest(folder)
    monkeypatch.setattr(weights, "_STAGING_BYTES", 1000)
    for dtype in (torch.float32, torch.bfloat16):
        reader = WeightReader(folder, dtype)
        for name, entry in read_entries(folder / "model.safetensors").items():
            reader.load(name, entry.shape)
        assert reader.digest() == before
    assert digest(folder) == before


def test_shards_headers_and_the_format_of_files_do_not_matter(folder: Path) -> None:
    path = folder / "model.safetensors"
    before, tensors = digest(folder), load_file(path)
    save_file(dict(reversed(tensors.items())), path, {"format": "pt", "revision": "2"})
    assert digest(folder) == before
    path.unlink()
    torch.save(tensors, folder / "pytorch_model.bin")
    assert digest(folder) == before
    (folder / "pytorch_model.bin").unlink()
    shards = {name: f"shard-{number % 3}.safetensors" for number, name in enumerate(tensors)}
    for shard in set(shards.values()):
        save_file({name: tensors[name] for name in shards if shards[name] == shard}, folder / shard)
    (folder / "model.safetensors.index.json").write_text(json.dumps({"weight_map": shards}))
    assert digest(folder) == before


def test_one_changed_byte_in_torchs_format_changes_it(folder: Path) -> None:
    tensors = load_file(folder / "model.safetensors")
    (folder / "model.safetensors").unlink()
    before, path = set[str](), folder / "pytorch_model.bin"
    for changed in ("", *tensors):
        torch.save({name: one + 0.001 * (name == changed) for name, one in tensors.items()}, path)
        before.add(digest(folder))
    assert len(before) == len(tensors) + 1


@pytest.mark.parametrize("kind", ["dtype", "shape", "name"])
def test_equal_bytes_under_another_header_change_it(kind: str, folder: Path) -> None:
    path = folder / "model.safetensors"
    before, tensors = digest(folder), load_file(path)
    name = "model.layers.0.self_attn.q_proj.weight"
    match kind:
        case "dtype":
            tensors[name] = tensors[name].view(torch.float16)
        case "shape":
            tensors[name] = tensors[name].view(-1)
        case "name":
            tensors[f"{name}.other"] = tensors.pop(name)
    save_file(tensors, path, {"format": "pt"})
    assert digest(folder) != before


def test_a_model_that_transformers_loads_is_hashed_whole(tmp_path: Path) -> None:
    folder = make_model(tmp_path / "model", "gpt-neox")
    cache = KVCacheSettings(kv_cache_memory_bytes=4 << 20)
    loaded = load_model(EngineSettings(model=str(folder), kv_cache=cache))
    assert loaded.read.weights == digest(folder)
    change_byte(list(read_entries(folder / "model.safetensors").values())[-1], 1.0)
    assert digest(folder) != loaded.read.weights


def test_a_file_that_ends_inside_a_tensor_is_refused(folder: Path) -> None:
    path = folder / "model.safetensors"
    reader = WeightReader(folder, torch.float32)
    with path.open("r+b") as file:
        file.truncate(path.stat().st_size - 1)
    with pytest.raises(InvalidModelError, match=f"{path} ends inside a tensor"):
        reader.digest()
