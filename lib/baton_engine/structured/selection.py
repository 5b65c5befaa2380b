"""Which library compiles a form. The libraries are imported when the first form needs them."""

from __future__ import annotations

import importlib
from collections.abc import Callable
from threading import Lock
from typing import Final

from baton_core.errors import InvalidConfigError, InvalidRequestError
from baton_core.requests.form_bounds import is_lark
from baton_core.requests.structured_outputs import StructuredOutputsParams
from baton_engine.structured.interface import Backend, EndTokens, Grammar
from baton_engine.structured.schema_features import unkept_part
from baton_engine.structured.vocabulary import Vocabulary

AUTO: Final = "auto"
_LIBRARIES: Final = {"xgrammar": "XgrammarBackend", "guidance": "GuidanceBackend"}
"""By name: the class of the module `<name>_backend`."""
BACKENDS: Final = (AUTO, *_LIBRARIES)


def check_backend(name: str) -> None:
    """Refuse what is not in `BACKENDS`.

    Raises:
        InvalidConfigError: naming the setting.
    """
    if name not in BACKENDS:
        allowed = ", ".join(BACKENDS)
        raise InvalidConfigError(f"structured_outputs_backend is {name!r}; allowed: {allowed}")


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
        """Compile a form; `auto` takes xgrammar for what it keeps to in full, else llguidance.

        Raises:
            InvalidRequestError: the form is wrong, or no library that may be used keeps to it.
            InvalidConfigError: the library is not installed.
        """
        if self._name != AUTO:
            return self._load(self._name).compile(params)
        is_for_guidance = params.grammar is not None and is_lark(params.grammar)
        if is_for_guidance or unkept_part(params) is not None:
            return self._load("guidance").compile(params)
        try:
            return self._load("xgrammar").compile(params)
        except InvalidRequestError as error:
            try:
                return self._load("guidance").compile(params)
            except InvalidRequestError:
                raise error from None

    def _load(self, name: str) -> Backend:
        with self._lock:
            if name not in self._loaded:
                self._loaded[name] = self._import(name)
            return self._loaded[name]

    def _import(self, name: str) -> Backend:
        module = f"baton_engine.structured.{name}_backend"
        try:
            make: Callable[[Vocabulary, EndTokens], Backend]
            make = getattr(importlib.import_module(module), _LIBRARIES[name])
        except ImportError as error:
            raise InvalidConfigError(
                f"structured_outputs_backend is {self._name!r} and needs a missing package ({error}); "
                "allowed: one whose package is installed: pip install 'baton[worker]'"
            ) from error
        return make(self._vocabulary, self._end)
