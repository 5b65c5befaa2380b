"""`tokenization_kwargs` of every method that takes prompts, against Transformers' tokenizer."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import pytest
import torch
from tokenizers.processors import TemplateProcessing
from transformers import AutoTokenizer, BertConfig, BertForSequenceClassification, Qwen3Config, Qwen3Model

from baton import LLM
from baton.config.engine_args import BUNDLED_MODEL
from baton_core.errors import InvalidRequestError
from tests.integration.tiny_llm import greedy, tiny_args
from tests.pooling import make_pooling_model

TEXT = "The os module joins paths, and json reads what is in them."
CHAT = [{"role": "user", "content": TEXT}]
ARGS: dict[str, Any] = {"max_model_len": 64, "kv_cache_memory_bytes": 2**22, "enable_prompt_embeds": True}


def add_bos(tokenizer: Any, folder: Path) -> Path:
    """Write the tokenizer to a folder, so that it begins texts with a BOS token."""
    bos = tokenizer.convert_ids_to_tokens(0)
    tokenizer.bos_token = bos
    tokenizer.backend_tokenizer.post_processor = TemplateProcessing(
        single=f"{bos} $A", pair=f"{bos} $A {bos} $B", special_tokens=[(bos, 0)]
    )
    tokenizer.save_pretrained(folder)
    return folder


@pytest.fixture(scope="module")
def folder(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """The bundled model's tokenizer with a BOS token."""
    return add_bos(AutoTokenizer.from_pretrained(BUNDLED_MODEL), tmp_path_factory.mktemp("tokenizer"))


@pytest.fixture(scope="module")
def llm(folder: Path) -> Iterator[LLM]:
    with LLM.from_engine_args(tiny_args(Path(BUNDLED_MODEL), tokenizer=str(folder), **ARGS)) as llm:
        yield llm


def expected(folder: Path, *texts: str, side: str = "left", **options: Any) -> list[int]:
    tokenizer = AutoTokenizer.from_pretrained(folder, truncation_side=side)
    return list(tokenizer(*texts, **{"truncation": True, **options}).input_ids)


def asked(llm: LLM, method: str, prompt: Any, **options: Any) -> list[int]:
    """The tokens that a prompt became, by a method of an `LLM`."""
    params = [] if llm.llm_engine.pooling else [greedy(1)]
    outputs = getattr(llm, method)(prompt, *params, use_tqdm=False, tokenization_kwargs=options)
    if "enqueue" in method:
        outputs = llm.wait_for_completion(use_tqdm=False)
    return list(outputs[0].prompt_token_ids)


@pytest.mark.parametrize("method", ["generate", "enqueue"])
@pytest.mark.parametrize("length", [2, 7, 40])
@pytest.mark.parametrize("side", [None, "left", "right"])
def test_texts_are_cut_as_transformers_cuts_them(
    llm: LLM, folder: Path, method: str, length: int, side: str | None
) -> None:
    for adds_special in (True, False):
        options = {"max_length": length, "add_special_tokens": adds_special}
        found = asked(llm, method, TEXT, truncation=True, truncation_side=side, **options)
        assert found == expected(folder, TEXT, side=side or "left", **options)


@pytest.mark.parametrize("method", ["chat", "enqueue_chat"])
def test_conversations_are_cut_with_their_template_s_tokens(llm: LLM, folder: Path, method: str) -> None:
    tokenizer = AutoTokenizer.from_pretrained(folder)
    text = tokenizer.apply_chat_template(CHAT, tokenize=False, add_generation_prompt=True)
    for adds_special in (None, False, True):
        found = asked(llm, method, CHAT, truncation=True, max_length=9, add_special_tokens=adds_special)
        assert found == expected(folder, text, max_length=9, add_special_tokens=bool(adds_special))


def test_token_ids_are_cut_on_the_same_side(llm: LLM) -> None:
    prompt = list(range(5, 15))
    for side, kept in ((None, prompt[-4:]), ("left", prompt[-4:]), ("right", prompt[:4])):
        options = {"truncation": "longest_first", "max_length": 4, "truncation_side": side}
        assert asked(llm, "generate", prompt, **options) == kept


def test_without_a_length_as_many_tokens_are_kept_as_the_context_holds(llm: LLM, folder: Path) -> None:
    text = TEXT * 9
    assert asked(llm, "generate", text, truncation=True) == expected(folder, text, max_length=63)
    (output,) = llm.generate(
        text,
        greedy(20),
        use_tqdm=False,
        tokenization_kwargs={"truncation": True, "add_special_tokens": False},
    )
    assert output.prompt_token_ids == expected(folder, text, max_length=44, add_special_tokens=False)
    with pytest.raises(InvalidRequestError, match="max_length is 1; allowed: at least 2, with"):
        llm.generate(TEXT, greedy(63), use_tqdm=False, tokenization_kwargs={"truncation": True})
    off = {"truncation": "do_not_truncate", "max_length": None, "padding": False, "return_tensors": None}
    assert asked(llm, "generate", TEXT, **off) == expected(folder, TEXT, truncation=False)
    with pytest.raises(InvalidRequestError, match="maximum context length is 64"):
        asked(llm, "generate", text, truncation=False)


def test_prompts_to_pool_lose_their_end(tmp_path: Path) -> None:
    sizes = {"num_key_value_heads": 2, "head_dim": 16}
    make_pooling_model(tmp_path, Qwen3Config, Qwen3Model, **sizes)
    add_bos(AutoTokenizer.from_pretrained(tmp_path), tmp_path)
    with LLM.from_engine_args(tiny_args(tmp_path, runner="pooling")) as llm:
        for side in (None, "left", "right"):
            options = {"truncation": True, "max_length": 6, "truncation_side": side}
            for method in ("embed", "encode"):
                assert asked(llm, method, TEXT, **options) == expected(
                    tmp_path, TEXT, side=side or "right", max_length=6
                )
        assert asked(llm, "embed", TEXT * 9, truncation=True) == expected(
            tmp_path, TEXT * 9, side="right", max_length=128
        )
        with pytest.raises(InvalidRequestError, match="max_length is 129; allowed: 1 to 128"):
            asked(llm, "embed", TEXT, truncation=True, max_length=129)
        with pytest.raises(InvalidRequestError, match="max_length is 1; allowed: at least 2"):
            asked(llm, "embed", TEXT, truncation=True, max_length=1)


def test_pairs_and_texts_to_classify_are_cut_too(tmp_path: Path) -> None:
    make_pooling_model(tmp_path, BertConfig, BertForSequenceClassification, num_labels=1)
    add_bos(AutoTokenizer.from_pretrained(tmp_path), tmp_path)
    options = {"truncation": True, "max_length": 12}
    with LLM.from_engine_args(tiny_args(tmp_path)) as llm:
        assert asked(llm, "classify", TEXT, **options) == expected(
            tmp_path, TEXT, side="right", max_length=12
        )
        (output,) = llm.score(TEXT, "a" + TEXT, use_tqdm=False, tokenization_kwargs=options)
        assert output.prompt_token_ids == expected(tmp_path, TEXT, "a" + TEXT, side="right", max_length=12)


def test_workers_of_their_own_get_the_same_tokens(llm: LLM, folder: Path) -> None:
    options = {"truncation": True, "max_length": 8}
    given = {**ARGS, "tokenizer": str(folder), "prefill_workers": 1, "decode_workers": 1}
    with LLM.from_engine_args(tiny_args(Path(BUNDLED_MODEL), **given)) as apart:
        assert asked(apart, "generate", TEXT, **options) == expected(folder, TEXT, max_length=8)
        answers = [
            one.generate(TEXT, greedy(5), use_tqdm=False, tokenization_kwargs=options)[0].outputs[0].text
            for one in (llm, apart)
        ]
    assert answers[0] == answers[1]


@pytest.mark.parametrize(
    ("options", "said"),
    [
        ({"padding": True}, "tokenization_kwargs is 'padding'; allowed: truncate_prompt_tokens, add_special"),
        ({"stride": 2}, "tokenization_kwargs is 'stride'; allowed: truncate_prompt_tokens, add_special"),
        ({"truncation": "only_first"}, "truncation is 'only_first'; allowed: True or 'longest_first', False"),
        ({"truncation": 1}, "truncation is 1; allowed: True or"),
        ({"truncation": [True]}, r"truncation is \[True\]; allowed: True or"),
        ({"max_length": 5}, "max_length is 5; allowed: None, or a number beside truncation=True"),
        ({"truncation": True, "max_length": 0}, "max_length is 0; allowed: 1 to 63"),
        ({"truncation": True, "max_length": 64}, "max_length is 64; allowed: 1 to 63"),
        ({"truncation": True, "max_length": True}, "max_length is True; allowed: 1 to 63"),
        ({"truncation": True, "max_length": 1}, "max_length is 1; allowed: at least 2, with the tokenizer's"),
        ({"truncation": True, "truncation_side": "top"}, "truncation_side is 'top'; allowed: left or right"),
        ({"truncation_side": "right"}, "truncation_side is 'right'; allowed: None without truncation=True"),
        (
            {"truncation": True, "truncate_prompt_tokens": 3},
            "truncate_prompt_tokens is 3; allowed: None beside truncation",
        ),
        ({"add_special_tokens": "no"}, "add_special_tokens is 'no'; allowed: True or False"),
    ],
)
def test_what_has_no_meaning_is_refused(llm: LLM, options: dict[str, Any], said: str) -> None:
    calls: tuple[tuple[Callable[..., Any], Any], ...] = ((llm.generate, TEXT), (llm.enqueue, [TEXT]))
    for call, prompt in calls:
        with pytest.raises(InvalidRequestError, match=said):
            call(prompt, greedy(1), use_tqdm=False, tokenization_kwargs=options)


def test_prompts_of_embeddings_have_nothing_to_cut(llm: LLM) -> None:
    size = llm.llm_engine.model_config.get_hidden_size()
    with pytest.raises(
        InvalidRequestError, match="truncation is True; allowed: nothing beside prompt_embeds"
    ):
        asked(llm, "generate", {"prompt_embeds": torch.zeros(3, size)}, truncation=True)
