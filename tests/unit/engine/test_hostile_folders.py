"""Model folders that lie: each is refused by name or computes; none crashes, hangs or swells."""

from __future__ import annotations

import json
import math
import os
import shutil
from collections.abc import Callable
from pathlib import Path
from random import Random
from typing import Any

import pytest
import torch

from baton_core.errors import InvalidConfigError, InvalidModelError
from baton_engine import warm_up
from baton_engine.checkpoint.weights import WeightReader
from baton_engine.engine_settings import EngineSettings
from baton_engine.loading import load_model
from baton_engine.sizing import KVCacheSettings

pytestmark = pytest.mark.slow

HOSTILE_VALUES = (
    None,
    -1,
    0,
    3,
    2**31,
    10**30,
    0.5,
    1e308,
    math.nan,
    math.inf,
    True,
    "",
    "x" * 1000,
    [],
    [1] * 1000,
    {},
    {"rope_type": "yarn", "factor": -1},
)
WEIGHTS = "model.safetensors"


@pytest.fixture(autouse=True)
def _short_warm_up(monkeypatch: pytest.MonkeyPatch) -> None:
    """Folders that load are warmed up with one short prompt, as large models are."""
    monkeypatch.setattr(warm_up, "PROMPTS_WITHIN_S", 0.0)
    monkeypatch.setattr(warm_up, "SLOW_STEP_S", 0.0)


@pytest.fixture
def folder(tmp_path: Path, model_folder: Callable[[str], Path]) -> Path:
    return Path(shutil.copytree(model_folder("llama"), tmp_path / "model"))


def load(folder: Path) -> None:
    """Load the folder and run its first steps, in little memory."""
    settings = EngineSettings(
        model=str(folder), block_size=8, kv_cache=KVCacheSettings(kv_cache_memory_bytes=1 << 20)
    )
    load_model(settings).start()


def is_refused(folder: Path) -> bool:
    """Return True if loading ends with an error of ours; any other error fails the test."""
    try:
        load(folder)
    except (InvalidModelError, InvalidConfigError) as error:
        refusal = str(error)
    else:
        return False
    assert "; allowed: " in refusal
    assert len(refusal) < 1000, "an error repeats a hostile value at full length"
    return True


def write_weights(folder: Path, header: dict[str, Any] | bytes, data: bytes = b"") -> None:
    encoded = header if isinstance(header, bytes) else json.dumps(header).encode()
    (folder / WEIGHTS).write_bytes(len(encoded).to_bytes(8, "little") + encoded + data)


def header_of(folder: Path) -> tuple[dict[str, Any], bytes]:
    stored = (folder / WEIGHTS).read_bytes()
    length = int.from_bytes(stored[:8], "little")
    return json.loads(stored[8 : 8 + length]), stored[8 + length :]


CONFIG_KEYS = (
    "architectures",
    "attention_bias",
    "dtype",
    "eos_token_id",
    "head_dim",
    "hidden_act",
    "hidden_size",
    "intermediate_size",
    "max_position_embeddings",
    "mlp_bias",
    "num_attention_heads",
    "num_hidden_layers",
    "num_key_value_heads",
    "quantization_config",
    "rms_norm_eps",
    "rope_parameters",
    "rope_scaling",
    "rope_theta",
    "sliding_window",
    "tie_word_embeddings",
    "torch_dtype",
    "vocab_size",
)


@pytest.mark.parametrize("key", CONFIG_KEYS)
def test_a_hostile_value_in_the_configuration_is_refused_or_harmless(folder: Path, key: str) -> None:
    path = folder / "config.json"
    config = json.loads(path.read_text())
    for value in HOSTILE_VALUES:
        path.write_text(json.dumps(config | {key: value}))
        is_refused(folder)
    path.write_text(json.dumps({name: value for name, value in config.items() if name != key}))
    is_refused(folder)


def test_the_sizes_of_a_model_are_never_believed_against_its_weights(folder: Path) -> None:
    path = folder / "config.json"
    config = json.loads(path.read_text())
    for key in ("hidden_size", "intermediate_size", "num_attention_heads", "num_hidden_layers", "vocab_size"):
        path.write_text(json.dumps(config | {key: config[key] * 64}))
        assert is_refused(folder), key


@pytest.mark.parametrize("content", [b"[" * 200_000, b"\xff\xfe", b"{", b"3", b"", b"[1, 2]"])
@pytest.mark.parametrize("name", ["config.json", "generation_config.json"])
def test_what_is_no_json_object_is_refused_by_the_files_name(folder: Path, name: str, content: bytes) -> None:
    (folder / name).write_bytes(content)
    with pytest.raises(InvalidModelError, match=name):
        load(folder)


@pytest.mark.parametrize("name", ["config.json", "generation_config.json", WEIGHTS])
def test_what_is_no_file_is_refused_without_waiting_for_it(folder: Path, name: str) -> None:
    (folder / name).unlink()
    os.mkfifo(folder / name)
    with pytest.raises(InvalidModelError, match=f"{name} is no regular file"):
        load(folder)
    (folder / name).unlink()
    (folder / name).mkdir()
    with pytest.raises(InvalidModelError, match=f"{name} is no regular file"):
        load(folder)


@pytest.mark.parametrize("begin", [4, 12], ids=["overlap", "bytes between"])
def test_a_tensor_that_does_not_begin_where_another_ends_is_refused_by_name(folder: Path, begin: int) -> None:
    two = {"dtype": "F32", "shape": [2]}
    tensors = {"a": two | {"data_offsets": [0, 8]}, "b": two | {"data_offsets": [begin, begin + 8]}}
    write_weights(folder, tensors, bytes(begin + 8))
    with pytest.raises(InvalidModelError, match=f"tensor b begins at byte {begin} of the data; allowed: 8"):
        WeightReader(folder, torch.float32)


@pytest.mark.parametrize("length", [0, 2**40, 2**63, 99_999_999])
def test_a_header_that_lies_about_its_length_is_refused(folder: Path, length: int) -> None:
    stored = (folder / WEIGHTS).read_bytes()
    (folder / WEIGHTS).write_bytes(length.to_bytes(8, "little") + stored[8:])
    with pytest.raises(InvalidModelError, match="no complete header"):
        load(folder)


@pytest.mark.parametrize(
    "change",
    [
        {"shape": ["64", "64"]},
        {"shape": [64.0, 64]},
        {"shape": [-64, -64]},
        {"shape": [True, 4096]},
        {"shape": [1] * 100 + [64, 64]},
        {"shape": 4096},
        {"dtype": "BF16"},
        {"data_offsets": [0]},
        {"data_offsets": [0, 2**64]},
        {"data_offsets": [0.0, 16384.0]},
        {"data_offsets": [-16384, 0]},
    ],
    ids=str,
)
def test_a_header_that_lies_about_a_tensor_is_refused(folder: Path, change: dict[str, Any]) -> None:
    header, data = header_of(folder)
    name = "model.layers.0.self_attn.q_proj.weight"
    write_weights(folder, header | {name: header[name] | change}, data)
    with pytest.raises(InvalidModelError, match=WEIGHTS):
        load(folder)


def test_a_deeply_nested_header_is_refused(folder: Path) -> None:
    write_weights(folder, b'{"a": ' + b"[" * 100_000)
    with pytest.raises(InvalidModelError, match="damaged header"):
        load(folder)


def test_random_damage_to_the_header_is_refused_or_harmless(folder: Path) -> None:
    stored = (folder / WEIGHTS).read_bytes()
    header_end = 8 + int.from_bytes(stored[:8], "little")
    random = Random(5)
    num_refused = 0
    for _ in range(60):
        damaged = bytearray(stored)
        for _ in range(random.randint(1, 3)):
            damaged[random.randrange(8, header_end)] = random.randrange(256)
        (folder / WEIGHTS).write_bytes(damaged)
        num_refused += is_refused(folder)
    assert num_refused > 50, "damage to the header goes unnoticed"


def test_weights_that_cannot_be_read_are_refused(folder: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    opened = Path.open

    def failing(path: Path, *args: Any, **kwargs: Any) -> Any:
        if path.name == WEIGHTS:
            raise PermissionError(13, "Permission denied")
        return opened(path, *args, **kwargs)

    monkeypatch.setattr(Path, "open", failing)
    with pytest.raises(InvalidModelError, match=r"cannot be read \(Permission denied\)"):
        load(folder)


@pytest.mark.parametrize("variant", ["llama", "gpt-neox"])
def test_code_beside_the_weights_is_not_run(
    variant: str, tmp_path: Path, model_folder: Callable[[str], Path]
) -> None:
    copied = Path(shutil.copytree(model_folder(variant), tmp_path / "model"))
    config = json.loads((copied / "config.json").read_text())
    names = {
        "AutoConfig": "own.Config",
        "AutoModelForCausalLM": "own.Model",
        "AutoTokenizer": "own.Tokenizer",
    }
    (copied / "config.json").write_text(json.dumps(config | {"auto_map": names}))
    (copied / "own.py").write_text("raise AssertionError('code of a model folder was run')")
    load(copied)
