"""Command lines as vLLM's parser spells them, made into flags of Baton's.

Underscores are dashes; short forms, other names, `-O3` and dotted keys of JSON are written out.
"""

from __future__ import annotations

import json
import re
from collections.abc import Iterator, Mapping, Sequence
from types import MappingProxyType
from typing import Any, Final

from baton.commands.vllm_server_flags import OTHER_NAMES
from baton.config.fixed_engine_args import literal
from baton.config.flags import COUNT, shown
from baton_core.errors import InvalidConfigError

_LEVEL: Final = re.compile(r"-O=?(\d+)")
_KEYS: Final = re.compile(r"(--?[A-Za-z][\w-]*)\.([^=]+)")
_COMPILATION: Final = "--compilation-config"
"""The JSON whose keys `-O.` sets."""


def written_out(
    argv: Sequence[str],
    short_flags: Mapping[str, str],
    *,
    has_model: bool,
    other_names: Mapping[str, str] = OTHER_NAMES,
) -> list[str]:
    """Return the arguments of a command with every flag under its long name.

    A command that `has_model` takes `--model M` as MODEL, and one with short forms dotted keys of JSON.
    What stands behind `--` stays as it is.
    `other_names` are those of flags that Baton calls otherwise.

    Raises:
        InvalidConfigError: a dotted key has no value, two values that exclude each other, or one beside
            a whole object.
    """
    model: list[str] = []
    rest: list[str] = []
    behind: list[str] = []
    objects: dict[str, dict[str, Any]] = {}
    waiting = iter(argv)
    for argument in waiting:
        if argument == "--":
            behind = [argument, *waiting]
            break
        flag, equals, value = argument.partition("=")
        flag = long_name(flag, short_flags, other_names)
        if (level := _LEVEL.fullmatch(argument)) and "-O" in short_flags:
            rest += [short_flags["-O"], level[1]]
        elif has_model and flag == "--model":
            model = [value if equals else _next(waiting, flag)]
        elif short_flags and (dotted := _KEYS.fullmatch(flag)):
            text = value if equals else _next(waiting, flag)
            name, keys = dotted.groups()
            put(objects.setdefault(name, {}), keys, text, flag)
        else:
            rest.append(flag + equals + value if argument.startswith("-") else argument)
    for name in {word.partition("=")[0] for word in rest} & objects.keys():
        raise InvalidConfigError(f"{name} is given beside {name}.KEY; allowed: one object, or keys alone")
    written = [f"{name}={json.dumps(value)}" for name, value in objects.items()]
    return model + rest + written + behind


def values_apart(argv: Sequence[str], flag: str) -> list[str]:
    """Return arguments that begin with MODEL with each value behind a flag under a flag of its own.

    Without MODEL in front they stay as they are: it may be what stands behind the flag's first value.
    """
    apart: list[str] = []
    is_valued = False
    has_model = bool(argv) and not argv[0].startswith("-")
    for position, argument in enumerate(argv):
        if argument == "--":
            return [*apart, *argv[position:]]
        if argument.startswith("-"):
            is_valued = argument == flag
        elif is_valued and has_model and apart[-1] != flag:
            apart.append(flag)
        apart.append(argument)
    return apart


def long_name(
    flag: str,
    short_flags: Mapping[str, str] = MappingProxyType({}),
    other_names: Mapping[str, str] = OTHER_NAMES,
) -> str:
    """The long name of a flag, which may have dotted keys behind it."""
    name, dot, keys = flag.partition(".")
    name = _COMPILATION if dot and name == "-O" else short_flags.get(name, name)
    if name.startswith("--"):
        name = name.replace("_", "-")
    return other_names.get(name, name) + dot + keys


def _next(waiting: Iterator[str], flag: str) -> str:
    value = next(waiting, None)
    if value is None:
        raise InvalidConfigError(f"{flag} has no value; allowed: one behind it")
    return value


def put(tree: dict[str, Any], keys: str, text: str, flag: str) -> None:
    """Set a value in nested objects; a key that ends with + appends to a list.

    Raises:
        InvalidConfigError: the values exclude each other; the message begins with `flag`.
    """
    *path, last = keys.removesuffix("+").split(".")
    for key in path:
        tree = tree.setdefault(key, {})
        if not isinstance(tree, dict):
            raise InvalidConfigError(f"{flag} is {shown(text)}; allowed: no value of {key!r} beside its keys")
    if keys.endswith("+"):
        tree.setdefault(last, []).extend(text.split(","))
    else:
        number = COUNT.read(text)
        tree[last] = literal(text) if number is None else number
