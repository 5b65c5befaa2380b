"""What a log line says."""

from __future__ import annotations

import io
import json
import logging
import re
from collections.abc import Iterator

import pytest

from baton_core.errors import InvalidConfigError
from baton_service.logs import configure_logging, current_request_id


@pytest.fixture(autouse=True)
def root_logger_restored() -> Iterator[None]:
    root = logging.getLogger()
    handlers, level = root.handlers[:], root.level
    yield
    root.handlers[:] = handlers
    root.setLevel(level)


def configured(**settings: str) -> tuple[logging.Logger, io.StringIO]:
    stream = io.StringIO()
    configure_logging("router", stream=stream, **settings)
    return logging.getLogger("baton_router.test"), stream


def test_a_text_line_has_time_level_role_and_message() -> None:
    log, stream = configured()
    log.warning("worker %s left", "w1")
    assert re.fullmatch(
        r"\d{4}-\d\d-\d\dT\d\d:\d\d:\d\d\.\d{3}Z WARNING router worker w1 left\n", stream.getvalue()
    )


def test_a_text_line_names_its_request() -> None:
    log, stream = configured()
    log.warning("late", extra={"request_id": "r1"})
    assert stream.getvalue().endswith(" router [r1] late\n")


def test_a_json_line_is_one_object_with_the_request_of_the_context() -> None:
    log, stream = configured(format="json")
    token = current_request_id.set("r2")
    try:
        raise ValueError("bad")
    except ValueError:
        log.exception("failed")
    finally:
        current_request_id.reset(token)
    entry = json.loads(stream.getvalue())
    assert stream.getvalue().count("\n") == 1
    assert {name: entry[name] for name in ("level", "role", "logger", "message", "request_id")} == {
        "level": "error",
        "role": "router",
        "logger": "baton_router.test",
        "message": "failed",
        "request_id": "r2",
    }
    assert entry["exception"].endswith("ValueError: bad")


def test_a_json_line_outside_a_request_has_no_request_id() -> None:
    log, stream = configured(format="json")
    log.warning("up")
    assert "request_id" not in json.loads(stream.getvalue())


def test_lines_below_the_level_are_dropped() -> None:
    log, stream = configured(level="error")
    log.warning("up")
    assert stream.getvalue() == ""


@pytest.mark.parametrize(
    ("setting", "message"),
    [
        ({"format": "xml"}, "log format is 'xml'; allowed: text, json"),
        ({"level": "loud"}, "log level is 'loud'; allowed: debug, info, warning, error"),
    ],
)
def test_an_unknown_setting_is_refused(setting: dict[str, str], message: str) -> None:
    with pytest.raises(InvalidConfigError, match=re.escape(message)):
        configure_logging("router", **setting)
