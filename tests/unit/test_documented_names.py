"""Names in the documents exist: files, headings and flags everywhere, functions in docs/architecture.md."""

from __future__ import annotations

import argparse
import ast
import re
import shlex
from functools import cache
from pathlib import Path
from typing import Final

import pytest

from baton.commands import cli_arguments
from baton.commands.bench_arguments import BENCH_ACTIONS
from baton.commands.cli_arguments import COMMANDS
from baton.commands.client_arguments import add_actions
from baton.commands.neutral_flags import ENGINE_FIXED, ENGINE_TAKEN
from baton.commands.vllm_server_flags import OTHER_NAMES, SERVER_FIXED, TAKEN

ROOT: Final = Path(__file__).parents[2]
DOCUMENTS: Final = tuple(
    sorted(str(path.relative_to(ROOT)) for path in [*ROOT.glob("docs/*.md"), ROOT / "README.md"])
)
PACKAGES: Final = re.compile(r"`((?:\w+/)+baton_\w+/[\w/]+\.py)`")
ROW: Final = re.compile(r"^\|.*`\w+/.*\.py`.*\|$", re.MULTILINE)
CODE: Final = re.compile(r"`([^`\n]+)`")
FLAG: Final = re.compile(r"(?<![\w-])--[a-z][a-z-]+(?![\w*-])")
OTHERS: Final = re.compile(
    r"^(FOLDER|evalscope|guidellm|lm_eval|python|pip|uv|make|docker|podman|vllm|curl|kubectl|redis|git|"
    r"\.venv/bin/pip)\b"
)
"""Commands whose flags are not Baton's."""
COMMAND: Final = re.compile(r"(?:\$ )?(?:\.venv/bin/)?baton (?!\S+ needs )(.*)")
"""A command, but no error that begins with its name."""
LINK: Final = re.compile(r"\]\(([^)\s:#]*)(?:#([^)\s]+))?\)")
HEADING: Final = re.compile(r"^#+ (.+?)(?: \{#([\w-]+)\})?$", re.MULTILINE)
OTHER_FLAGS: Final = {"--profile", "--scale", "--torch-backend"}
"""Flags of docker compose and uv."""


def text_of(document: str) -> str:
    return (ROOT / document).read_text(encoding="utf-8")


@cache
def names_in(file: str) -> frozenset[str]:
    """Functions and classes of a file, methods as `Class.method`."""
    tree = ast.parse((ROOT / file).read_text(encoding="utf-8"))
    kinds = (ast.FunctionDef, ast.AsyncFunctionDef, ast.ClassDef)
    found = {node.name for node in tree.body if isinstance(node, kinds)}
    for node in tree.body:
        if isinstance(node, ast.ClassDef):
            found |= {f"{node.name}.{one.name}" for one in node.body if isinstance(one, kinds)}
    return frozenset(found)


@cache
def flags() -> frozenset[str]:
    """Every flag of every command and of the programs of bench/ and tools/; a switch also with `--no-`."""
    parser = argparse.ArgumentParser()
    add_actions(parser)
    subparsers = parser._subparsers._group_actions[0].choices.values()  # type: ignore[union-attr]
    admin = {name for sub in subparsers for name in sub._option_string_actions}
    known = [flag.name for command in COMMANDS for flag in command.flags]
    known += [flag.name for action in BENCH_ACTIONS for flag in action.flags]
    known += [
        *ENGINE_FIXED,
        *ENGINE_TAKEN,
        *SERVER_FIXED,
        *TAKEN,
        *OTHER_NAMES,
        "--model",
        "--config",
        "--version",
        "--help",
    ]
    programs = [path for folder in ("bench", "tools") for path in (ROOT / folder).rglob("*.py")]
    known += [flag for path in programs for flag in re.findall(r'"(--[a-z-]+)"', path.read_text())]
    return frozenset({*known, *admin, *OTHER_FLAGS, *(name.replace("--", "--no-", 1) for name in known)})


@pytest.mark.parametrize("document", DOCUMENTS)
def test_every_file_that_is_named_exists(document: str) -> None:
    assert [path for path in PACKAGES.findall(text_of(document)) if not (ROOT / path).is_file()] == []


@cache
def anchors_of(path: Path) -> frozenset[str]:
    """Anchors of a page's headings, as MkDocs and GitHub make them."""
    texts = HEADING.findall(path.read_text(encoding="utf-8"))
    return frozenset(
        anchor or re.sub(r"[-\s]+", "-", re.sub(r"[^\w\s-]", "", text).strip().lower())
        for text, anchor in texts
    )


@pytest.mark.parametrize("document", DOCUMENTS)
def test_every_link_leads_to_a_file_and_a_heading(document: str) -> None:
    page = ROOT / document
    broken = []
    for path, anchor in LINK.findall(re.sub(r"^```.*?^```", "", text_of(document), flags=re.M | re.S)):
        target = (page.parent / path).resolve() if path else page
        if not target.exists() or (anchor and target.suffix == ".md" and anchor not in anchors_of(target)):
            broken.append(f"{path}#{anchor}")
    assert broken == []


@pytest.mark.parametrize("row", ROW.findall(text_of("docs/architecture.md")))
def test_the_functions_of_a_step_are_in_its_files(row: str) -> None:
    names = CODE.findall(row)
    files = [name for name in names if name.endswith(".py")]
    functions = [name for name in CODE.findall(row.rsplit("|", 2)[1]) if not name.endswith(".py")]
    assert functions, "a step names a function"
    assert [name for name in functions if not any(name in names_in(file) for file in files)] == []


def test_every_core_that_is_named_exists() -> None:
    section = text_of("docs/architecture.md").split("\n## Cores\n")[1].split("\n## ")[0]
    names = [name for name in CODE.findall(section) if re.fullmatch(r"[A-Za-z_]+", name)]
    sources = [path.read_text(encoding="utf-8") for path in ROOT.glob("*/baton*/**/*.py")]
    defined = {name for text in sources for name in re.findall(r"^(?:class|def) (\w+)", text, re.MULTILINE)}
    assert len(names) > 20
    assert [name for name in names if name not in defined] == []


def test_the_tables_of_the_architecture_have_their_rows() -> None:
    assert len(ROW.findall(text_of("docs/architecture.md"))) > 20


@pytest.mark.parametrize("document", DOCUMENTS)
def test_every_flag_that_is_named_exists(document: str) -> None:
    unknown = {
        flag
        for code in CODE.findall(
            re.sub(r"^```.*?^```", "", text_of(document), flags=re.MULTILINE | re.DOTALL)
        )
        if not OTHERS.match(code)
        for flag in FLAG.findall(code)
    } - flags()
    assert sorted(unknown) == []


def commands_in(document: str) -> list[list[str]]:
    """The arguments of every `baton` command in a block of the page."""
    blocks = re.findall(r"^ *```\w*\n(.*?)^ *```", text_of(document), re.MULTILINE | re.DOTALL)
    lines = [line.strip() for block in blocks for line in block.replace("\\\n", " ").splitlines()]
    commands = [shlex.split(found[1], comments=True) for line in lines if (found := COMMAND.match(line))]
    return [[word for word in command if word != "[MODEL]"] for command in commands]


@pytest.mark.parametrize("document", DOCUMENTS)
def test_every_command_is_one_of_the_command_line(document: str) -> None:
    refused = []
    for command in commands_in(document):
        try:
            cli_arguments.parse(command)
        except SystemExit as end:
            refused += [command] if end.code else []
    assert refused == []
