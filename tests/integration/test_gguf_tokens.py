"""GGUF files by their path: greedy tokens are those of Transformers' own import of the file."""

from __future__ import annotations

import json
from pathlib import Path

import pytest

from baton import LLM, SamplingParams
from tests.quantized_reference import FIXTURES, copy_with_tokenizer

GGUF = sorted(path.parent.name for path in FIXTURES.glob("*/model.gguf"))
LONE = ("gguf-q8-0", "gguf-q4-k-m", "gguf-qwen2-q4-0")
"""Files that are served by their metadata, without a config.json: tied, untied and biased layers."""


@pytest.mark.parametrize("name", GGUF)
def test_tokens_are_those_of_transformers(name: str, tmp_path: Path) -> None:
    folder = copy_with_tokenizer(name, tmp_path / "model")
    expected = json.loads((folder / "expected.json").read_text())["greedy"]
    if name in LONE:
        (folder / "config.json").unlink()
    assert expected["min_gap"] > 0.05, "the tokens are clear"
    params = SamplingParams(temperature=0.0, max_tokens=len(expected["tokens"]), ignore_eos=True)
    path = str(folder / "model.gguf")
    settings = {"load_format": "gguf", "quantization": "gguf", "kv_cache_memory_bytes": 1 << 20}
    with LLM(path, dtype="float32", **settings) as llm:
        (output,) = llm.generate({"prompt_token_ids": expected["prompt"]}, params, use_tqdm=False)
    assert list(output.outputs[0].token_ids) == expected["tokens"]
