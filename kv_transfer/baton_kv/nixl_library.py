"""The NIXL library, which is optional: loaded when a worker is to use it, and not before.

Its packages bring UCX along. Both read their settings from the environment, once, when they are loaded; those
below are set unless the user has set them.
"""

from __future__ import annotations

import functools
import importlib
import importlib.util
import logging
import os
from dataclasses import dataclass
from typing import Any, Final

from baton_core.errors import InvalidConfigError

BUILDS: Final = ("nixl_cu12", "nixl_cu13")
"""Packages that hold the library, each for a version of CUDA; without a GPU any does."""
SETTINGS: Final = {
    "UCX_TCP_KEEPIDLE": "1s",
    "UCX_TCP_KEEPINTVL": "1s",
    "UCX_TCP_KEEPCNT": "2",
    "UCX_TCP_USER_TIMEOUT": "5s",
    "UCX_LOG_FILE": "stderr",
    "NIXL_LOG_LEVEL": "WARN",
}
"""A link that is down is noticed after 3 s by who reads over it, after 5 s by who sends."""


class ReadFailedError(Exception):
    """A read that is over without its bytes."""


@dataclass(frozen=True, slots=True, kw_only=True)
class NixlLibrary:
    """The parts of the library that are used."""

    api: Any
    """Its Python module."""
    errors: tuple[type[Exception], ...]
    """Exceptions that its calls and those of `NixlAgent` raise; one says that the other end is gone."""


def find_build() -> str | None:
    """The package that is installed, if one is."""
    return next((name for name in BUILDS if importlib.util.find_spec(name) is not None), None)


@functools.cache
def load_nixl() -> NixlLibrary:
    """Load the library.

    Raises:
        InvalidConfigError: it is not installed, or does not fit this machine.
    """
    for name, value in SETTINGS.items():
        os.environ.setdefault(name, value)
    build = find_build()
    if build is None:
        raise _refusal("none of its packages is installed")
    raises = logging.raiseExceptions  # which its import sets for the whole process
    try:
        api = importlib.import_module(build)
        bindings = importlib.import_module(f"{build}._bindings")
    except (ImportError, OSError) as error:
        raise _refusal(f"{build} cannot be loaded: {error}") from error
    finally:
        logging.raiseExceptions = raises
    kinds = (kind for name, kind in vars(bindings).items() if name.startswith("nixl"))
    errors = [kind for kind in kinds if isinstance(kind, type) and issubclass(kind, Exception)]
    return NixlLibrary(api=api, errors=(*errors, ReadFailedError))


def _refusal(reason: str) -> InvalidConfigError:
    return InvalidConfigError(
        f"kv_transport is 'nixl', which cannot be used ({reason}); allowed: auto, shared_memory and tcp, "
        "or nixl after pip install 'baton[nixl]'"
    )
