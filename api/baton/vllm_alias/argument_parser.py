"""The parser of command lines that vLLM's documents give to scripts."""

from __future__ import annotations

import argparse
import json
import sys
from collections.abc import Mapping, Sequence
from typing import Any, Final

from baton.commands.config_file import read_pairs
from baton.commands.spelling import long_name, written_out
from baton.config.fixed_engine_args import SHORT_FLAGS
from baton_core.errors import InvalidConfigError

_CONFIG: Final = "--config"


class FlexibleArgumentParser(argparse.ArgumentParser):
    """A parser to which `--max_model_len` is `--max-model-len`, and which reads `--config file.yaml`.

    One with an engine's flags also reads dotted keys of JSON, such as `--compilation-config.mode=3`.
    """

    def __init__(self, *args: Any, **options: Any) -> None:
        """Take argparse's options; `add_json_tip`, which is vLLM's own, has no effect."""
        options.pop("add_json_tip", None)
        super().__init__(*args, **{"allow_abbrev": False, **options})

    def parse_known_args(  # type: ignore[override]
        self, args: Sequence[str] | None = None, namespace: argparse.Namespace | None = None
    ) -> tuple[argparse.Namespace, list[str]]:
        known = self._option_string_actions
        shorts = {short: flag for short, flag in SHORT_FLAGS.items() if short in known and flag in known}
        given = sys.argv[1:] if args is None else list(args)
        try:
            spelled = written_out(self._with_config(given, shorts), shorts, has_model=False, other_names={})
            return super().parse_known_args(spelled, namespace)
        except InvalidConfigError as error:
            self.error(str(error))

    def _with_config(self, argv: list[str], shorts: Mapping[str, str]) -> list[str]:
        """Put the flags of a configuration file before those of the command line, which win."""
        paths: list[str] = []
        rest: list[str] = []
        waiting = iter(argv)
        for argument in waiting:
            flag, equals, value = argument.partition("=")
            if argument == "--":
                rest += [argument, *waiting]
            elif flag == _CONFIG:
                paths.append(value if equals else next(waiting, ""))
            else:
                rest.append(argument)
        if not paths:
            return argv
        if len(paths) > 1:
            raise InvalidConfigError(f"{_CONFIG} is {paths[1]!r} beside {paths[0]!r}; allowed: one file")
        flags = (long_name(one.partition("=")[0], shorts, {}) for one in rest if one.startswith("-"))
        named = {name for flag in flags for name in (flag, flag.partition(".")[0])}
        of_file = [
            argument
            for key, value in read_pairs(paths[0])
            if (flag := long_name(f"--{str(key).lstrip('-')}", other_names={})) not in named
            for argument in self._arguments(flag, value)
        ]
        start = next((place for place, one in enumerate(rest) if one.startswith("-")), len(rest))
        return rest[:start] + of_file + rest[start:]

    def _arguments(self, flag: str, value: object) -> list[str]:
        """Return the command line that gives a flag a value of a file."""
        action = self._option_string_actions.get(flag)
        takes_value = action is not None and action.nargs != 0
        match value:
            case None:
                return []
            case bool() if not takes_value:
                opposite = flag.replace("--", "--no-", 1)
                name = flag if value else opposite
                return [name] if value or opposite in self._option_string_actions else []
            case list() if action is not None and action.nargs is None:
                return [f"{flag}={_text(each)}" for each in value]
            case list():
                return [flag, *map(_text, value)]
            case _:
                return [f"{flag}={_text(value)}"]


def _text(value: object) -> str:
    return json.dumps(value) if isinstance(value, bool | dict | list) else str(value)
