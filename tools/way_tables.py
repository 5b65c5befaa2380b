"""The tables of docs/architecture.md that show the ways of a request and of a block, by file and line.

Steps, files and functions are written by hand; the lines come from the code, with `make reference`. A line
may be off by a few, so that not every change of the code touches the page.
"""

from __future__ import annotations

import ast
import re
from collections.abc import Mapping
from pathlib import Path
from typing import Final

DOCUMENT: Final = "docs/architecture.md"
TOLERANCE: Final = 25
"""Lines by which a function may be elsewhere than the page says."""
_CODE: Final = re.compile(r"`([^`\n]+)`")
_LINE: Final = re.compile(r"(?<=`:)\d+(?:, \d+)*")
_ROW: Final = re.compile(r"^\| .*`\w+/[\w/]+\.py`.* \|$", re.MULTILINE)


def with_lines(text: str, root: Path) -> str:
    """Return the document with the present line of each function behind its file.

    Raises:
        KeyError: a row names a function that its files lack.
    """
    return _ROW.sub(lambda row: _with_line(row[0], root), text)


def is_true(text: str, root: Path) -> bool:
    """Return whether each row names functions of its files, and lines near theirs."""
    fresh = with_lines(text, root)
    if _LINE.sub("", fresh) != _LINE.sub("", text):
        return False
    shown, found = (
        [int(number) for numbers in _LINE.findall(one) for number in numbers.split(", ")]
        for one in (text, fresh)
    )
    pairs = zip(shown, found, strict=False)
    return len(shown) == len(found) and all(abs(was - now) <= TOLERANCE for was, now in pairs)


def files_of(text: str, heading: str) -> list[str]:
    """Return the files that the table below a heading of the document names, each once."""
    section = text.partition(f"\n## {heading}\n")[2].partition("\n## ")[0]
    names = (name for row in _ROW.findall(section) for name in _CODE.findall(row))
    return list(dict.fromkeys(name for name in names if name.endswith(".py")))


def _with_line(row: str, root: Path) -> str:
    *head, files_cell, functions_cell = row.removesuffix(" |").split(" | ")
    functions = _CODE.findall(functions_cell)
    shown = []
    for file in _CODE.findall(files_cell):
        lines = _lines_of(root / file)
        found = [str(lines[function]) for function in functions if function in lines]
        shown.append(f"`{file}`:{', '.join(found)}")
        functions = [function for function in functions if function not in lines]
    if functions:
        raise KeyError(f"{functions} of the row: {row}")
    return f"{' | '.join([*head, ', '.join(shown), functions_cell])} |"


def _lines_of(path: Path) -> Mapping[str, int]:
    """Return the line of each function and class of a file, methods as `Class.method`."""
    lines = {}
    for node in ast.parse(path.read_text(encoding="utf-8")).body:
        if isinstance(node, ast.FunctionDef | ast.AsyncFunctionDef | ast.ClassDef):
            lines[node.name] = node.lineno
        if isinstance(node, ast.ClassDef):
            methods = (one for one in node.body if isinstance(one, ast.FunctionDef | ast.AsyncFunctionDef))
            lines |= {f"{node.name}.{one.name}": one.lineno for one in methods}
    return lines
