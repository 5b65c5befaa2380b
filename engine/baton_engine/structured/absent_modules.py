"""Stands in for packages that a library imports and a process has no use for.

xgrammar imports PyTorch and Transformers at its top, seconds and hundreds of MiB, for functions over tensors
and tokenizers that compiling a grammar never calls.
"""

from __future__ import annotations

import importlib
import sys
from importlib.abc import Loader, MetaPathFinder
from importlib.machinery import ModuleSpec
from types import ModuleType
from typing import Any


def leave_out(*packages: str) -> None:
    """Give whoever imports one of these packages from now on a module of placeholders."""
    for package in packages:
        assert package not in sys.modules, f"{package} is loaded already"
    sys.meta_path.insert(0, _Finder(packages))


def import_with_placeholders(module: str, *packages: str) -> None:
    """Import a module for which placeholders stand in for packages that are not loaded; then they are gone.

    To be called before other threads start, which could import such a package meanwhile.
    """
    finder = _Finder(tuple(package for package in packages if package not in sys.modules))
    sys.meta_path.insert(0, finder)
    try:
        importlib.import_module(module)
    finally:
        sys.meta_path.remove(finder)
        for name in [name for name, loaded in sys.modules.items() if isinstance(loaded, _Absent)]:
            del sys.modules[name]


def import_without(module: str, package: str) -> None:
    """Import a module that does without a package where that is not installed."""
    assert package not in sys.modules, f"{package} is loaded already"
    sys.modules[package] = None  # type: ignore[assignment]
    try:
        importlib.import_module(module)
    finally:
        del sys.modules[package]


class _Finder(MetaPathFinder, Loader):
    def __init__(self, packages: tuple[str, ...]) -> None:
        self._packages = packages

    def find_spec(self, fullname: str, path: object = None, target: object = None) -> ModuleSpec | None:
        if fullname.partition(".")[0] not in self._packages:
            return None
        return ModuleSpec(fullname, self, is_package=True)

    def create_module(self, spec: ModuleSpec) -> ModuleType:
        return _Absent(spec.name)

    def exec_module(self, module: ModuleType) -> None:
        """A placeholder has no code."""


class _Absent(ModuleType):
    def __getattr__(self, name: str) -> Any:
        if name.startswith("__"):
            raise AttributeError(name)
        return type(name, (_Placeholder,), {})


class _Placeholder:
    """A class to derive from, to test against and to make objects of, none of which does anything."""

    def __init__(self, *args: object, **kwargs: object) -> None:
        """Take whatever the real one takes."""
