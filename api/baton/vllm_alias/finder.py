"""Makes the modules of `vllm` when they are imported: each takes its names from Baton, when they are used."""

from __future__ import annotations

from collections.abc import Sequence
from functools import partial
from importlib import import_module
from importlib.abc import InspectLoader, MetaPathFinder
from importlib.machinery import ModuleSpec
from types import ModuleType
from typing import Any, Final

from baton.vllm_alias.modules import MODULES, PROGRAMS, REASON_OF

_MAIN: Final = ".__main__"
_PROGRAM: Final = """
import sys
from baton.vllm_alias.programs import main
if __name__ == "__main__":
    sys.exit(main([*{words!r}, *sys.argv[1:]]))
"""


class VllmFinder(MetaPathFinder, InspectLoader):
    """Finds and makes the modules of the table. All are packages, so that each can be run by `python -m`."""

    def find_spec(
        self, fullname: str, path: Sequence[str] | None, target: ModuleType | None = None
    ) -> ModuleSpec | None:
        """Return how to make a module, and None for those of other packages.

        Raises:
            ModuleNotFoundError: it is a module or a name of `vllm` that Baton does not have; the message says
                why. `from MODULE import NAME` ends here as well where the module lacks the name. The error
                has no `name`, or Python would replace it by one that gives no reason.
        """
        if not fullname.startswith("vllm."):
            return None
        if fullname.removesuffix(_MAIN) in PROGRAMS and fullname.endswith(_MAIN):
            return ModuleSpec(fullname, self, origin=fullname)
        if is_module(fullname):
            return ModuleSpec(fullname, self, origin=fullname, is_package=True)
        raise ModuleNotFoundError(f"{fullname} is not in Baton: {reason_of(fullname)}")

    def exec_module(self, module: ModuleType) -> None:
        """Mutate a new module: it gets its names."""
        homes = homes_of(module.__name__)
        module.__dict__.update(
            __all__=sorted(homes),
            __dir__=lambda: sorted({*module.__dict__, *homes}),
            __getattr__=partial(_attribute, module.__name__, homes),
        )

    def get_source(self, fullname: str) -> str:
        """Return the program that `python -m` runs."""
        return _PROGRAM.format(words=PROGRAMS[fullname.removesuffix(_MAIN)])


def is_module(fullname: str) -> bool:
    """Return whether the table has a module."""
    return fullname in MODULES or fullname in PROGRAMS or fullname in REASON_OF


def reason_of(fullname: str) -> str:
    """Return why a module or a name is not there."""
    module = fullname.rpartition(".")[0]
    while module not in REASON_OF:
        module = module.rpartition(".")[0]
    return REASON_OF[module]


def homes_of(module: str) -> dict[str, tuple[str, str]]:
    """Return the names of a module, each with the module and the name that it has in Baton."""
    homes = {}
    for home, names in MODULES.get(module, {}).items():
        for name in names.split():
            theirs, _, ours = name.partition("=")
            homes[theirs] = (home, ours or theirs)
    return homes


def _attribute(module: str, homes: dict[str, tuple[str, str]], name: str) -> Any:
    if name in homes:
        home, ours = homes[name]
        return getattr(import_module(home), ours)
    child = f"{module}.{name}"
    if is_module(child):
        return import_module(child)
    raise AttributeError(f"{child} is not in Baton: {reason_of(child)}")
