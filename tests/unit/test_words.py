"""The code's public names and docstrings keep to the words of docs/glossary.md.

A retired word is compared with whole parts of a name: `puller` is found in `PullerWires` and `start_puller`.
"""

from __future__ import annotations

import ast
import re
import tomllib
from collections.abc import Iterator
from pathlib import Path
from typing import Final

import pytest

ROOT: Final = Path(__file__).parents[2]
_SETUPTOOLS: Final = tomllib.loads((ROOT / "pyproject.toml").read_text(encoding="utf-8"))["tool"][
    "setuptools"
]
FOLDERS: Final = tuple(_SETUPTOOLS["packages"]["find"]["where"])
GLOSSARY: Final = (ROOT / "docs/glossary.md").read_text(encoding="utf-8")

RETIRED: Final = {
    "attend": "attention",
    "awaited": "in-flight",
    "charge": "load reservation",
    "charges": "load reservations",
    "company": "expected batch growth",
    "crowded": "saturated",
    "departure": "graceful shutdown, drain",
    "draw": "sample",
    "drawn": "sampled",
    "draws": "samples",
    "element_type": "dtype",
    "fate": "outcome",
    "form": "structured output, grammar",
    "forms": "structured outputs, grammars",
    "front_door": "generation service",
    "frontier": "in-flight prefixes",
    "go_on": "schedule, continue, resume",
    "guests": "reservations",
    "hold_back": "dispatch limit",
    "holder": "KV producer",
    "holders": "KV producers",
    "homeless": "awaiting decode",
    "hurried": "draining",
    "hurry": "set_draining",
    "ledger": "load, load reservation",
    "ledgers": "loads, load reservations",
    "pair_check": "transfer probe",
    "pair_checks": "transfer probes",
    "promise": "reserve",
    "puller": "KV consumer",
    "pullers": "KV consumers",
    "recorded_call": "decode graph",
    "recordings": "decode graphs",
    "rehome": "reassign",
    "seal": "checksum",
    "sealed": "with checksum",
    "seals": "checksums",
    "site": "app state",
    "soften": "softmax",
    "standing": "worker state",
    "story": "event log",
    "tell": "publish, emit",
    "told": "published, emitted",
    "untold": "pending",
    "waiting_line": "fair queue",
}
"""Words that no public name has, each with what is written instead."""

OPENINGS: Final = re.compile(
    r'^[ \t]*"""\s*(?:Of|What|Whether|Nothing|None of|Who|Those|That)\b.*', re.MULTILINE
)
"""Docstrings that begin with words that none begins with."""


RETIRED_PART: Final = re.compile(rf"_(?=({'|'.join(sorted(RETIRED, key=len, reverse=True))})_)")


def names_of(node: ast.AST) -> Iterator[str]:
    """Public names that a node defines: a class, a function, an attribute, or the names of a body."""
    match node:
        case ast.ClassDef() | ast.FunctionDef() | ast.AsyncFunctionDef():
            yield node.name
        case ast.Attribute(value=ast.Name(id="self"), attr=attribute, ctx=ast.Store()):
            yield attribute
    if isinstance(node, ast.Module | ast.ClassDef):
        for statement in node.body:
            targets = statement.targets if isinstance(statement, ast.Assign) else ()
            targets = (statement.target,) if isinstance(statement, ast.AnnAssign) else targets
            yield from (target.id for target in targets if isinstance(target, ast.Name))


def parts_of(name: str) -> str:
    """`KVPullerWires` as `_kv_puller_wires_`."""
    split = re.sub(r"(?<=[a-z0-9])(?=[A-Z])|(?<=[A-Z])(?=[A-Z][a-z])", "_", name)
    return f"_{split.lower()}_"


def retired_words(name: str) -> list[str]:
    return RETIRED_PART.findall(parts_of(name))


def sources_of(folder: str) -> Iterator[tuple[Path, str]]:
    """Return the path and text of each of a folder's files that are not generated."""
    for path in sorted((ROOT / folder).rglob("*.py")):
        if "_pb2" not in path.name:
            yield path, path.read_text(encoding="utf-8")


@pytest.mark.parametrize("folder", [*FOLDERS, "tests", "tools", "examples"])
def test_docstrings_begin_with_a_sentence(folder: str) -> None:
    assert [(path, text) for path, source in sources_of(folder) for text in OPENINGS.findall(source)] == []


def test_the_openings_of_docstrings_are_found() -> None:
    for source, num_found in (
        ('"""Of all."""', 1),
        ('    """\n    What it is.', 1),
        ('"""Offers all."""', 0),
    ):
        assert len(OPENINGS.findall(source)) == num_found
    assert OPENINGS.findall('x = """What"""') == []


@pytest.mark.parametrize("folder", FOLDERS)
def test_public_names_keep_to_the_words(folder: str) -> None:
    retired = {
        f"{name} in {path}: instead of {word!r} write {RETIRED[word]!r}"
        for path, source in sources_of(folder)
        for name in public_names(source) | {path.stem}
        for word in retired_words(name)
    }
    assert sorted(retired) == []


def public_names(source: str) -> set[str]:
    """Return the public names that a module defines."""
    nodes = ast.walk(ast.parse(source))
    return {name for node in nodes for name in names_of(node) if not name.startswith("_")}


def test_the_parts_of_a_name_are_whole_words() -> None:
    assert retired_words("KVPullerWires") == ["puller"]
    assert retired_words("Formatter") == retired_words("platforms") == []
    assert retired_words("num_pair_checks") == ["pair_checks"]


def test_the_glossary_has_each_term_once_and_in_order() -> None:
    terms = re.findall(r"^\| \*\*(.+?)\*\* \|", GLOSSARY, re.MULTILINE)
    assert len(terms) > 40
    assert terms == sorted(set(terms), key=str.lower)
