"""Every attack that docs/security.md and docs/reliability.md list names its bound and tests that exist."""

from __future__ import annotations

from typing import Final

import pytest

from tests.documented_tests import LINK, missing_tests, text_of

HEADS: Final = {
    "security.md": "| attack | what bounds it | shown by |",
    "reliability.md": "| attack | what holds it | shown by |",
}
WHOSE: Final = ("A stranger at a port", "A tenant", "Who reaches the inside", "Who publishes a model")
"""Parts of the table in docs/security.md; the threat model above it names the same."""


def rows_of(document: str) -> list[tuple[str, str, str]]:
    """The cells of each row of the document's table of attacks."""
    lines = iter(text_of(document).splitlines())
    while next(lines) != HEADS[document]:
        pass
    next(lines)
    rows = []
    while (line := next(lines)).startswith("|"):
        attack, bound, shown_by = line.strip("|").split("|")
        rows.append((attack.strip(), bound.strip(), shown_by.strip()))
    return rows


ATTACKS: Final = [
    (document, *row) for document in HEADS for row in rows_of(document) if not row[0].startswith("**")
]


@pytest.mark.parametrize(("document", "attack", "bound", "shown_by"), ATTACKS, ids=lambda cell: cell[:40])
def test_an_attack_has_a_bound_and_tests_that_exist(
    document: str, attack: str, bound: str, shown_by: str
) -> None:
    assert bound
    assert LINK.search(shown_by)
    assert missing_tests(shown_by) == []


def test_no_attack_is_listed_twice() -> None:
    names = [(document, attack) for document, attack, _, _ in ATTACKS]
    assert len(set(names)) == len(names)


def test_the_table_has_a_part_for_each_attacker() -> None:
    parts = [attack.strip("*") for attack, _, _ in rows_of("security.md") if attack.startswith("**")]
    assert [part for part in WHOSE if part not in parts] == []


def test_every_test_that_is_named_elsewhere_in_them_exists() -> None:
    assert [missing for document in HEADS for missing in missing_tests(text_of(document))] == []
