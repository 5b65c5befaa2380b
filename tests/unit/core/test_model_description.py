"""A model's description changes with what decides tokens, and not with how its files are written."""

from __future__ import annotations

import json
from functools import reduce
from typing import Any

import pytest

from baton_core.errors import InvalidModelError
from baton_core.model.model_description import (
    MAX_CONFIG_CHARACTERS,
    MAX_CONFIG_VALUES,
    describe_model,
    tokenizer_digest,
)

CONFIG = {
    "architectures": ["LlamaForCausalLM"],
    "vocab_size": 300,
    "rope_scaling": {"rope_type": "linear", "factor": 2.0},
    "rms_norm_eps": 1e-06,
    "rope_theta": 10000.0,
    "tie_word_embeddings": False,
    "labels": {str(number): number for number in range(100)},
}
TOKENIZER: dict[str, Any] = {
    "version": "1.0",
    "truncation": None,
    "added_tokens": [{"id": 3, "content": "<s>", "special": True}],
    "normalizer": None,
    "pre_tokenizer": {"type": "ByteLevel", "add_prefix_space": False, "use_regex": True},
    "post_processor": None,
    "decoder": {"type": "ByteLevel"},
    "model": {"type": "BPE", "dropout": None, "vocab": {"a": 0, "b": 1, "ab": 2}, "merges": ["a b"]},
}


def described(**changes: Any) -> tuple[tuple[str, str], ...]:
    return describe_model(CONFIG | changes, (2, 1), 300).config


def test_values_are_named_by_key_and_section() -> None:
    config = dict(described())
    assert config["rope_scaling.factor"] == "2"
    assert config["rms_norm_eps"] == "1e-06"
    assert config["architectures"] == '["LlamaForCausalLM"]'
    assert config["labels"].startswith("hash ")
    assert sorted(config) == list(config)


@pytest.mark.parametrize(
    "text",
    [
        json.dumps(CONFIG, indent=8),
        json.dumps(dict(reversed(CONFIG.items()))),
        json.dumps(CONFIG).replace("1e-06", "0.000001").replace("10000.0", "1e4"),
        json.dumps(CONFIG).replace("10000.0", "10000"),
        json.dumps(CONFIG).replace("LlamaForCausalLM", "\\u004clamaForCausalLM"),
    ],
)
def test_how_a_configuration_is_written_does_not_matter(text: str) -> None:
    assert describe_model(json.loads(text), (1, 2, 2, 300), 300) == describe_model(CONFIG, (2, 1), 300)


@pytest.mark.parametrize(
    "change",
    [{"_name_or_path": "x"}, {"transformers_version": "9"}, {"dtype": "float32"}, {"use_cache": True}],
)
def test_where_a_folder_comes_from_does_not_matter(change: dict[str, Any]) -> None:
    assert described(**change) == described()


@pytest.mark.parametrize(
    ("key", "change"),
    [
        ("vocab_size", {"vocab_size": 301}),
        ("rms_norm_eps", {"rms_norm_eps": 1e-05}),
        ("tie_word_embeddings", {"tie_word_embeddings": True}),
        ("rope_scaling.factor", {"rope_scaling": {"rope_type": "linear", "factor": 4}}),
        ("labels", {"labels": CONFIG["labels"] | {"99": 98}}),
        ("unknown", {"unknown": None}),
    ],
)
def test_other_values_differ_under_their_keys(key: str, change: dict[str, Any]) -> None:
    assert {key} == {name for name, _ in {*described()} ^ {*described(**change)}}


@pytest.mark.parametrize(
    ("change", "error"),
    [
        ({f"key{number}": 1 for number in range(MAX_CONFIG_VALUES)}, "allowed: at most 512"),
        ({"k" * (MAX_CONFIG_CHARACTERS + 1): 1}, "printable characters"),
        ({"\ud800": 1}, "printable characters"),
        ({"": 1}, "printable characters"),
        ({"a": reduce(lambda inner, _: [inner], range(100_000), 0)}, "nested too deeply"),
    ],
)
def test_a_configuration_beyond_bounds_is_refused(change: dict[str, Any], error: str) -> None:
    with pytest.raises(InvalidModelError, match=error):
        described(**change)


def test_a_long_value_is_described_by_its_hash_and_half_a_surrogate_is_harmless() -> None:
    long, other = (dict(described(note=f"\ud800{end}" * 200))["note"] for end in "ab")
    assert len(long) <= MAX_CONFIG_CHARACTERS
    assert long.startswith("hash ")
    assert long != other


@pytest.mark.parametrize(
    "change",
    [
        {"version": "2.0"},
        {"truncation": {"max_length": 5}},
        {"padding": {"length": 5}},
        {"model": TOKENIZER["model"] | {"merges": [["a", "b"]]}},
        {"model": TOKENIZER["model"] | {"ignore_merges": False, "unk_token": None}},
        {"model": dict(reversed(TOKENIZER["model"].items()))},
    ],
)
def test_how_a_tokenizer_is_written_does_not_matter(change: dict[str, Any]) -> None:
    assert tokenizer_digest(TOKENIZER | change) == tokenizer_digest(TOKENIZER)
    assert len(tokenizer_digest(TOKENIZER)) == 32


@pytest.mark.parametrize(
    "change",
    [
        {"model": TOKENIZER["model"] | {"vocab": {"a": 1, "b": 0, "ab": 2}}},
        {"model": TOKENIZER["model"] | {"merges": []}},
        {"model": TOKENIZER["model"] | {"byte_fallback": True}},
        {"added_tokens": []},
        {"normalizer": {"type": "NFC"}},
        {"pre_tokenizer": None},
        {"post_processor": {"type": "ByteLevel"}},
        {"decoder": None},
    ],
)
def test_another_tokenizer_has_another_hash(change: dict[str, Any]) -> None:
    assert tokenizer_digest(TOKENIZER | change) != tokenizer_digest(TOKENIZER)


@pytest.mark.parametrize("model", [None, 5, [], {}, {"merges": 5}, {"merges": [5, None, {}]}, {"vocab": []}])
def test_a_tokenizer_of_any_form_has_a_hash(model: object) -> None:
    assert tokenizer_digest({"model": model}) != tokenizer_digest(TOKENIZER)
