"""The code's public names and docstrings keep to the words of docs/glossary.md.

A retired word is compared with whole parts of a name: `puller` is found in `PullerWires` and `start_puller`.
"""

from __future__ import annotations

import ast
import re
import tomllib
from collections.abc import Iterator
from functools import cache
from pathlib import Path
from typing import Final

import pytest

ROOT: Final = Path(__file__).parents[2]
_SETUPTOOLS: Final = tomllib.loads((ROOT / "pyproject.toml").read_text(encoding="utf-8"))["tool"][
    "setuptools"
]
FOLDERS: Final = tuple(_SETUPTOOLS["packages"]["find"]["where"])
GLOSSARY: Final = (ROOT / "docs/glossary.md").read_text(encoding="utf-8")

ALLOWED: Final[dict[str, str]] = {}
"""Public names with a retired word that means something else there, each with the reason."""

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

OPENINGS: Final = re.compile(r"(Of|What|Whether|Nothing|None of|Who|Those|That)\b")
"""Words that no docstring begins with."""


def names_of(text: str, module: str) -> Iterator[str]:
    """Public names that a module defines: its own, classes, functions, methods and attributes."""
    yield module
    for node in ast.walk(ast.parse(text)):
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
    return [word for word in RETIRED if f"_{word}_" in parts_of(name)]


def docstrings_of(text: str) -> Iterator[str]:
    """Docstrings of modules, classes, functions, and of the attributes that a string follows."""
    for node in ast.walk(ast.parse(text)):
        body = getattr(node, "body", None)
        for statement in body if isinstance(body, list) else ():
            match statement:
                case ast.Expr(value=ast.Constant(value=str(docstring))):
                    yield docstring.strip()


@cache
def sources_of(folder: str) -> dict[str, str]:
    """Text of each module that is written by hand, by its path."""
    paths = sorted((ROOT / folder).rglob("*.py"))
    return {
        str(path.relative_to(ROOT)): path.read_text(encoding="utf-8")
        for path in paths
        if "_pb2" not in path.name
    }


@pytest.mark.parametrize("folder", FOLDERS)
def test_no_public_name_has_a_retired_word(folder: str) -> None:
    found = {
        f"{name} in {path}: instead of {word!r} write {RETIRED[word]!r}"
        for path, text in sources_of(folder).items()
        for name in names_of(text, Path(path).stem)
        if not name.startswith("_") and name not in ALLOWED
        for word in retired_words(name)
    }
    assert sorted(found) == []


@pytest.mark.parametrize("folder", [*FOLDERS, "tests", "tools", "examples"])
def test_no_docstring_begins_with_such_a_word(folder: str) -> None:
    found = [
        f"{path}: {docstring.splitlines()[0]}"
        for path, text in sources_of(folder).items()
        for docstring in docstrings_of(text)
        if OPENINGS.match(docstring)
    ]
    assert found == []


def test_every_allowed_name_exists_and_needs_it() -> None:
    names = {
        name
        for folder in FOLDERS
        for path, text in sources_of(folder).items()
        for name in names_of(text, Path(path).stem)
    }
    assert [name for name in ALLOWED if name not in names or not retired_words(name)] == []


def test_the_parts_of_a_name_are_whole_words() -> None:
    assert retired_words("KVPullerWires") == ["puller"]
    assert retired_words("Formatter") == retired_words("platforms") == []
    assert retired_words("num_pair_checks") == ["pair_checks"]


def test_the_glossary_has_each_term_once_and_in_order() -> None:
    terms = re.findall(r"^\| \*\*(.+?)\*\* \|", GLOSSARY, re.MULTILINE)
    assert len(terms) > 40
    assert terms == sorted(set(terms), key=str.lower)
