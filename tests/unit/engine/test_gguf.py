"""GGUF files that are damaged, or that contradict the config.json beside them: refused by name."""

from __future__ import annotations

import json
import re
import shutil
import struct
from collections.abc import Callable
from pathlib import Path
from random import Random
from typing import Any

import pytest
import torch

from baton.api.engine_parts import read_model
from baton.config.engine_args import EngineArgs
from baton.config.engine_folders import with_local_folders
from baton_core.errors import InvalidConfigError, InvalidModelError
from baton_engine.checkpoint.config_fields import ConfigFields
from baton_engine.checkpoint.folder_description import describe_folder
from baton_engine.checkpoint.gguf_files import read_gguf_entries
from baton_engine.checkpoint.gguf_header import read_gguf_header
from baton_engine.checkpoint.model_fields import read_gguf_config, read_model_fields
from baton_engine.checkpoint.model_source import resolve_model
from baton_engine.checkpoint.quantization.gguf import read_gguf_quantization
from baton_engine.checkpoint.weights import WeightReader
from baton_engine.loading import ReadModel
from baton_engine.models.registry import read_model_config
from baton_engine.quantization_choice import choose_quantization
from baton_engine.weight_check import check_weights
from tests.quantized_reference import FIXTURES, quantized_weights

UINT32, STRING, ARRAY = 4, 8, 9
F32, Q8_0 = 0, 8


def string(text: str) -> bytes:
    return struct.pack("<Q", len(text)) + text.encode()


def text(key: str, value: str) -> bytes:
    return string(key) + struct.pack("<I", STRING) + string(value)


def number(key: str, value: int) -> bytes:
    return string(key) + struct.pack("<II", UINT32, value)


def tensor(name: str, shape: tuple[int, ...], kind: int = F32, offset: int = 0) -> bytes:
    axes = struct.pack(f"<I{len(shape)}Q", len(shape), *reversed(shape))
    return string(name) + axes + struct.pack("<IQ", kind, offset)


LLAMA = text("general.architecture", "llama")
NORM = tensor("output_norm.weight", (8,))


def gguf_file(
    keys: tuple[bytes, ...] = (LLAMA,), tensors: tuple[bytes, ...] = (NORM,), version: int = 3
) -> bytes:
    header = b"GGUF" + struct.pack("<IQQ", version, len(tensors), len(keys)) + b"".join(keys + tensors)
    return header + bytes(-len(header) % 32) + bytes(64)


@pytest.fixture
def path(tmp_path: Path) -> Path:
    return tmp_path / "model.gguf"


@pytest.fixture
def folder(tmp_path: Path) -> Path:
    return Path(shutil.copytree(FIXTURES / "gguf-q8-0", tmp_path / "folder"))


@pytest.mark.parametrize(
    ("content", "message"),
    [
        (b"", "size of the header is 4; allowed: at most 100000000 bytes, all in the file of 0"),
        (gguf_file()[1:], "magic and version is (b'GUF"),
        (gguf_file(version=1), "(b'GGUF', 1); allowed: b'GGUF' and one of (2, 3)"),
        (gguf_file(version=3 << 24), "allowed: b'GGUF' and one of (2, 3)"),
        (b"GGUF" + struct.pack("<IQQ", 3, 2**63, 0), f"number of tensors is {2**63}; allowed: at most"),
        (b"GGUF" + struct.pack("<IQQ", 3, 0, 2**63), f"number of metadata keys is {2**63}; allowed: at most"),
        (
            gguf_file((LLAMA, LLAMA)),
            "a key of the metadata is 'general.architecture'; allowed: each key once",
        ),
        (gguf_file((string("a") + struct.pack("<I", 13),)), "type of a is 13; allowed: 0 to 12"),
        (
            gguf_file((string("a") + struct.pack("<IIQ", ARRAY, ARRAY, 1),)),
            "array a is (9, 1); allowed: an array of strings or numbers",
        ),
        (gguf_file((string("a") + struct.pack("<IIQ", ARRAY, UINT32, 2**62),)), "size of the header is"),
        (gguf_file((string("a") + struct.pack("<IIQ", ARRAY, STRING, 10**6),)), "size of the header is"),
        (gguf_file((LLAMA, number("general.alignment", 24))), "general.alignment is 24; allowed: a power"),
        (gguf_file((LLAMA, number("general.alignment", 0))), "general.alignment is 0; allowed: a power"),
        (gguf_file(tensors=(NORM, NORM)), "name of a tensor is 'output_norm.weight'; allowed: each name"),
        (
            gguf_file(tensors=(tensor("output.weight", (2, 4), 10),)),
            "ggml type of tensor output.weight is 10",
        ),
        (
            gguf_file(tensors=(tensor("output.weight", (2, 4), Q8_0),)),
            "allowed: axes of at least 1, the last",
        ),
        (gguf_file(tensors=(tensor("output.weight", (0, 4)),)), "shape of tensor output.weight is [0, 4]"),
        (gguf_file(tensors=(tensor("output.weight", ()),)), "rank of tensor output.weight is 0; allowed: 1"),
        (gguf_file(tensors=(tensor("output.weight", (1,) * 5),)), "rank of tensor output.weight is 5"),
        (gguf_file(tensors=(tensor("output.weight", (4, 4), F32, 8),)), "is 8; allowed: a multiple of 32"),
        (
            gguf_file(tensors=(NORM, tensor("output.weight", (1, 8)))),
            "offset of tensor output.weight is 0; allowed: tensors that do not overlap",
        ),
        (gguf_file(tensors=(tensor("output.weight", (64, 64)),)), "where tensor output.weight ends"),
        (gguf_file(tensors=(tensor("output.weight", (2**60, 2**60)),)), "where tensor output.weight ends"),
        (
            gguf_file((text("general.architecture", "gpt2"),)),
            "general.architecture is 'gpt2'; allowed: llama",
        ),
        (gguf_file(()), "general.architecture is None; allowed: llama, qwen2, qwen3"),
        (gguf_file(tensors=(tensor("blk.0.ssm_a", (8,)),)), "a tensor is 'blk.0.ssm_a'; allowed: token_embd"),
        (gguf_file(tensors=(tensor("output_norm.weight", (32,), Q8_0),)), "allowed: two axes, for Q8_0"),
        (
            gguf_file(tensors=(tensor("blk.0.attn_q.weight", (4, 4)),)),
            "llama.attention.head_count, or head_count_kv, is None; allowed: an integer that divides",
        ),
    ],
)
def test_a_file_that_cannot_be_is_refused_by_name(content: bytes, message: str, path: Path) -> None:
    path.write_bytes(content)
    with pytest.raises(InvalidModelError, match=re.escape(message)) as refused:
        read_gguf_entries(path)
    assert str(path) in str(refused.value)
    assert "; allowed: " in str(refused.value)


@pytest.mark.slow
def test_random_damage_to_the_header_is_refused_or_harmless(folder: Path) -> None:
    path = folder / "model.gguf"
    stored, random = path.read_bytes(), Random(1)
    num_refused = 0
    for _ in range(300):
        damaged = bytearray(stored)
        for _ in range(3):
            damaged[random.randrange(4000)] = random.randrange(256)
        path.write_bytes(damaged[: len(stored) - random.randrange(2)])
        try:
            for entry in read_gguf_entries(path).values():
                assert entry.offset + entry.num_bytes <= len(stored)
        except InvalidModelError:
            num_refused += 1
    assert num_refused > 150, "damage to the header goes unnoticed"


@pytest.mark.parametrize("num_bytes", [100, 3_000, 100_000, -1])
def test_a_truncated_file_is_refused(num_bytes: int, folder: Path) -> None:
    path = folder / "model.gguf"
    path.write_bytes(path.read_bytes()[:num_bytes])
    with pytest.raises(InvalidModelError, match=f"^{path}: size of the (header|file) is"):
        WeightReader(folder, torch.float32)


@pytest.mark.parametrize("layer", ["model.layers.0.mlp.up_proj", "model.embed_tokens"])
def test_a_scale_that_is_no_number_is_refused(layer: str, folder: Path) -> None:
    path = folder / "model.gguf"
    entry = read_gguf_entries(path)[f"{layer}.weight"]
    content = bytearray(path.read_bytes())
    content[entry.offset + 34 : entry.offset + 36] = struct.pack("<e", float("nan"))
    path.write_bytes(content)
    weights = quantized_weights(folder)
    load = weights.load_quantized if weights.is_quantized(layer) else _load_numbers(weights)
    with pytest.raises(InvalidModelError, match="holds a scale that is NaN or infinite; allowed: finite"):
        load(layer, *entry.shape)


def _load_numbers(weights: WeightReader) -> Callable[..., Any]:
    return lambda layer, *shape: weights.load(f"{layer}.weight", shape)


@pytest.mark.parametrize(
    ("values", "message"),
    [
        ({"architectures": ["Qwen2ForCausalLM"]}, "architectures is ['Qwen2ForCausalLM']; allowed: one of"),
        ({"num_hidden_layers": 2}, "num_hidden_layers is 2; allowed: 1, which is llama.block_count in"),
        ({"num_key_value_heads": 4}, "allowed: 2, which is llama.attention.head_count_kv in"),
        ({"rms_norm_eps": 1e-5}, "rms_norm_eps is 1e-05; allowed: 9.99"),
        ({"rope_parameters": None, "rope_theta": 5.0}, "rope_theta is 5.0; allowed: 10000.0, which is llama"),
        ({"rope_parameters": {"rope_type": "llama3"}}, "since rope_freqs.weight is missing"),
        ({"quantization_config": {"quant_method": "fp8"}}, "allowed: none, beside"),
    ],
)
def test_a_configuration_of_another_model_is_refused(
    values: dict[str, Any], message: str, folder: Path
) -> None:
    fields = ConfigFields.from_file(folder / "config.json").updated(values)
    with pytest.raises(InvalidModelError, match=re.escape(message)):
        read_gguf_quantization(folder / "model.gguf", fields)


def test_factors_of_the_rotation_need_their_kind_in_the_configuration(path: Path) -> None:
    path.write_bytes(gguf_file(tensors=(tensor("rope_freqs.weight", (8,)),)))
    assert not read_gguf_entries(path)
    fields = ConfigFields("config.json", {"architectures": ["LlamaForCausalLM"]})
    with pytest.raises(InvalidModelError, match=r"rope_type is None; allowed: llama3, as in"):
        read_gguf_quantization(path, fields)
    llama3 = fields.updated({"rope_scaling": {"rope_type": "llama3"}})
    assert read_gguf_quantization(path, llama3).types == {}


def test_a_file_of_several_is_refused(path: Path) -> None:
    path.write_bytes(gguf_file((LLAMA, number("split.count", 2))))
    fields = ConfigFields("config.json", {"architectures": ["LlamaForCausalLM"]})
    with pytest.raises(InvalidModelError, match=r"split\.count is 2; allowed: 1"):
        read_gguf_quantization(path, fields)


def test_a_file_stands_for_its_folder(folder: Path) -> None:
    path = folder / "model.gguf"
    args = with_local_folders(EngineArgs(model=str(path)))
    assert (args.model, args.served_model_name) == (str(folder), (str(path),))
    shutil.copy(path, folder / "other.gguf")
    with pytest.raises(InvalidModelError, match=r"holds model\.gguf, other\.gguf; allowed: one GGUF file"):
        resolve_model(str(path))
    (folder / "other.gguf").rename(folder / "model.safetensors")
    with pytest.raises(InvalidModelError, match=r"allowed: a GGUF file without other weights beside it"):
        resolve_model(str(path))


def test_only_its_own_quantization_may_be_asked_for(folder: Path) -> None:
    fields, config = ConfigFields.from_file(folder / "config.json"), read_model_config(folder)
    path = folder / "model.gguf"
    chosen = choose_quantization("gguf", None, fields, path.parent, config, gguf=path)
    assert chosen.checkpoint is not None
    assert chosen.checkpoint.method == "gguf"
    with pytest.raises(
        InvalidConfigError, match="quantization is 'int8'; allowed with this checkpoint: gguf"
    ):
        choose_quantization("int8", None, fields, path.parent, config, gguf=path)
    with pytest.raises(
        InvalidConfigError, match="quantization is 'gguf'; allowed with this checkpoint: None"
    ):
        choose_quantization("gguf", None, fields, path.parent, config)


def test_types_of_layers_in_a_mix() -> None:
    folder = FIXTURES / "gguf-q4-k-m"
    fields = ConfigFields.from_file(folder / "config.json")
    types = read_gguf_quantization(folder / "model.gguf", fields).types
    assert set(types.values()) == {"Q6_K"}
    assert "lm_head" in types
    stored = {one.type.name for one in read_gguf_header(folder / "model.gguf").tensors.values()}
    assert stored == {"F32", "Q4_K", "Q6_K"}


def test_the_order_of_rows_is_part_of_the_digest(folder: Path) -> None:
    before = WeightReader(folder, torch.float32).digest()
    path = folder / "model.gguf"
    heads = number("llama.attention.head_count", 4)
    assert path.read_bytes().count(heads) == 1
    path.write_bytes(path.read_bytes().replace(heads, number("llama.attention.head_count", 2)))
    assert WeightReader(folder, torch.float32).digest() != before


def test_running_weights_are_not_updated_from_blocks(folder: Path) -> None:
    entries = read_gguf_entries(folder / "model.gguf")
    description = describe_folder(folder, read_model_config(folder))
    shapes = {name: entry.shape for name, entry in entries.items()}
    model = ReadModel(weights="", description=description, shapes=shapes)
    with pytest.raises(InvalidModelError, match=r"model.embed_tokens.weight has dtype Q8_0; allowed: F32"):
        check_weights(folder, model)


def test_expected_tokens_come_from_files_of_every_type() -> None:
    stored = {
        one.type.name
        for path in FIXTURES.glob("gguf-*/model.gguf")
        for one in read_gguf_header(path).tensors.values()
    }
    assert stored == {"F32", "F16", "Q4_0", "Q5_0", "Q8_0", "Q4_K", "Q5_K", "Q6_K"}
    assert all(json.loads(path.read_text())["greedy"] for path in FIXTURES.glob("gguf-*/expected.json"))


@pytest.mark.parametrize("name", ["gguf-q8-0", "gguf-q4-k-m", "gguf-qwen2-q4-0"])
def test_the_metadata_describes_the_model_of_its_configuration(name: str) -> None:
    values = read_gguf_config(FIXTURES / name / "model.gguf")
    config = json.loads((FIXTURES / name / "config.json").read_text())
    assert values.pop("eos_token_id") == [], "the file names none"
    assert values.pop("dtype") == "bfloat16"
    assert values.pop("attention_bias") == config.get("attention_bias", name == "gguf-qwen2-q4-0")
    assert values == {key: config.get(key, False) for key in values}


@pytest.mark.parametrize(
    ("keys", "tensors", "message"),
    [
        ((), (), "llama.block_count is None; allowed: one number, or the model's config.json"),
        ((number("llama.attention.sliding_window", 4096),), (), "sliding_window is 4096; allowed: none, or"),
        ((text("llama.rope.scaling.type", "yarn"),), (), "scaling.type is 'yarn'; allowed: none, or"),
        ((), (tensor("rope_freqs.weight", (8,)),), "a tensor is 'rope_freqs.weight'; allowed: no factors"),
        ((text("llama.block_count", "1"),), (), "llama.block_count is '1'; allowed: one number"),
    ],
)
def test_a_lone_file_that_does_not_tell_all_is_refused(
    keys: tuple[bytes, ...], tensors: tuple[bytes, ...], message: str, path: Path
) -> None:
    path.write_bytes(gguf_file((LLAMA, *keys), tensors or (NORM,)))
    with pytest.raises(InvalidModelError, match=re.escape(message)):
        read_model_fields(path.parent)


def test_a_lone_file_needs_the_tokenizer_of_its_model(folder: Path) -> None:
    (folder / "config.json").unlink()
    args = with_local_folders(EngineArgs(model=str(folder / "model.gguf")))
    with pytest.raises(InvalidModelError, match=r"tokenizer\.json is missing; .* or --tokenizer with"):
        read_model(args)
    with pytest.raises(InvalidConfigError, match=r"hf_overrides is a function; allowed with .*model\.gguf"):
        with_local_folders(EngineArgs(model=str(folder), hf_overrides=lambda config: config))
