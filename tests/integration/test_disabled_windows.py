"""Models whose sliding window is disabled: sequences as long as it, with the same tokens."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import pytest
from transformers import ModernBertConfig, ModernBertModel

from baton import LLM
from baton.commands.cli_arguments import parse, worker_flags
from baton_core.errors import InvalidConfigError
from baton_engine.models.registry import ModelRegistry, read_model_config
from tests.integration.tiny_llm import greedy, tiny_args
from tests.models import make_model, make_prompt
from tests.pooling import make_pooling_model
from tests.reference import Reference

WINDOWS = {"mistral-window": 7, "gemma2": 9, "phi3-longrope": 9, "starcoder2-window": 7}
"""All layers have it, some have it, all with another rotation, and all of a model of Transformers'."""
LENGTHS = (1, 3)


def tokens(llm: LLM, prompts: list[list[int]], num_tokens: int) -> list[list[int]]:
    outputs = llm.generate(prompts, greedy(num_tokens), use_tqdm=False)
    return [list(output.outputs[0].token_ids) for output in outputs]


@pytest.mark.parametrize("variant", WINDOWS)
def test_requests_that_fit_get_the_tokens_that_they_get_with_the_window(variant: str, tmp_path: Path) -> None:
    folder, window = make_model(tmp_path / variant, variant), WINDOWS[variant]
    drawn = Reference(folder).draw_all_greedy([(length, ()) for length in LENGTHS], window - LENGTHS[-1])
    prompts = [list(prompt) for prompt, _ in drawn]
    found: list[list[list[int]]] = []
    for is_disabled in (False, True):
        args = tiny_args(folder, disable_sliding_window=is_disabled, block_size=4)
        with LLM.from_engine_args(args) as llm:
            longest = window if is_disabled else 512
            assert llm.llm_engine.max_model_len == llm.model_config.max_model_len == longest
            found.append(tokens(llm, prompts, window - LENGTHS[-1]))
    assert found == [[expected for _, expected in drawn]] * 2
    groups = read_model_config(folder, disable_sliding_window=True).kv_spec(4, "float32").groups
    assert [group.window for group in groups] == [None]


def test_workers_of_their_own_have_no_window_either(tmp_path: Path) -> None:
    folder = make_model(tmp_path / "gemma2", "gemma2")
    ((prompt, expected),) = Reference(folder).draw_all_greedy([(4, ())], 5)
    args = tiny_args(folder, disable_sliding_window=True, prefill_workers=1, decode_workers=1, split="always")
    with LLM.from_engine_args(args) as llm:
        assert llm.llm_engine.max_model_len == 9
        assert tokens(llm, [list(prompt)], 5) == [expected]


@pytest.mark.parametrize("variant", ["mistral-window", "gemma2", "starcoder2-window"])
def test_a_longest_sequence_beyond_the_window_is_refused(variant: str, tmp_path: Path) -> None:
    folder, window = make_model(tmp_path / variant, variant), WINDOWS[variant]
    said = f"max_model_len is {window + 1}; allowed with disable_sliding_window: at most {window}, the"
    given: dict[str, Any] = {"disable_sliding_window": True, "max_model_len": window + 1}
    for call in (LLM.from_engine_args, lambda args: args.create_engine_config()):
        with pytest.raises(InvalidConfigError, match=said):
            call(tiny_args(folder, **given))
    with LLM.from_engine_args(tiny_args(folder, **{**given, "max_model_len": window - 2})) as llm:
        assert llm.llm_engine.max_model_len == window - 2


def test_models_without_a_window_stay_as_they_are(tmp_path: Path) -> None:
    for variant in ("llama", "gpt2", "gpt-neox"):
        folder = make_model(tmp_path / variant, variant)
        assert read_model_config(folder, disable_sliding_window=True) == read_model_config(folder)


def test_an_encoder_takes_prompts_whose_tokens_all_see_each_other(tmp_path: Path) -> None:
    make_pooling_model(tmp_path, ModernBertConfig, ModernBertModel, local_attention=12, pad_token_id=0)
    prompt = make_prompt(7)
    embeddings = []
    for is_disabled in (False, True):
        args = tiny_args(tmp_path, runner="pooling", disable_sliding_window=is_disabled)
        with LLM.from_engine_args(args) as llm:
            assert llm.llm_engine.max_model_len == (7 if is_disabled else 128)
            (output,) = llm.embed([prompt], use_tqdm=False)
            embeddings.append(output.outputs.embedding)
    assert embeddings[1] == pytest.approx(embeddings[0], abs=1e-5)
    layers = read_model_config(tmp_path, disable_sliding_window=True).layers  # type: ignore[attr-defined]
    assert {layer.window for layer in layers} == {None}


def test_code_from_elsewhere_keeps_its_windows(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    folder = make_model(tmp_path / "mistral", "mistral-window")
    config = read_model_config(folder)

    class Registered:
        architecture, dtype, kv_spec = config.architecture, config.dtype, config.kv_spec

        @staticmethod
        def read_config(*_: object) -> type[Registered]:
            return Registered

        forward = logits = None

    monkeypatch.setattr(ModelRegistry, "_registered", {config.architecture: Registered})
    said = "disable_sliding_window is True; allowed with MistralForCausalLM: False"
    with pytest.raises(InvalidConfigError, match=said):
        read_model_config(folder, disable_sliding_window=True)


def test_the_servers_flag_is_one_of_its_workers() -> None:
    args = parse(["serve", "m", "--disable-sliding-window"])
    assert "--disable-sliding-window" in worker_flags(args, num_workers=1)
    assert parse(["prefill-worker", "m", "--disable-sliding-window"]).disable_sliding_window
