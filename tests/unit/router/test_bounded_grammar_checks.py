from __future__ import annotations

from collections.abc import Iterator
from dataclasses import replace
from typing import Final

import pytest

from baton_core.errors import InvalidRequestError
from baton_core.requests.structured_outputs import StructuredOutputsParams
from baton_router.structured_outputs.bounded_checks import LIMITS, BoundedGrammarChecks

SLOW: Final = StructuredOutputsParams(
    json={
        "type": "object",
        "patternProperties": {f"^[a-z]{{1,{each}}}x{each}$": {"type": "integer"} for each in range(1, 250)},
    }
)
"""A schema of 9 KiB that llguidance reads for minutes."""


@pytest.fixture(scope="module")
def checks() -> Iterator[BoundedGrammarChecks]:
    made = BoundedGrammarChecks(replace(LIMITS, wall_s=60.0))
    yield made
    made.close()


@pytest.mark.slow
def test_a_schema_that_takes_minutes_to_read_is_left_to_the_worker(checks: BoundedGrammarChecks) -> None:
    pid = checks._processes.fork_server_pid
    checks.check(SLOW)
    assert checks._processes.fork_server_pid != pid  # which a process was made for
    checks.check(StructuredOutputsParams(regex="[a-z]+"))


@pytest.mark.parametrize(
    ("form", "reason"),
    [
        ({"regex": "("}, r"regex is '\('; allowed: a regular expression \(unclosed group"),
        ({"json": {"type": "no type"}}, "structured_outputs.json is .*no type"),
        ({"grammar": "root ::= missing"}, "structured_outputs.grammar is 'root ::= missing'"),
        ({"choice": ["a\0"]}, "without the character"),
        ({"regex": "\ud800"}, "text that UTF-8 can hold"),
    ],
)
def test_a_wrong_form_is_refused_as_if_it_were_checked_here(
    checks: BoundedGrammarChecks, form: dict[str, object], reason: str
) -> None:
    with pytest.raises(InvalidRequestError, match=reason):
        checks.check(StructuredOutputsParams(**form))  # type: ignore[arg-type]
