from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import huggingface_hub.constants
import pytest

from baton_core.errors import InvalidConfigError, InvalidModelError
from baton_core.requests.sampling_params import SamplingParams
from baton_router.text.generation_defaults import with_generation_config
from baton_router.text.model_folder import find_model_folder, read_model_folder
from tests.unit.router.folders import write_model_folder


def test_sizes_and_tokens_are_read(tmp_path: Path) -> None:
    model = read_model_folder(
        write_model_folder(
            tmp_path,
            tokenizer_config={"eos_token": {"content": "</s>", "lstrip": False}, "add_bos_token": True},
        )
    )
    assert (model.vocab_size, model.max_position_embeddings) == (400, 128)
    assert model.special_tokens == {"bos_token": "<s>", "eos_token": "</s>"}
    assert model.sampling_defaults == SamplingParams()


def test_generation_config_gives_the_sampling_defaults(tmp_path: Path) -> None:
    config = {"temperature": 0.6, "top_p": 0.95, "top_k": 20, "min_p": 0.1, "repetition_penalty": 1.1}
    model = read_model_folder(
        write_model_folder(tmp_path, generation_config={**config, "max_new_tokens": 99, "do_sample": False})
    )
    assert model.sampling_defaults == SamplingParams(
        temperature=0.6, top_p=0.95, top_k=20, min_p=0.1, repetition_penalty=1.1, max_tokens=99
    )


def test_a_folder_of_sampling_defaults_is_named_with_what_is_wrong_in_it(tmp_path: Path) -> None:
    model = read_model_folder(write_model_folder(tmp_path))
    (tmp_path / "other").mkdir()
    (tmp_path / "other" / "generation_config.json").write_text('{"temperature": "x"}')
    with pytest.raises(InvalidModelError, match=r"other/generation_config\.json: temperature is 'x'"):
        with_generation_config(model, str(tmp_path / "other"))
    with pytest.raises(InvalidConfigError, match=r"^override_generation_config: top_p is 2"):
        with_generation_config(model, overrides={"top_p": 2})


def test_null_in_generation_config_means_the_default(tmp_path: Path) -> None:
    folder = write_model_folder(tmp_path, generation_config={"temperature": None, "repetition_penalty": 1.0})
    assert read_model_folder(folder).sampling_defaults == SamplingParams()


@pytest.mark.parametrize(
    ("value", "expected"),
    [
        ("one", "one"),
        ([{"name": "tool_use", "template": "two"}, {"name": "default", "template": "three"}], "three"),
        ([{"name": "tool_use", "template": "two"}], None),
        (None, None),
    ],
)
def test_a_chat_template_in_the_tokenizer_configuration_is_found(
    tmp_path: Path, value: Any, expected: str | None
) -> None:
    folder = write_model_folder(tmp_path, chat_template=None, tokenizer_config={"chat_template": value})
    assert read_model_folder(folder).chat_template == expected


def test_the_chat_template_file_comes_before_the_tokenizer_configuration(tmp_path: Path) -> None:
    folder = write_model_folder(tmp_path, chat_template="file", tokenizer_config={"chat_template": "key"})
    assert read_model_folder(folder).chat_template == "file"


def test_special_tokens_of_an_older_folder_are_read_from_their_own_file(tmp_path: Path) -> None:
    folder = write_model_folder(tmp_path)
    tokens = {"bos_token": {"content": "<bos>"}, "pad_token": "<pad>"}
    (folder / "special_tokens_map.json").write_text(json.dumps(tokens), encoding="utf-8")
    expected = {"bos_token": "<bos>", "eos_token": "</s>", "pad_token": "<pad>"}
    assert read_model_folder(folder).special_tokens == expected


@pytest.mark.parametrize(
    ("files", "message"),
    [
        ({"config": {"vocab_size": "400"}}, r"config\.json: vocab_size is '400'; allowed: an integer from 1"),
        ({"config": {"vocab_size": 2**31}}, "vocab_size is 2147483648; allowed: an integer"),
        ({"config": {"max_position_embeddings": None}}, r"config\.json: max_position_embeddings is None"),
        ({"generation_config": {"top_p": 2}}, r"generation_config\.json: top_p is 2; allowed: .* to 1"),
        ({"generation_config": {"repetition_penalty": 0}}, "repetition_penalty is 0; allowed: .* over 0"),
        ({"generation_config": {"temperature": "hot"}}, r"generation_config\.json: temperature is 'hot'"),
        ({"chat_template": None, "tokenizer_config": {"chat_template": 7}}, "chat_template is int; allowed"),
    ],
)
def test_a_wrong_value_is_refused_by_file_key_and_what_is_allowed(
    tmp_path: Path, files: dict[str, Any], message: str
) -> None:
    with pytest.raises(InvalidModelError, match=message):
        read_model_folder(write_model_folder(tmp_path, **files))


@pytest.mark.parametrize("name", ["config.json", "tokenizer.json"])
def test_a_missing_file_is_named(tmp_path: Path, name: str) -> None:
    folder = write_model_folder(tmp_path)
    (folder / name).unlink()
    with pytest.raises(InvalidModelError, match=name):
        read_model_folder(folder)


@pytest.mark.parametrize("name", ["config.json", "generation_config.json", "tokenizer_config.json"])
@pytest.mark.parametrize("content", [b"{", b"[]", b"\xff"])
def test_broken_json_is_named(tmp_path: Path, name: str, content: bytes) -> None:
    folder = write_model_folder(tmp_path)
    (folder / name).write_bytes(content)
    with pytest.raises(InvalidModelError, match=rf"{name} .*allowed: one JSON object"):
        read_model_folder(folder)


def test_a_missing_folder_is_named(tmp_path: Path) -> None:
    with pytest.raises(InvalidModelError, match="none_such"):
        read_model_folder(tmp_path / "none_such")


def test_a_folder_is_found_as_it_is(tmp_path: Path) -> None:
    assert find_model_folder(str(tmp_path)) == tmp_path


@pytest.mark.parametrize("model", ["", "/none/such", "./none", "~/none/such", "a/b/c", "what?"])
def test_what_is_neither_folder_nor_hub_id_is_refused(model: str) -> None:
    with pytest.raises(InvalidModelError, match="allowed: a folder that exists, or a model id"):
        find_model_folder(model)


def test_a_hub_id_is_found_in_the_hubs_cache_without_network(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(huggingface_hub.constants, "HF_HUB_OFFLINE", True)
    monkeypatch.setattr(huggingface_hub.constants, "HF_HUB_CACHE", str(tmp_path))
    repository = tmp_path / "models--org--tiny"
    snapshot = write_model_folder(repository / "snapshots" / ("0" * 40))
    (repository / "refs").mkdir()
    (repository / "refs" / "main").write_text("0" * 40, encoding="utf-8")
    assert find_model_folder("org/tiny") == snapshot
    with pytest.raises(InvalidModelError, match="org/other"):
        find_model_folder("org/other")
