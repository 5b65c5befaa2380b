"""The extras of Baton's package: which of their packages are missing, and the command that installs them.

What an extra brings is read from the package's own metadata, where pyproject.toml has put it.
"""

from __future__ import annotations

import argparse
import re
from importlib.metadata import PackageNotFoundError, distribution, requires
from typing import Final

_PACKAGE: Final = "baton"
_NUM_NAMED: Final = 3
"""Missing packages that an error names."""
_REQUIREMENT: Final = re.compile(r"([\w.-]+)(?:\[([\w,-]+)\])?[^;]*;\s*extra == ['\"]([\w-]+)['\"]")
"""A package, its own extras, and the extra of Baton that brings it."""


class MissingExtraError(ImportError):
    """An extra that is not installed; the message is one line with the command that installs it."""


def require_extras(who: str, *extras: str) -> None:
    """Do nothing where all packages of the extras are installed.

    Raises:
        MissingExtraError: `who` needs a package that is not installed.
    """
    missing = {extra: names for extra in extras if (names := missing_packages(extra))}
    if missing:
        names = list(dict.fromkeys(name for group in missing.values() for name in group))
        raise MissingExtraError(f"{who} needs {_listed(names)}: {install_command(*missing)}")


def install_command(*extras: str) -> str:
    """The command that adds extras to an installed Baton."""
    return f"pip install '{_PACKAGE}[{','.join(extras)}]'"


def missing_packages(extra: str) -> list[str]:
    """Packages of an extra that are not installed; none where Baton itself runs without being installed."""
    try:
        requirements = requires(_PACKAGE) or []
    except PackageNotFoundError:
        return []
    missing = []
    for match in filter(None, map(_REQUIREMENT.match, requirements)):
        name, own_extras, brought_by = match.groups()
        if brought_by == extra and name == _PACKAGE:
            missing += [one for part in own_extras.split(",") for one in missing_packages(part)]
        elif brought_by == extra and not _is_installed(name):
            missing.append(name)
    return missing


def _is_installed(name: str) -> bool:
    try:
        distribution(name)
    except PackageNotFoundError:
        return False
    return True


def _listed(names: list[str]) -> str:
    more = len(names) - _NUM_NAMED
    if more > 1:
        return f"{', '.join(names[:_NUM_NAMED])} and {more} more packages"
    return ", ".join(names)


_OF_COMMAND: Final = {
    "serve": ("router", "worker"),
    "router": ("router",),
    "prefill-worker": ("worker",),
    "decode-worker": ("worker",),
    "mixed-worker": ("worker",),
    "kv-events": ("kv-events",),
    "run-batch": ("bench",),
    "bench serve": ("bench",),
    "bench sweep": ("bench",),
    "bench latency": ("bench", "worker"),
    "bench throughput": ("bench", "worker"),
}
"""Every other command runs with what Baton always needs."""
_OF_FLAG: Final = {"otlp_traces_endpoint": ("tracing",), "plot": ("simulate",)}


def check_extras(args: argparse.Namespace) -> None:
    """Do nothing where all that a command line needs is installed.

    Raises:
        MissingExtraError: it needs a package that is not installed; the message names the extra.
    """
    name = f"bench {args.benchmark}" if args.command == "bench" else args.command
    require_extras(f"baton {name}", *_OF_COMMAND.get(name, ()))
    for field, extras in _OF_FLAG.items():
        if getattr(args, field, None):
            require_extras(f"baton {name} --{field.replace('_', '-')}", *extras)
    if getattr(args, "distributed_executor_backend", None) == "ray":
        require_extras(f"baton {name} --distributed-executor-backend ray", "ray")
    if getattr(args, "kv_transport", "") == "nixl":
        _check_nixl(name)


def _check_nixl(name: str) -> None:
    """One of two packages is enough, so metadata does not say whether it is missing."""
    from baton_kv.nixl_library import find_build  # loads nothing, but only workers need it

    if find_build() is None:
        text = f"baton {name} --kv-transport nixl needs nixl-cu12 or nixl-cu13"
        raise MissingExtraError(f"{text}: {install_command('nixl')}")
