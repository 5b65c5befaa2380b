"""Model folders from anywhere: each file is read, or refused by an error that names it."""

from __future__ import annotations

import io
import json
from collections.abc import Iterator
from contextlib import contextmanager, suppress
from functools import cache
from pathlib import Path
from tempfile import TemporaryDirectory
from typing import Any, Final

import pytest
import torch
from hypothesis import given
from hypothesis import strategies as st
from safetensors.torch import save

from baton_core.errors import InvalidModelError, RequestError
from baton_core.model.model_description import describe_model
from baton_engine.checkpoint.config_fields import read_json_object
from baton_engine.checkpoint.gguf_files import read_gguf_entries
from baton_engine.checkpoint.torch_files import read_torch_entries
from baton_engine.checkpoint.weight_files import find_weight_files, read_entries
from baton_router.text.model_folder import read_model_folder
from baton_router.text.tokenization import Tokenizer
from baton_service.tokenizer_files import read_tokenizer_digest
from tests.fuzz.hostile_bytes import hostile, within_memory
from tests.quantized_reference import FIXTURES
from tests.unit.router.folders import byte_fallback_json, byte_level_json, write_model_folder

TENSORS: Final = {"a": torch.ones(4, 3), "b": torch.ones(2, dtype=torch.bfloat16)}
SAFETENSORS: Final = save(TENSORS)
GGUF: Final = (FIXTURES / "gguf-q4-0" / "model.gguf").read_bytes()
LENGTHS: Final = st.sampled_from([0, 1, 7, 2**16, 99_999_999, 100_000_001, 2**40, 2**63, 2**64 - 1])
NUMBERS: Final = st.sampled_from([-1, 0, 1, 3, 2**31, 2**63, 10**30, 0.5, None, "1", [], True])
JSON: Final = st.recursive(NUMBERS | st.text(max_size=5), lambda inner: st.lists(inner, max_size=3))
CONFIG: Final = json.dumps({"vocab_size": 400, "max_position_embeddings": 128, "rope": {"a": [1.5, None]}})


def torch_file() -> bytes:
    file = io.BytesIO()
    torch.save(TENSORS, file)
    return file.getvalue()


@contextmanager
def stored(content: bytes, name: str) -> Iterator[Path]:
    with TemporaryDirectory() as folder:
        path = Path(folder) / name
        path.write_bytes(content)
        yield path


@st.composite
def lying_headers(draw: st.DrawFn) -> bytes:
    """A file whose header is JSON and says what cannot be."""
    header: dict[str, Any] = json.loads(SAFETENSORS[8:].partition(b"}}")[0] + b"}}")
    for name in draw(st.lists(st.sampled_from(sorted(header)), max_size=2)):
        field = draw(st.sampled_from(["shape", "data_offsets", "dtype", "other"]))
        header[name] = header[name] | {field: draw(st.lists(NUMBERS, max_size=3) | JSON)}
    encoded = json.dumps(header).encode()
    length = draw(LENGTHS | st.just(len(encoded)))
    return length.to_bytes(8, "little") + encoded + bytes(draw(st.integers(0, 60)))


@given(content=hostile(st.just(SAFETENSORS)) | lying_headers())
def test_the_header_of_a_safetensors_file(content: bytes) -> None:
    with stored(content, "model.safetensors") as path:
        entries = within_memory(lambda _: read_entries(path), content, InvalidModelError)
    for entry in (entries or {}).values():
        assert 0 < entry.offset <= entry.offset + entry.num_bytes <= len(content)


@given(content=hostile(st.just(torch_file())))
@pytest.mark.filterwarnings("ignore:Detected pickle protocol")
def test_a_file_of_torch(content: bytes) -> None:
    with stored(content, "pytorch_model.bin") as path:
        try:
            read_torch_entries(path)
        except InvalidModelError:
            return


@given(content=hostile(st.just(GGUF)))
def test_the_header_of_a_gguf_file(content: bytes) -> None:
    with stored(content, "model.gguf") as path:
        entries = within_memory(lambda _: read_gguf_entries(path), content, InvalidModelError)
    for entry in (entries or {}).values():
        assert 0 < entry.offset < entry.offset + entry.num_bytes <= len(content)


@given(index=hostile(st.just(b'{"weight_map": {"a": "x.safetensors"}}')))
def test_an_index_of_shards(index: bytes) -> None:
    with stored(index, "model.safetensors.index.json") as path:
        within_memory(lambda _: find_weight_files(path.parent), index, InvalidModelError)


@given(content=hostile(st.just(CONFIG.encode())))
def test_a_configuration(content: bytes) -> None:
    with stored(content, "config.json") as path:
        config = within_memory(lambda _: read_json_object(path), content, InvalidModelError)
    with suppress(InvalidModelError):
        describe_model(config or {}, (), 1)


@cache
def tokenizer_files() -> tuple[Any, ...]:
    return tuple(map(json.loads, (byte_level_json(adds_bos=True), byte_fallback_json())))


@st.composite
def tokenizers(draw: st.DrawFn) -> str:
    """A tokenizer.json in which some value, somewhere, is another."""
    root = json.loads(json.dumps(draw(st.sampled_from(tokenizer_files()))))
    place: Any = root
    while True:
        keys = list(place) if isinstance(place, dict) else list(range(len(place)))
        key = draw(st.sampled_from(keys[:40]))
        inner = place[key]
        if not isinstance(inner, dict | list) or not inner or draw(st.integers(0, 3)) == 0:
            place[key] = draw(JSON)
            return json.dumps(root)
        place = inner


@given(text=tokenizers() | hostile(st.just(byte_fallback_json().encode())).map(lambda b: b.decode("latin-1")))
def test_a_tokenizer(text: str) -> None:
    with TemporaryDirectory() as name:
        folder = write_model_folder(Path(name), tokenizer_json=text)
        with suppress(InvalidModelError):
            assert len(read_tokenizer_digest(folder)) == 32
        try:
            tokenizer = Tokenizer(read_model_folder(folder))
        except InvalidModelError:
            return
        with suppress(RequestError):
            tokenizer.decode(tokenizer.encode("hello é 你"))


@given(
    name=st.sampled_from(["tokenizer_config.json", "generation_config.json", "special_tokens_map.json"]),
    content=hostile(
        st.just(b'{"bos_token": {"content": "<s>"}, "temperature": 0.5, "chat_template": "{{ x }}"}')
    ),
)
def test_a_smaller_file_beside_a_tokenizer(name: str, content: bytes) -> None:
    with TemporaryDirectory() as folder:
        path = write_model_folder(Path(folder))
        (path / name).write_bytes(content)
        try:
            Tokenizer(read_model_folder(path))
        except InvalidModelError:
            return
