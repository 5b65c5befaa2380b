"""The choice of the library that compiles a grammar; a library is imported when it is first needed."""

from __future__ import annotations

import importlib
from collections.abc import Callable
from threading import Lock
from typing import Final

from baton_core.errors import InvalidConfigError
from baton_core.requests.structured_backends import check_backend, with_backend
from baton_core.requests.structured_outputs import StructuredOutputsParams
from baton_engine.structured.interface import Backend, EndTokens, Grammar
from baton_engine.structured.vocabulary import Vocabulary

_CLASSES: Final = {"xgrammar": "XgrammarBackend", "guidance": "GuidanceBackend"}
"""By name: the class of the module `<name>_backend`."""


class Backends:
    """The libraries for one vocabulary, loaded when first used. Safe to share between threads."""

    def __init__(self, vocabulary: Vocabulary, end: EndTokens, name: str) -> None:
        check_backend(name)
        self._vocabulary = vocabulary
        self._end = end
        self._name = name
        self._loaded: dict[str, Backend] = {}
        self._lock = Lock()

    def compile(self, params: StructuredOutputsParams) -> Grammar:
        """Compile a grammar with the library that was chosen for it, else with that of this worker's setting.

        Raises:
            InvalidRequestError: the grammar is wrong, or the library does not support it.
            InvalidConfigError: the library is not installed.
        """
        chosen = params if params.backend else with_backend(params, self._name)
        return self._load(chosen.backend).compile(chosen)

    def _load(self, name: str) -> Backend:
        with self._lock:
            if name not in self._loaded:
                self._loaded[name] = self._import(name)
            return self._loaded[name]

    def _import(self, name: str) -> Backend:
        module = f"baton_engine.structured.{name}_backend"
        try:
            make: Callable[[Vocabulary, EndTokens], Backend]
            make = getattr(importlib.import_module(module), _CLASSES[name])
        except ImportError as error:
            raise InvalidConfigError(
                f"structured_outputs_backend is {name!r} and needs a missing package ({error}); "
                "allowed: one whose package is installed: pip install 'baton[worker]'"
            ) from error
        return make(self._vocabulary, self._end)
