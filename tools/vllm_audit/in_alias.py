"""Imports names and runs files in a process where `vllm` is Baton; prints what became of each as JSON.

Reads an object from its standard input: `imports`, a list of [module, name], and `files`, a list of paths.
"""

from __future__ import annotations

import contextlib
import json
import runpy
import sys
from importlib import import_module
from typing import Any


def imported(module: str, name: str) -> None:
    """Do what `from MODULE import NAME` does; with no name, what `import MODULE` does."""
    if not name:
        import_module(module)
    elif not hasattr(__import__(module, fromlist=[name]), name):
        raise ImportError(f"cannot import name {name!r} from {module!r}")


def outcome(call: Any, *arguments: str) -> str | None:
    """Return the error's text, or None."""
    try:
        with contextlib.redirect_stdout(sys.stderr):
            call(*arguments)
    except Exception as error:
        return f"{type(error).__name__}: {error}"
    return None


def main() -> None:
    asked = json.load(sys.stdin)
    done = {
        "imports": [outcome(imported, *one) for one in asked["imports"]],
        "files": [outcome(runpy.run_path, one) for one in asked["files"]],
    }
    print(json.dumps(done))


if __name__ == "__main__":
    main()
