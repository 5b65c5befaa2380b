"""Help of a command: an overview of its groups of flags, one group, flags by a word, or all."""

from __future__ import annotations

import argparse
from collections.abc import Iterator, Mapping
from typing import Final

from baton.commands.command_flags import Command, FlagGroup
from baton.commands.vllm_server_flags import Taken
from baton.config.fixed_engine_args import Fixed
from baton_core.errors import InvalidConfigError

OVERVIEW: Final = "listgroup"
ALL: Final = ("all", "page")
_VLLM: Final = "vllm"
_OF_VLLM: Final = "flags of vLLM's that change nothing here, or are refused with the reason"
_MIN_GROUPS: Final = 6
"""A command with fewer groups shows all of its flags at once."""


def help_page(command: Command, neutral: Mapping[str, Fixed | Taken], topic: str) -> str | None:
    """Return the page about a topic; None where the parser's own help, with all flags, is the page.

    Raises:
        InvalidConfigError: the command has nothing of the topic's name.
    """
    wanted = topic.lower().replace("_", "-")
    if wanted in ALL or (not wanted and len(command.groups) < _MIN_GROUPS):
        return None
    if wanted in ("", OVERVIEW):
        return _overview(command, neutral)
    groups = [group for group in command.groups if group.name == wanted]
    if not groups:
        groups = [one for group in command.groups if (one := _matching(group, wanted)).flags]
    of_vllm = (
        dict(neutral) if wanted == _VLLM else {name: neutral[name] for name in neutral if wanted in name}
    )
    if not groups and not of_vllm:
        names = ", ".join(group.name for group in command.groups)
        allowed = f"{', '.join(ALL)}, {OVERVIEW}, {names}, or a part of a flag's name"
        raise InvalidConfigError(f"--help is {topic!r}; allowed: {allowed}")
    return _flags_of(groups) + "".join(_lines_of(of_vllm))


def add_groups(parser: argparse.ArgumentParser, command: Command) -> None:
    """Mutate a parser: add the command's flags, group by group."""
    for group in command.groups:
        section = parser.add_argument_group(group.name, group.help)
        for flag in group.flags:
            flag.add_to(section)


def usage_of(command: Command) -> str | None:
    """The line of usage of a command with an overview; None: argparse's own."""
    is_long = len(command.groups) >= _MIN_GROUPS
    return f"baton {command.name} [MODEL] [--config FILE] [flags]" if is_long else None


def _overview(command: Command, neutral: Mapping[str, Fixed | Taken]) -> str:
    rows = [(group.name, group.help) for group in command.groups]
    rows += [(_VLLM, _OF_VLLM)] if neutral else []
    width = max(len(name) for name, _ in rows) + 2
    lines = "".join(f"  {name:{width}}{text}\n" for name, text in rows)
    name = f"baton {command.name}"
    return (
        f"usage: {usage_of(command)}\n\n{command.description}\n\n"
        f"groups of flags:\n{lines}\n"
        f"{name} --help=GROUP shows a group, --help=WORD the flags with that word, --help=all every flag.\n"
    )


def _matching(group: FlagGroup, word: str) -> FlagGroup:
    return FlagGroup(group.name, group.help, tuple(flag for flag in group.flags if word in flag.name))


def _flags_of(groups: list[FlagGroup]) -> str:
    if not groups:
        return ""
    parser = argparse.ArgumentParser(usage=argparse.SUPPRESS, add_help=False)
    add_groups(parser, Command("", "", tuple(groups)))
    return parser.format_help().lstrip("\n")


def _lines_of(neutral: Mapping[str, Fixed | Taken]) -> Iterator[str]:
    if neutral:
        yield f"\n{_VLLM}:\n  {_OF_VLLM}\n\n"
    for name, one in sorted(neutral.items()):
        allowed = "any value" if isinstance(one, Taken) else " or ".join(map(repr, one.allowed))
        yield f"  {name}: {allowed} ({one.reason})\n"
