"""The names of vLLM's `arg_utils` that mean something here, and the reason why the others do not."""

from __future__ import annotations

import pytest

from baton.config.engine_args import EngineArgs
from baton.engine import arg_utils
from baton_core.errors import InvalidConfigError


@pytest.mark.parametrize(
    ("text", "number"), [("1k", 1000), ("1K", 1024), ("25.6k", 25_600), ("2M", 2 << 20), ("-7", -7)]
)
def test_integers_are_read_with_their_units(text: str, number: int) -> None:
    assert arg_utils.human_readable_int(text) == number
    assert arg_utils.human_readable_int_or_auto(text) == number


@pytest.mark.parametrize("text", ["25.6K", "x", "", "1.5"])
def test_what_is_no_integer_is_refused(text: str) -> None:
    with pytest.raises(InvalidConfigError, match=f"value is '{text}'; allowed: an integer, or as 16k"):
        arg_utils.human_readable_int(text)


def test_auto_is_minus_one_where_it_may_stand() -> None:
    assert arg_utils.human_readable_int_or_auto("auto") == -1
    with pytest.raises(InvalidConfigError, match="value is 'auto'"):
        arg_utils.human_readable_int("auto")


def test_internal_names_say_what_they_are() -> None:
    assert arg_utils.EngineArgs is EngineArgs
    with pytest.raises(
        ImportError, match=r"get_kwargs is internal to vLLM's parser; EngineArgs\.add_cli_args"
    ):
        from baton.engine.arg_utils import get_kwargs  # noqa: F401
    with pytest.raises(AttributeError, match="has no attribute 'nothing'"):
        arg_utils.nothing  # noqa: B018
