"""Builds the training text: Python's documentation, its docstrings, and questions answered from both.

Input: the HTML of Python's documentation (Debian: apt-get install python3.11-doc) and the standard library of
the Python that runs this. Both are under the Python Software Foundation licence.
Usage: python corpus.py --docs /usr/share/doc/python3.11/html --out corpus.jsonl
"""

from __future__ import annotations

import argparse
import ast
import json
import re
import sysconfig
import zlib
from dataclasses import dataclass, field
from pathlib import Path

from html_text import Block, page_text, parse_page, plain
from questions import (
    FAVOURITES,
    HAND_WRITTEN,
    WELL_KNOWN,
    WELL_KNOWN_MODULES,
    pairs_for_module,
    pairs_for_name,
)

SECTIONS = ("tutorial", "library", "reference", "howto", "faq")
LEFT_OUT_PAGES = {
    "library/index",
    "tutorial/index",
    "reference/index",
    "howto/index",
    "faq/index",
    "reference/grammar",
    "library/tkinter.tix",
    "howto/clinic",
}
LEFT_OUT_MODULES = {
    "test",
    "idlelib",
    "lib2to3",
    "turtledemo",
    "site-packages",
    "pydoc_data",
    "ensurepip",
    "distutils",
    "__pycache__",
    "tests",
    "encodings",
    "config",
}
HELD_OUT_ONE_IN = 25
NOTES = (
    "New in version",
    "Changed in version",
    "Deprecated since",
    "Source code:",
    "Availability:",
    "See also",
    "Note",
    "Warning",
    "Raises an auditing event",
    "Deprecated,",
)


@dataclass
class Corpus:
    """Texts by document name, and question-and-answer pairs by how often they are worth showing."""

    documents: dict[str, str] = field(default_factory=dict)
    held_out: dict[str, str] = field(default_factory=dict)
    pairs: list[tuple[str, str]] = field(default_factory=list)
    well_known: list[tuple[str, str]] = field(default_factory=list)
    favourites: list[tuple[str, str]] = field(default_factory=list)

    def add_pairs(self, pairs: list[tuple[str, str]], name: str, well_known: frozenset[str]) -> None:
        """Files the pairs about a name by how well it is known."""
        tier = self.pairs
        if name in FAVOURITES:
            tier = self.favourites
        elif name in well_known:
            tier = self.well_known
        tier.extend(pair for pair in pairs if 12 <= len(pair[1]) <= 500)


def is_held_out(page: str) -> bool:
    """Chosen by a checksum of the name, so that a rebuilt corpus holds out the same pages."""
    module = page.split("/")[-1]
    if module in WELL_KNOWN_MODULES or module in ("functions", "stdtypes", "exceptions"):
        return False
    return zlib.crc32(page.encode()) % HELD_OUT_ONE_IN == 0


def _paragraph_after(blocks: list[Block], start: int, past_headings: bool = False) -> str:
    """The first paragraph that says something, before the next signature or heading."""
    for block in blocks[start:]:
        if block.kind == "sig" or (block.kind.startswith("h") and not past_headings):
            return ""
        if block.kind == "para" and not block.text.startswith(NOTES):
            return block.text
    return ""


def page_pairs(corpus: Corpus, blocks: list[Block], seen: set[str]) -> None:
    """Adds the questions that a page answers: its module, and every name it documents."""
    if blocks and (found := re.fullmatch(r"([\w.]+) - (.+)", blocks[0].text)):
        module, title = found.groups()
        paragraph = _paragraph_after(blocks, 1, past_headings=True)
        if paragraph:
            corpus.add_pairs(pairs_for_module(module, title, paragraph), module, WELL_KNOWN_MODULES)
    for index, block in enumerate(blocks):
        if block.kind != "sig" or not block.role or block.name in seen:
            continue
        after = index + 1
        while after < len(blocks) and blocks[after].kind == "sig":
            after += 1
        paragraph = _paragraph_after(blocks, after)
        if paragraph and block.name:
            seen.add(block.name)
            pairs = pairs_for_name(block.name, block.role, block.text, paragraph)
            corpus.add_pairs(pairs, block.name, WELL_KNOWN)


def add_documentation(corpus: Corpus, docs: Path, seen: set[str]) -> None:
    """Every page of the sections taken, as text and as questions."""
    for section in SECTIONS:
        for path in sorted((docs / section).glob("*.html")):
            page = f"{section}/{path.stem}"
            if page in LEFT_OUT_PAGES:
                continue
            blocks = [
                block
                for block in parse_page(path.read_text("utf-8", "replace"))
                if not block.text.startswith("Source code:")
            ]
            if is_held_out(page):
                corpus.held_out[page] = page_text(blocks)
                seen.update(block.name for block in blocks if block.name)
                continue
            corpus.documents[page] = page_text(blocks)
            page_pairs(corpus, blocks, seen)


def _docstrings(tree: ast.Module, module: str) -> list[tuple[str, str, str, str]]:
    """(name, role, signature, docstring) of a module's public functions, classes and methods."""
    found: list[tuple[str, str, str, str]] = []

    def visit(node: ast.AST, prefix: str, within_class: bool) -> None:
        for child in ast.iter_child_nodes(node):
            if not isinstance(child, ast.FunctionDef | ast.AsyncFunctionDef | ast.ClassDef):
                continue
            name = f"{prefix}.{child.name}"
            text = ast.get_docstring(child) or ""
            public = not child.name.startswith("_")
            if isinstance(child, ast.ClassDef):
                if public and text:
                    found.append((name, "class", f"class {name}", text))
                if public:
                    visit(child, name, True)
            elif public and text:
                signature = f"{name}({ast.unparse(child.args)})"
                found.append((name, "method" if within_class else "function", signature, text))

    visit(tree, module, False)
    return found


def add_docstrings(corpus: Corpus, library: Path, seen: set[str]) -> None:
    """The docstrings of the standard library, a document a module; questions for names not in the docs."""
    for path in sorted(library.rglob("*.py")):
        parts = path.relative_to(library).with_suffix("").parts
        if LEFT_OUT_MODULES & set(parts) or any(
            part.startswith("_") and part != "__init__" for part in parts
        ):
            continue
        module = ".".join(part for part in parts if part != "__init__")
        try:
            tree = ast.parse(path.read_text("utf-8"))
        except (SyntaxError, UnicodeDecodeError):
            continue
        found = _docstrings(tree, module)
        text = f"# {module}\n\n{ast.get_docstring(tree) or ''}\n\n" + "".join(
            f"{signature}\n{docstring}\n\n" for _, _, signature, docstring in found
        )
        text = plain(re.sub(r"\n{3,}", "\n\n", text)).rstrip() + "\n"
        if len(text) < 200:
            continue
        names = [module[:end] for end in range(len(module)) if module[end] == "."] + [module]
        if any(is_held_out(f"library/{name}") for name in names):
            corpus.held_out[f"docstrings/{module}"] = text
            continue
        corpus.documents[f"docstrings/{module}"] = text
        for name, role, signature, docstring in found:
            if name not in seen:
                seen.add(name)
                paragraph = docstring.split("\n\n")[0]
                corpus.add_pairs(pairs_for_name(name, role, signature, paragraph)[:2], name, WELL_KNOWN)


def build(docs: Path) -> Corpus:
    """The whole corpus, the same for the same input."""
    if not (docs / "library").is_dir():
        raise SystemExit(f"{docs} holds no Python documentation (Debian: apt-get install python3.11-doc)")
    corpus, seen = Corpus(), set[str]()
    add_documentation(corpus, docs, seen)
    add_docstrings(corpus, Path(sysconfig.get_path("stdlib")), seen)
    corpus.favourites.extend(HAND_WRITTEN * 2)
    return corpus


def main() -> None:
    """Writes the corpus as JSON lines, to look at."""
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--docs", type=Path, required=True, help="folder of Python's HTML documentation")
    parser.add_argument("--out", type=Path, required=True, help="the JSON lines file to write")
    flags = parser.parse_args()
    corpus = build(flags.docs)
    with flags.out.open("w") as file:
        for kind in ("documents", "held_out"):
            for name, text in getattr(corpus, kind).items():
                file.write(json.dumps({"kind": kind, "name": name, "text": text}) + "\n")
        for kind in ("pairs", "well_known", "favourites"):
            for question, answer in getattr(corpus, kind):
                file.write(json.dumps({"kind": kind, "question": question, "answer": answer}) + "\n")
    print(f"documents: {len(corpus.documents)}, {sum(map(len, corpus.documents.values())):,} characters")
    print(f"held out: {len(corpus.held_out)}, {sum(map(len, corpus.held_out.values())):,} characters")
    print(
        f"pairs: {len(corpus.pairs):,}; about well-known names: {len(corpus.well_known):,}; "
        f"about favourites: {len(corpus.favourites):,}"
    )


if __name__ == "__main__":
    main()
