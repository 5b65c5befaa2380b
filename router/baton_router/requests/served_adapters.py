"""The LoRA adapters that a router serves, each as a model of its own."""

from __future__ import annotations

import json
import threading
from collections.abc import Sequence

from baton_core.errors import BatonError, ErrorCode, InvalidConfigError, InvalidRequestError, RequestError
from baton_core.requests.adapter import Adapter
from baton_router.requests.validation import check_name
from baton_sandbox.adapter_folder import read_adapter_folder

MAX_ADAPTERS = 4096
"""Adapters that are served at a time."""
_MAX_NAME_CHARACTERS = 256


class ServedAdapters:
    """Names of models: those of the base, and of its adapters. Any thread may call it.

    Args:
        model_names: the base model's; the first one is the adapters' parent.
        max_rank: the highest rank of an adapter; None where none are taken.
    """

    def __init__(self, model_names: Sequence[str] = (), max_rank: int | None = None) -> None:
        self._model_names, self._max_rank = tuple(model_names), max_rank
        self._given: dict[str, Adapter] = {}
        """Adapters that the router was started with."""
        self._loaded: dict[str, Adapter] = {}
        self._adapters: dict[str, Adapter] = {}
        """Both, by name; one that was loaded goes before one of its name that was given."""
        self._lock = threading.Lock()

    @property
    def parent(self) -> str:
        """The base model's name."""
        return self._model_names[0] if self._model_names else ""

    @property
    def adapters(self) -> tuple[Adapter, ...]:
        """The adapters, in the order in which they came."""
        return tuple(self._adapters.values())

    @property
    def loaded(self) -> tuple[Adapter, ...]:
        """The adapters that were loaded since the start: all routers of a cluster serve them."""
        return tuple(self._loaded.values())

    @property
    def names(self) -> tuple[str, ...]:
        """Every name that clients may ask for."""
        return self._model_names + tuple(self._adapters)

    def find(self, model: str) -> Adapter | None:
        """Return the adapter of that name; None where it is the base's, or empty.

        Raises:
            RequestError: NOT_FOUND.
        """
        found = self._adapters.get(model)
        if found is None and model and model not in self.names:
            error = InvalidRequestError("model", model, ", ".join(map(repr, self.names)))
            raise RequestError(ErrorCode.NOT_FOUND, str(error))
        return found

    def read(self, name: str, path: str, *, replaces: bool = False) -> Adapter:
        """Read an adapter's folder, which may take a while; nothing is served by it yet.

        Raises:
            InvalidRequestError: the name is taken, the folder cannot be used, or no adapters are taken.
        """
        if self._max_rank is None:
            raise InvalidRequestError("lora_name", name, "none: this router runs without --enable-lora")
        check_name("lora_name", name, _MAX_NAME_CHARACTERS)
        self._check_free(name, replaces)
        for field, value in (("lora_name", name), ("lora_path", path)):
            if not value:
                raise InvalidRequestError(field, value, "text that is not empty")
        folder = read_adapter_folder(path, self._max_rank)
        return Adapter(name=name, digest=folder.digest, path=str(folder.path.absolute()))

    def add(self, adapter: Adapter, *, replaces: bool = False, is_given: bool = False) -> None:
        """Serve an adapter from now on; `is_given` where the router is started with it.

        Where too many are served, the earliest that a caller in Python has numbered gives way: that caller
        has it served again when it asks for it.

        Raises:
            InvalidRequestError: the name is taken.
            RequestError: OVERLOADED, too many are served.
        """
        with self._lock:
            self.check_place(adapter.name, replaces)
            if self._is_full(adapter.name):
                self._loaded.pop(self._numbered()[0])
            (self._given if is_given else self._loaded)[adapter.name] = adapter
            self._adapters = self._given | self._loaded

    def follow(self, loaded: Sequence[Adapter]) -> None:
        """Serve what the routers of a cluster were told to load, beside what this one was started with."""
        with self._lock:
            if self._max_rank is not None:
                self._loaded = {one.name: one for one in loaded if one.name not in self._model_names}
                self._adapters = self._given | self._loaded

    def remove(self, name: str) -> None:
        """Serve an adapter no longer, if there is one of that name; its running requests go on."""
        with self._lock:
            self._given.pop(name, None)
            self._loaded.pop(name, None)
            self._adapters = self._given | self._loaded

    def check_served(self, name: str) -> None:
        """Raise RequestError, NOT_FOUND, where no adapter has that name."""
        if name not in self._adapters:
            allowed = ", ".join(map(repr, self._adapters)) or "none: no adapter is loaded"
            error = InvalidRequestError("lora_name", name, allowed)
            raise RequestError(ErrorCode.NOT_FOUND, str(error))

    def check_place(self, name: str, replaces: bool) -> None:
        """Check that an adapter of that name could be added now.

        Raises:
            InvalidRequestError: the name is taken.
            RequestError: OVERLOADED, too many are served.
        """
        self._check_free(name, replaces)
        if self._is_full(name) and not self._numbered():
            text = f"{len(self._adapters)} adapters are served; allowed: {MAX_ADAPTERS}"
            raise RequestError(ErrorCode.OVERLOADED, text)

    def _is_full(self, name: str) -> bool:
        return name not in self._adapters and len(self._adapters) >= MAX_ADAPTERS

    def _numbered(self) -> list[str]:
        """Return the names of the adapters that callers in Python have numbered, the earliest first."""
        return [name for name, adapter in self._loaded.items() if adapter.number]

    def _check_free(self, name: str, replaces: bool) -> None:
        if name in self._model_names or (name in self._adapters and not replaces):
            allowed = "a name that no model has" + ("" if replaces else ", or load_inplace")
            raise InvalidRequestError("lora_name", name, allowed)


def open_adapters(
    model_names: Sequence[str], max_lora_rank: int | None, lora_modules: Sequence[str]
) -> ServedAdapters:
    """Read the adapters that are served from the start.

    Raises:
        InvalidConfigError: one cannot be used.
    """
    adapters = ServedAdapters(model_names, max_lora_rank)
    for name, path in read_lora_modules(lora_modules):
        try:
            adapters.add(adapters.read(name, path), is_given=True)
        except BatonError as error:
            raise InvalidConfigError(f"--lora-modules has {name!r}: {error}") from error
    return adapters


def read_lora_modules(given: Sequence[str]) -> tuple[tuple[str, str], ...]:
    """Read names and folders, each as name=path or as JSON with name and path.

    Raises:
        InvalidConfigError: one is neither.
    """
    modules = []
    for text in given:
        name, path = _read_json(text) if text.lstrip().startswith("{") else text.partition("=")[::2]
        if not (isinstance(name, str) and name and isinstance(path, str) and path):
            allowed = 'name=path, or JSON with "name" and "path"'
            raise InvalidConfigError(f"--lora-modules is {text!r}; allowed: {allowed}")
        modules.append((name, path))
    return tuple(modules)


def _read_json(text: str) -> tuple[object, object]:
    try:
        fields = json.loads(text)
    except (ValueError, RecursionError):
        return "", ""
    if not isinstance(fields, dict) or not fields.keys() <= {"name", "path", "base_model_name"}:
        return "", ""
    return fields.get("name"), fields.get("path")
