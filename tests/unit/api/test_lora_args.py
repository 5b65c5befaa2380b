"""Arguments of LoRA adapters are checked by name."""

from __future__ import annotations

from typing import Any

import pytest

from baton import EngineArgs
from baton.config.ignored_engine_args import log_ignored
from baton.config.lora_args import adapter_settings
from baton_core.errors import InvalidConfigError


@pytest.mark.parametrize(
    ("given", "said"),
    [
        ({"lora_dtype": "float16"}, r"lora_dtype is 'float16'; allowed: 'auto' \(adapters are computed in"),
        ({"max_lora_rank": 513}, "max_lora_rank is 513; allowed: an integer from 1 to 512"),
        ({"max_loras": 3, "max_cpu_loras": 2}, "max_cpu_loras is 2; allowed: at least 3, the max_loras"),
    ],
)
def test_what_cannot_hold_is_refused(given: dict[str, Any], said: str) -> None:
    with pytest.raises(InvalidConfigError, match=said):
        EngineArgs(**given)


def test_how_adapters_are_divided_between_ranks_is_named_as_without_an_effect(
    caplog: pytest.LogCaptureFixture,
) -> None:
    log_ignored(vars(EngineArgs(fully_sharded_loras=True)))
    assert "fully_sharded_loras" in caplog.text


def test_as_many_adapters_stay_loaded_as_run_at_once_unless_more_are_asked_for() -> None:
    assert adapter_settings(EngineArgs()) is None
    for given, most in (({}, 3), ({"max_cpu_loras": 9}, 9)):
        settings = adapter_settings(EngineArgs(enable_lora=True, max_loras=3, max_lora_rank=64, **given))
        assert settings is not None
        assert (settings.max_cpu_loras, settings.max_rank) == (most, 64)
