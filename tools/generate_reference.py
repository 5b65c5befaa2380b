"""Writes docs/reference/configuration.md from the flags in the code, and lines into docs/architecture.md.

With --check, only compares them.
"""

from __future__ import annotations

import argparse
import json
import re
import sys
from collections.abc import Iterator, Sequence
from pathlib import Path
from typing import Final

from baton.commands.bench_arguments import BENCH_ACTIONS
from baton.commands.client_arguments import add_actions
from baton.commands.command_flags import COMMANDS
from baton.commands.neutral_flags import ENGINE_FIXED, ENGINE_TAKEN
from baton.commands.vllm_server_flags import OTHER_NAMES, SERVER_FIXED, TAKEN
from baton.config.fixed_engine_args import SHORT_FLAGS
from baton.config.flags import Flag
from tools.way_tables import DOCUMENT, is_true, with_lines

ROOT: Final = Path(__file__).resolve().parent.parent
PAGE: Final = ROOT / "docs/reference/configuration.md"
WORKERS: Final = ("prefill-worker", "decode-worker", "mixed-worker")
INTRODUCTION: Final = """\
# Configuration reference

<!-- Written by tools/generate_reference.py from the code. Change the code, then run: make reference -->

This page lists every flag of every command. `baton COMMAND --help=all` prints the same in a terminal,
`--help=GROUP` a group of flags, and `--help=WORD` the flags with a word in their names.

- Every command with flags takes `--config FILE.yaml`, whose keys are the long flag names. Flags on the
  command line come first.
- A switch is turned off with `--no-` before its name, as in `--no-check-transfers`.
- `--max_model_len` is `--max-model-len`, `--model M` is MODEL, and `--profiler-config.torch_profiler_dir DIR`
  sets one key of a JSON object.
- Sizes in bytes may have a unit: `1.5GiB`, `2GB`, or as in vLLM `500M` (binary) and `500m` (decimal).
- The largest numbers that a flag takes are left out where they are 2^31 - 1 or similar.
- A value that is not allowed is refused when the process starts. The error names the flag, the value and
  what is allowed.
"""
WITH_FLAGS: Final = tuple(command.name for command in COMMANDS if command.flags)
TITLES: Final = {
    frozenset({"serve", "router", *WORKERS}): "Router and workers",
    frozenset({"serve", "router"}): "Router",
    frozenset({"serve", "router", "simulate"}): "Router and simulated routers",
    frozenset({"serve", *WORKERS}): "Workers {#engine-flags}",
    frozenset({"serve", "simulate", *WORKERS}): "Workers and simulated workers",
    frozenset({"complete", "chat", "explain", *WORKERS}): "Clients and workers started alone",
    frozenset({"serve", "complete", "chat", "explain", *WORKERS}): "Clients and workers",
    frozenset({"complete", "chat", "explain"}): "Clients: `baton complete`, `baton chat`, `baton explain`",
    frozenset(WORKERS): "Workers started alone",
    frozenset(WITH_FLAGS): "Every command with flags",
    frozenset(WITH_FLAGS) - {"run-batch"}: "Every command with flags but `baton run-batch`",
}
FLAG_HEAD: Final = ("flag", "meaning", "default", "allowed")
FIXED_HEAD: Final = ("flag", "accepted", "reason")


def page() -> str:
    parts = [INTRODUCTION]
    for commands, flags in flags_by_commands().items():
        parts.append(f"## {title_of(commands)}\n\n{flag_table(flags)}")
    parts.append("## `baton admin`\n\n" + admin_table())
    for action in BENCH_ACTIONS:
        also = "\nIt also takes the [engine flags](#engine-flags).\n" if action.is_offline else ""
        parts.append(f"## `baton bench {action.name}`\n\n{flag_table(action.flags)}{also}")
    parts += vllm_parts()
    return "\n".join(parts)


def vllm_parts() -> Iterator[str]:
    """Sections about flags that only vLLM has."""
    text = "Baton accepts these flags of vLLM with the listed values, and refuses others with the reason."
    rows = sorted(
        (name, accepted(one.allowed), one.reason) for name, one in (ENGINE_FIXED | SERVER_FIXED).items()
    )
    fixed = table(FIXED_HEAD, [(f"`{name}`", values, marked(reason)) for name, values, reason in rows])
    yield f"## Flags of vLLM with one value\n\n{text}\n\n{fixed}"
    text = "`baton serve` and `baton router` take these with any value, and name them in one line of the log."
    taken = table(
        FIXED_HEAD[::2],
        [(f"`{name}`", marked(one.reason)) for name, one in sorted((ENGINE_TAKEN | TAKEN).items())],
    )
    yield f"## Flags of vLLM that change nothing\n\n{text}\n\n{taken}"
    names = table(
        ("form", "flag"), [(f"`{form}`", f"`{flag}`") for form, flag in (SHORT_FLAGS | OTHER_NAMES).items()]
    )
    text = "`-O3` is `-O 3`, and `-O.mode 3` sets a key of `--compilation-config`."
    yield f"## Other forms of flags\n\n{text}\n\n{names}"


def flags_by_commands() -> dict[tuple[str, ...], list[Flag]]:
    """Flags, grouped by the commands that take them, in the order of the code."""
    flags: dict[str, tuple[Flag, list[str]]] = {}
    for command in COMMANDS:
        for flag in command.flags:
            flags.setdefault(repr(flag), (flag, []))[1].append(command.name)
    groups: dict[tuple[str, ...], list[Flag]] = {}
    for flag, commands in flags.values():
        groups.setdefault(tuple(commands), []).append(flag)
    return groups


def title_of(commands: Sequence[str]) -> str:
    title = TITLES.get(frozenset(commands))
    return title or ", ".join(f"`baton {name}`" for name in commands)


def flag_table(flags: Sequence[Flag]) -> str:
    return table(FLAG_HEAD, [row_of(flag) for flag in flags])


def row_of(flag: Flag) -> tuple[str, str, str, str]:
    meaning, found, default = flag.help.partition("default: ")
    if not found:
        default = shown_default(flag)
    name = f"`{flag.name if flag.name.startswith('-') else flag.metavar}`"
    needless = r" to \d{10,}| in UTF-8 without null characters"
    allowed = "" if flag.kind is bool else re.sub(needless, "", flag.allowed)
    if isinstance(flag.values, tuple):
        allowed = ", ".join(f"`{choice}`" for choice in flag.values)
    return name, meaning.rstrip(" ;,(") or flag.field.replace("_", " "), marked(default), allowed


def marked(text: str) -> str:
    """The text with its flags and environment variables as code."""
    return re.sub(r"(?<![`\w-])(--[a-z][a-z-]+|[A-Z]+(?:_[A-Z]+)+)", r"`\1`", text)


def shown_default(flag: Flag) -> str:
    if flag.kind is bool:
        return {True: "on", False: "off", None: "by the device"}[flag.default]  # type: ignore[index]
    if flag.default in (None, "", ()):
        return "none"
    if isinstance(flag.default, tuple):
        return " ".join(f"`{value}`" for value in flag.default)
    return f"`{flag.default:g}`" if isinstance(flag.default, float) else f"`{flag.default}`"


def admin_table() -> str:
    parser = argparse.ArgumentParser()
    add_actions(parser)
    rows = []
    for action, sub in next(iter(subparsers_of(parser))).choices.items():
        for option in sub._actions:
            if option.help != argparse.SUPPRESS and "--help" not in option.option_strings:
                name = option.option_strings[0] if option.option_strings else option.metavar
                rows.append((f"`{action}`", f"`{name}`", str(option.help).replace("%%", "%")))
    return table(("action", "argument", "meaning"), rows)


def subparsers_of(parser: argparse.ArgumentParser) -> Iterator[argparse._SubParsersAction]:
    return (action for action in parser._actions if isinstance(action, argparse._SubParsersAction))


def accepted(values: Sequence[object]) -> str:
    return ", ".join("unset" if value is None else f"`{json.dumps(value)}`" for value in values)


def table(head: Sequence[str], rows: Sequence[Sequence[str]]) -> str:
    lines = [head, ["---"] * len(head), *([escaped(cell) for cell in row] for row in rows)]
    return "".join(f"| {' | '.join(line)} |\n" for line in lines)


def escaped(text: str) -> str:
    text = re.sub(r"\s+", " ", text).replace("|", "\\|")
    return re.sub(r"<(?=\w)", "&lt;", re.sub(r"(?<![`\w*])\*(?=\w)", r"\\*", text))


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--check", action="store_true")
    is_check = parser.parse_args().check
    architecture = ROOT / DOCUMENT
    text, fresh = architecture.read_text(encoding="utf-8"), page()
    if not is_check:
        PAGE.write_text(fresh, encoding="utf-8")
        architecture.write_text(with_lines(text, ROOT), encoding="utf-8")
    elif PAGE.read_text(encoding="utf-8") != fresh or not is_true(text, ROOT):
        sys.exit(f"{PAGE.name} or {architecture.name} differs from the code; run: make reference")


if __name__ == "__main__":
    main()
