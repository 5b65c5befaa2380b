"""Flags of a router whose default the environment gives."""

from __future__ import annotations

import pytest

from baton.commands.cli_arguments import parse
from baton.commands.router_arguments import max_n_sequences
from baton_core.errors import InvalidConfigError


def test_the_number_of_sequences_is_the_flags_then_the_environments_then_64(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    monkeypatch.delenv("VLLM_MAX_N_SEQUENCES", raising=False)
    assert max_n_sequences(parse(["router"])) == 64
    monkeypatch.setenv("VLLM_MAX_N_SEQUENCES", "200")
    assert max_n_sequences(parse(["router"])) == 200
    assert max_n_sequences(parse(["router", "--max-n-sequences", "100"])) == 100


def test_a_number_of_the_environment_that_is_none_is_refused_by_name(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("VLLM_MAX_N_SEQUENCES", "many")
    with pytest.raises(InvalidConfigError, match="VLLM_MAX_N_SEQUENCES is 'many'; allowed: an integer"):
        max_n_sequences(parse(["serve"]))
