"""Plugins: functions of installed packages that each process calls before it reads a model.

They register models of their own with `ModelRegistry`.
"""

from __future__ import annotations

import logging
import os
from functools import cache
from importlib.metadata import EntryPoint, entry_points
from importlib.util import find_spec
from pathlib import Path
from typing import Final

from baton_core.errors import InvalidConfigError

_log = logging.getLogger(__name__)
_GROUP: Final = "baton.plugins"
_VLLM_GROUP: Final = "vllm.general_plugins"
"""Read too, unless `vllm` is another package than Baton: its plugins would load that."""
_CHOICE: Final = "VLLM_PLUGINS"
"""Environment variable with the names of the plugins to call, separated by commas; all without it."""


@cache
def load_plugins() -> None:
    """Call every plugin, once in a process.

    Raises:
        InvalidConfigError: a plugin of Baton's group fails. One of vLLM's is left out, with a log line.
    """
    for group in (_GROUP, _VLLM_GROUP) if _is_vllm_ours() else (_GROUP,):
        for plugin in filter(_is_chosen, entry_points(group=group)):
            try:
                plugin.load()()
            # Code of other packages may raise anything, vLLM's for want of parts that are not here.
            except Exception as error:
                if group == _VLLM_GROUP:
                    _log.warning("plugin %s (%s) is left out: %r", plugin.name, plugin.value, error)
                    continue
                raise InvalidConfigError(
                    f"plugin {plugin.name} ({plugin.value}) fails with {type(error).__name__}: {error}; "
                    f"allowed: one that can be called, or {_CHOICE} without it"
                ) from error


def _is_chosen(plugin: EntryPoint) -> bool:
    chosen = os.environ.get(_CHOICE)
    return chosen is None or plugin.name in chosen.split(",")


def _is_vllm_ours() -> bool:
    spec = find_spec("vllm")
    if spec is None or spec.origin is None:
        return True
    return Path(spec.origin).is_relative_to(Path(__file__).parents[1])
