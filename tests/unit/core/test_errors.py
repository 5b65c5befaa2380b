from __future__ import annotations

import copy
import pickle

import pytest

from baton_core.errors import (
    BatonError,
    ContextLengthError,
    EngineDeadError,
    ErrorCode,
    IncompatibleWorkerError,
    InvalidConfigError,
    InvalidModelError,
    InvalidRequestError,
    NameTakenError,
    OverloadedError,
    RequestError,
    in_json_words,
    shown_briefly,
)


@pytest.mark.parametrize(
    "value", [None, 1.5, "a'b", b"x", [], (), (1,), [1, "a"], (1, (2,)), {}, {"a": [1, {"b": None}]}]
)
def test_a_short_value_is_shown_whole(value: object) -> None:
    assert shown_briefly(value) == repr(value)


@pytest.mark.parametrize("value", ["x" * 10**6, [1] * 10**6, {str(n): n for n in range(10**5)}, [["y" * 99]]])
def test_of_a_large_value_the_beginning_is_shown(value: object) -> None:
    assert shown_briefly(value) == repr(value)[:77] + "..."


def test_a_value_is_looked_at_no_further_than_it_is_shown() -> None:
    class Watched:
        def __repr__(self) -> str:
            raise AssertionError("nobody sees it")

    assert str(InvalidRequestError("a", [["x"] * 99, Watched()], "none")).endswith("...; allowed: none")


def test_values_that_python_writes_otherwise_are_said_as_json_writes_them() -> None:
    for value, allowed, said in (
        (True, "false", "stream is true; allowed: false"),
        (False, "True: it is needed", "stream is false; allowed: true: it is needed"),
        (None, "one of True and None", "stream is null; allowed: one of True and None"),
        ("None", "text", "stream is 'None'; allowed: text"),
    ):
        assert in_json_words(str(InvalidRequestError("stream", value, allowed))) == said


@pytest.mark.parametrize(
    "error",
    [
        BatonError("a"),
        InvalidRequestError("a", 1, "2"),
        ContextLengthError("prompt", 9, 8, 9),
        NameTakenError("a"),
        OverloadedError("a"),
        InvalidModelError("a"),
        InvalidConfigError("a"),
        IncompatibleWorkerError("a", is_permanent=True),
        RequestError(ErrorCode.UNAVAILABLE, "a", 1.5),
        EngineDeadError(ErrorCode.UNAVAILABLE, "a"),
    ],
    ids=lambda error: type(error).__name__,
)
def test_an_error_is_copied_and_sent_as_it_is(error: BatonError) -> None:
    for same in (copy.copy(error), copy.deepcopy(error), pickle.loads(pickle.dumps(error))):  # noqa: S301
        assert type(same) is type(error)
        assert (same.args, same.code, vars(same)) == (error.args, error.code, vars(error))


def test_a_wrong_argument_is_a_value_error_wherever_it_is_given() -> None:
    assert issubclass(InvalidConfigError, ValueError)
    assert issubclass(InvalidRequestError, ValueError)
