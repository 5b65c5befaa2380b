"""`--config file.yaml`: values for the flags of one command, by the flags' long names.

Dashes and underscores are the same in a key, and leading dashes may be left out. A flag for text takes a
number as it is written, and null stands for the default of None or of a flag for text. Texts for other flags,
and dotted keys of JSON, are read as on the command line.
"""

from __future__ import annotations

import json
from collections.abc import Callable, Sequence
from pathlib import Path
from typing import Any, Final

import yaml

from baton.commands.neutral_flags import NeutralFlags
from baton.commands.spelling import long_name, put
from baton.config.flags import Flag, did_you_mean, shown
from baton_core.errors import InvalidConfigError

_ALLOWED: Final = "a YAML file of flags and their values"
_TEXT_TAG: Final = "tag:yaml.org,2002:str"
_NUMBER_TAGS: Final = ("tag:yaml.org,2002:int", "tag:yaml.org,2002:float")


def read_config(path: str, flags: Sequence[Flag], neutral: NeutralFlags) -> dict[str, Any]:
    """Return the file's values by the flags' fields; mutates `neutral`, which takes its flags' keys.

    Raises:
        InvalidConfigError: the file cannot be read, a key is no flag of the command, or a value is of the
            wrong kind or out of range; the message names file, key, value and what is allowed.
    """
    by_name = {flag.name.removeprefix("--"): flag for flag in flags}
    values: dict[str, Any] = {}
    texts = {name for name, flag in by_name.items() if flag.kind is str}
    for key, value in _joined(path, read_pairs(path, lambda key: _name_of(key) in texts)):
        name = _name_of(key)
        where = f"{path}: {key}" if isinstance(key, str) else path
        if name.startswith("no-") and isinstance(value, bool) and name not in by_name:
            name, value = name.removeprefix("no-"), not value
        if name not in by_name:
            if neutral.take_key(name, value, where):
                continue
            allowed = ", ".join(sorted(by_name))
            meant = did_you_mean(name, by_name)
            raise InvalidConfigError(f"{path}: key is {shown(key)}{meant}; allowed: {allowed}")
        flag = by_name[name]
        if flag.field in values:
            raise InvalidConfigError(f"{where} is given twice; allowed: once")
        if value is not None or (flag.kind is not str and flag.default is not None):
            values[flag.field] = _read_value(where, flag, value)
    return values


def read_pairs(path: str, is_text: Callable[[str], bool] = lambda key: False) -> list[tuple[object, object]]:
    """Return keys and values as they are written, a repeated key as often as it is.

    Numbers of keys of which `is_text` is true are the text that stands there.

    Raises:
        InvalidConfigError: the file cannot be read, or is no mapping in YAML.
    """
    try:
        loader = yaml.SafeLoader(Path(path).read_text(encoding="utf-8"))
        root = loader.get_single_node()
        if root is None:
            return []
        if isinstance(root, yaml.MappingNode):
            for key, value in root.value:
                if is_text(key.value):
                    _read_numbers_as_text(value)
            return list(loader.construct_pairs(root, deep=True))
    except OSError as error:
        reason = f"cannot be read ({error.strerror})"
        raise InvalidConfigError(f"--config is {path!r}, which {reason}; allowed: {_ALLOWED}") from error
    # Beside its own errors PyYAML raises whatever a value with a wrong tag makes it stumble over.
    except (yaml.YAMLError, ValueError, RecursionError, LookupError, AttributeError, TypeError) as error:
        raise InvalidConfigError(
            f"--config is {path!r}, which is no YAML{_position(error)}; allowed: {_ALLOWED}"
        ) from None
    raise InvalidConfigError(f"--config is {path!r}, which holds no flags; allowed: {_ALLOWED}")


def _position(error: Exception) -> str:
    """Return the place of an error in its file, whose text may be secret; empty where it has none."""
    mark = getattr(error, "problem_mark", None)
    return f" at line {mark.line + 1}, column {mark.column + 1}" if mark else ""


def _name_of(key: object) -> str:
    return long_name(f"--{key.lstrip('-')}").removeprefix("--") if isinstance(key, str) else ""


def _read_numbers_as_text(node: yaml.Node) -> None:
    for each in node.value if isinstance(node, yaml.SequenceNode) else [node]:
        if each.tag in _NUMBER_TAGS:
            each.tag = _TEXT_TAG


def _joined(path: str, pairs: Sequence[tuple[object, object]]) -> list[tuple[object, object]]:
    """Make one object of the values of each flag's dotted keys."""
    objects: dict[str, dict[str, Any]] = {}
    rest: list[tuple[object, object]] = []
    for key, value in pairs:
        name, dot, keys = _name_of(key).partition(".")
        if dot:
            where = f"{path}: {key}"
            put(objects.setdefault(name, {}), keys, _json_of(where, value), where)
        else:
            rest.append((key, value))
    return [*rest, *objects.items()]


def _read_value(name: str, flag: Flag, value: object) -> Any:
    if not flag.is_list:
        return _read_one(name, flag, value)
    read = [_read_one(name, flag, each) for each in (value if isinstance(value, list) else [value])]
    return tuple(one for each in read for one in (each if isinstance(each, tuple) else (each,)))


def _read_one(name: str, flag: Flag, value: object) -> Any:
    if isinstance(value, dict):
        text = _json_of(name, value)
        value = text if flag.is_list else value
    return flag.parse(value, name) if isinstance(value, str) else flag.check(value, name)


def _json_of(name: str, value: object) -> str:
    """Return a value as JSON, and a text as it is.

    Raises:
        InvalidConfigError: JSON has no such value.
    """
    try:
        return value if isinstance(value, str) else json.dumps(value)
    except (TypeError, ValueError, RecursionError) as error:
        raise InvalidConfigError(
            f"{name} is {shown(value)} that JSON cannot hold ({error}); allowed: texts, which may need "
            "quotes, numbers, true, false, null, and lists and objects of them"
        ) from None
