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

OPENINGS: Final = re.compile(r"(Of|What|Whether|Nothing|None of|Who|Those|That)\b")
"""Words that no docstring begins with."""


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


def docstrings_of(node: ast.AST) -> Iterator[str]:
    """Docstring of a module, class or function, and of the attributes that a string follows."""
    body = getattr(node, "body", None)
    for statement in body if isinstance(body, list) else ():
        match statement:
            case ast.Expr(value=ast.Constant(value=str(docstring))):
                yield docstring.strip()


def parts_of(name: str) -> str:
    """`KVPullerWires` as `_kv_puller_wires_`."""
    split = re.sub(r"(?<=[a-z0-9])(?=[A-Z])|(?<=[A-Z])(?=[A-Z][a-z])", "_", name)
    return f"_{split.lower()}_"


def retired_words(name: str) -> list[str]:
    return RETIRED_PART.findall(parts_of(name))


@pytest.mark.parametrize("folder", [*FOLDERS, "tests", "tools", "examples"])
def test_names_and_docstrings_keep_to_the_words(folder: str) -> None:
    retired, openings = set[str](), list[str]()
    for path in sorted((ROOT / folder).rglob("*.py")):
        if "_pb2" in path.name:
            continue
        nodes = list(ast.walk(ast.parse(path.read_text(encoding="utf-8"))))
        openings += [
            f"{path}: {text}" for node in nodes for text in docstrings_of(node) if OPENINGS.match(text)
        ]
        if folder in FOLDERS:
            public = {name for node in nodes for name in names_of(node) if not name.startswith("_")}
            retired |= {
                f"{name} in {path}: instead of {word!r} write {RETIRED[word]!r}"
                for name in public | {path.stem}
                for word in retired_words(name)
            }
    assert (sorted(retired), openings) == ([], [])


def test_the_parts_of_a_name_are_whole_words() -> None:
    assert retired_words("KVPullerWires") == ["puller"]
    assert retired_words("Formatter") == retired_words("platforms") == []
    assert retired_words("num_pair_checks") == ["pair_checks"]


def test_the_glossary_has_each_term_once_and_in_order() -> None:
    terms = re.findall(r"^\| \*\*(.+?)\*\* \|", GLOSSARY, re.MULTILINE)
    assert len(terms) > 40
    assert terms == sorted(set(terms), key=str.lower)
