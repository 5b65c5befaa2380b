"""Tests that a document names by links: which those are, and which of them do not exist."""

from __future__ import annotations

import ast
import re
from functools import cache
from pathlib import Path
from typing import Final

ROOT: Final = Path(__file__).parents[1]
LINK: Final = re.compile(r"\[`(test_\w+)`\]\(\.\./(tests/[\w/]+\.py)\)")


def text_of(document: str) -> str:
    return (ROOT / "docs" / document).read_text(encoding="utf-8")


def missing_tests(text: str) -> list[str]:
    """Links to tests that are not there."""
    return [f"{file}::{name}" for name, file in LINK.findall(text) if name not in _names_in(file)]


@cache
def _names_in(file: str) -> frozenset[str]:
    """Names of the test functions of a file, those of classes included."""
    if not (ROOT / file).is_file():
        return frozenset()
    tree = ast.parse((ROOT / file).read_text(encoding="utf-8"))
    kinds = (ast.FunctionDef, ast.AsyncFunctionDef)
    return frozenset(node.name for node in ast.walk(tree) if isinstance(node, kinds))
