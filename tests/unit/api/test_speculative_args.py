"""The fields of speculation, and values that are refused by name."""

from __future__ import annotations

from typing import Any

import pytest

from baton import EngineArgs
from baton.config.worker_parts import worker_settings
from baton_core.errors import InvalidConfigError
from baton_core.sessions.worker_info import Role
from baton_core.worker.speculative_config import SpeculativeMethod, read_speculative_config

NGRAM = {"method": "ngram", "num_speculative_tokens": 3}


def test_nothing_is_drafted_unless_it_is_asked_for() -> None:
    assert read_speculative_config(None) is read_speculative_config({}) is None
    assert EngineArgs().create_speculative_config() is None


@pytest.mark.parametrize(
    ("given", "bounds"),
    [
        ({}, (5, 5)),
        ({"prompt_lookup_max": 4}, (4, 4)),
        ({"prompt_lookup_min": 2}, (2, 2)),
        ({"prompt_lookup_min": 2, "prompt_lookup_max": 6}, (2, 6)),
        ({"prompt_lookup_min": None, "draft_tensor_parallel_size": 1}, (5, 5)),
    ],
)
def test_bounds_of_prompt_lookup_have_the_defaults_of_vllm(
    given: dict[str, Any], bounds: tuple[int, int]
) -> None:
    config = read_speculative_config(NGRAM | given)
    assert config is not None
    assert (config.prompt_lookup_min, config.prompt_lookup_max) == bounds
    assert (config.method, config.num_speculative_tokens) == (SpeculativeMethod.NGRAM, 3)


def test_suffix_decoding_drafts_up_to_its_depth() -> None:
    config = read_speculative_config({"method": "suffix", "suffix_decoding_max_tree_depth": 9})
    assert config is not None
    assert (config.method, config.num_speculative_tokens) == (SpeculativeMethod.SUFFIX, 9)


def test_weights_that_draft_are_loaded_where_tokens_are_decoded() -> None:
    drafts = EngineArgs(speculative_config={"model": "small", "num_speculative_tokens": 2})
    told = {role: worker_settings(drafts, role=role).engine.speculative for role in Role}
    assert told[Role.PREFILL] is None
    assert told[Role.DECODE] == told[Role.MIXED] == drafts.create_speculative_config()
    lookup = worker_settings(EngineArgs(speculative_config=NGRAM), role=Role.PREFILL)
    assert lookup.engine.speculative is not None, "it costs nothing until the role changes"


def test_the_model_may_name_the_method_and_short_fields_are_keys() -> None:
    args = EngineArgs(spec_model="[ngram]", spec_tokens=4, speculative_config={"prompt_lookup_max": 2})
    config = args.create_speculative_config()
    assert config is not None
    assert (config.method, config.num_speculative_tokens) == (SpeculativeMethod.NGRAM, 4)
    assert config.prompt_lookup_max == 2


@pytest.mark.parametrize(
    ("given", "message"),
    [
        ({"method": "ngram"}, "num_speculative_tokens: None; allowed: an integer from 1 to 128"),
        (NGRAM | {"num_speculative_tokens": 129}, "num_speculative_tokens: 129; allowed: an integer from 1"),
        (NGRAM | {"num_speculative_tokens": True}, "num_speculative_tokens: True; allowed: an integer"),
        (NGRAM | {"method": "dflash"}, "method: 'dflash'; allowed: ngram"),
        (NGRAM | {"method": 7}, "method: 7; allowed: ngram"),
        (NGRAM | {"prompt_lookup_min": 0}, "prompt_lookup_min: 0; allowed: an integer of at least 1"),
        (
            NGRAM | {"prompt_lookup_min": 4, "prompt_lookup_max": 3},
            "prompt_lookup_min: 4; allowed: at most 3, prompt_lookup_max",
        ),
        (NGRAM | {"disable_by_batch_size": 0}, "disable_by_batch_size: 0; allowed: an integer of at least"),
        (NGRAM | {"draft_tensor_parallel_size": 2}, "draft_tensor_parallel_size: 2; allowed: None or 1"),
        (
            {"method": "suffix", "suffix_decoding_min_token_prob": 1.5},
            "suffix_decoding_min_token_prob: 1.5; allowed: a number from 0 to 1",
        ),
        (
            {"method": "suffix", "suffix_decoding_max_spec_factor": "2"},
            "suffix_decoding_max_spec_factor: '2'; allowed: a number of at least 0",
        ),
        (
            {"method": "suffix", "suffix_decoding_max_cached_requests": -1},
            "suffix_decoding_max_cached_requests: -1; allowed: an integer of at least 0",
        ),
        (NGRAM | {"tokens": 2}, "tokens: 2; allowed: method, num_speculative_tokens"),
        (NGRAM | {"rejection_sample_method": "block"}, "rejection_sample_method: 'block'; allowed: None or"),
    ],
)
def test_a_wrong_value_is_refused_by_name(given: dict[str, Any], message: str) -> None:
    with pytest.raises(InvalidConfigError) as refused:
        EngineArgs(speculative_config=given)
    assert str(refused.value).startswith(f"speculative_config has {message}")


@pytest.mark.parametrize(
    ("given", "message"),
    [
        (
            {"speculative_config": NGRAM, "spec_tokens": 2},
            "spec_tokens is 2 and speculative_config has num_speculative_tokens: 3; allowed: one value",
        ),
        (
            {"speculative_config": NGRAM, "async_scheduling": True},
            "async_scheduling is True; allowed with speculative_config: False",
        ),
        ({"spec_tokens": 0}, "spec_tokens is 0; allowed: an integer from 1 to 128"),
    ],
)
def test_fields_that_contradict_each_other_are_refused(given: dict[str, Any], message: str) -> None:
    with pytest.raises(InvalidConfigError) as refused:
        EngineArgs(**given)
    assert message in str(refused.value)
