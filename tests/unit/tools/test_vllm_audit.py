"""The audit's judgement: an item works, is refused with a reason, is missing without a word, or differs."""

from __future__ import annotations

import sys

import pytest

from tools.vllm_audit.decisions import decision_of
from tools.vllm_audit.groups import GROUPS
from tools.vllm_audit.page import page
from tools.vllm_audit.verdict import DifferentError, Status, Verdict, judge, reason_of, status_of_error


@pytest.mark.parametrize(
    ("item", "text"),
    [
        ("enable_lora", "enable_lora is True; allowed: False (adapters are not supported)"),
        ("--enable-lora", "--enable-lora is True; allowed: False (adapters are not supported)"),
        (
            "-tp, --tensor-parallel-size",
            "--tensor-parallel-size is 2; allowed: 1 (one device computes a model)",
        ),
        ("vllm.ray", "vllm.ray.anything is not in Baton: ranks are started by distributed_executor_backend"),
        (
            "PoolingParams",
            "cannot import name 'PoolingParams' from 'baton': models that pool are not supported",
        ),
    ],
)
def test_an_error_that_names_the_item_and_says_why_refuses_it(item: str, text: str) -> None:
    assert status_of_error(item, text) is Status.REFUSED


@pytest.mark.parametrize(
    ("item", "text"),
    [
        ("skip_clone", "SamplingParams.__init__() got an unexpected keyword argument 'skip_clone'"),
        ("model_config", "'LLM' object has no attribute 'model_config'"),
        ("PoolingParams", "cannot import name 'PoolingParams' from 'baton' (/a/long/path/baton/__init__.py)"),
        ("use_tqdm by position", "LLM.enqueue() takes from 2 to 3 positional arguments but 5 were given"),
        (
            "-tp, --tensor-parallel-size",
            "baton serve: error: unrecognized arguments: --tensor-parallel-size 2",
        ),
        ("load_format", "load_format is 'dummy'; allowed: auto, safetensors, pt"),
        ("dtype", "model is 'x'; allowed: a local model folder, or an id of a model hub"),
    ],
)
def test_an_error_without_name_or_reason_leaves_an_item_missing(item: str, text: str) -> None:
    assert status_of_error(item, text) is Status.MISSING


def test_a_reason_ends_where_pythons_own_words_begin() -> None:
    said = "No module (vllm.ray is not in Baton: one device computes); 'vllm.ray' is a package"
    assert reason_of(said) == "one device computes"


def test_what_a_probe_raises_or_gives_is_its_verdict() -> None:
    def differs() -> None:
        raise DifferentError("it reads None")

    def exits() -> None:
        sys.stderr.write("usage: never shown")
        raise SystemExit(2)

    assert judge("group", "item", lambda: "seen") == Verdict("group", "item", Status.WORKS, "seen")
    assert judge("group", "item", differs) == Verdict("group", "item", Status.DIFFERENT, "it reads None")
    assert judge("group", "item", exits).status is Status.MISSING


def test_a_flag_has_the_decision_of_its_field() -> None:
    assert decision_of("--block-size") == decision_of("block_size") != ""
    assert decision_of("no such item") == ""


def test_the_page_names_some_items_of_a_reason_and_counts_the_others() -> None:
    names = [*(f"field_{index}" for index in range(8)), "--field-0", "field_1(of=it)"]
    refusal = "InvalidConfigError: a is 1; allowed: 0 (there is none)"
    text = page([Verdict("EngineArgs fields", name, Status.REFUSED, refusal) for name in names])
    assert "`field_4`, `field_5` and 2 more | there is none |" in text


def test_every_group_has_items_and_a_title_of_its_own() -> None:
    assert len({group.title for group in GROUPS}) == len(GROUPS)
    assert sum(len(group.items) for group in GROUPS) == 797


def test_the_page_counts_items_and_tells_reasons_and_decisions() -> None:
    refusal = "InvalidConfigError: enable_lora is True; allowed: False (adapters are not supported)"
    verdicts = [
        Verdict("EngineArgs fields", "enable_lora", Status.REFUSED, refusal),
        Verdict(
            "serve flags", "--enable-lora", Status.REFUSED, refusal.replace("enable_lora", "--enable-lora")
        ),
        Verdict("EngineArgs fields", "block_size", Status.DIFFERENT, "default 32; vLLM 128"),
        Verdict("LLM methods", "chat", Status.WORKS),
    ]
    text = page(verdicts)
    assert "| LLM methods | 1 |  |  |" in text
    assert "| all | 1 | 2 | 1 |" in text
    assert "| `enable_lora` | adapters are not supported |" in text
    assert "| `block_size` | default 32; vLLM 128 |" in text
    assert "| `logprob_token_ids: ranks` | a rank is the one among all tokens, as in logprobs |" in text
    assert text.count("a temperature has no upper bound") == 1
