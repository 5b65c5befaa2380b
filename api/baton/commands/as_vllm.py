"""`baton as-vllm COMMAND...`: runs a command in whose processes `vllm` is Baton."""

from __future__ import annotations

import argparse
import os
import sys
from pathlib import Path
from typing import Final, NoReturn

import baton
from baton_core.errors import InvalidConfigError

_ALIAS: Final = Path(baton.__file__).parent / "vllm_alias"
PYTHON_VARIABLE: Final = "BATON_PYTHON"
"""Variable that names the Python that the command `vllm` runs on."""


def as_vllm(args: argparse.Namespace) -> NoReturn:
    """Become the command: it and its children find `vllm` before any other that is installed.

    Raises:
        InvalidConfigError: there is no command, or it is no program.
    """
    if not args.words:
        raise InvalidConfigError("COMMAND is left out; allowed: a program on PATH, such as python or vllm")
    python = Path(sys.executable)
    given = dict(os.environ)
    environment = {
        **given,
        PYTHON_VARIABLE: str(python),
        "PYTHONPATH": _before(str(_ALIAS / "python"), given.get("PYTHONPATH", "")),
        "PATH": _before(f"{_ALIAS / 'bin'}{os.pathsep}{python.parent}", given.get("PATH", os.defpath)),
    }
    program = args.words[0]
    try:
        os.execvpe(program, args.words, environment)
    except OSError as error:
        raise InvalidConfigError(
            f"COMMAND is {program!r}, which cannot be run ({error.strerror}); allowed: a program on PATH, "
            "such as python or vllm"
        ) from error


def _before(first: str, others: str) -> str:
    return f"{first}{os.pathsep}{others}" if others else first
