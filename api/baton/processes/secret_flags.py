"""Secret flags for child processes: in their environment, since all users of a machine see arguments."""

from __future__ import annotations

import json
import os
from collections.abc import Sequence
from typing import Final

from baton_service.process import child_environment

SECRET_FLAGS: Final = frozenset({"--api-key", "--hf-token", "--redis", "--resume-secret"})
"""Flags whose values neither errors nor the arguments of child processes show."""
_VARIABLE: Final = "BATON_SECRET_FLAGS"


def hide_secrets(args: Sequence[str]) -> tuple[list[str], dict[str, str]]:
    """Return the arguments without secret ones, and the environment of a child that takes those from it.

    Secret arguments have the form `--flag=value`.
    """
    secret = [arg for arg in args if arg.partition("=")[0] in SECRET_FLAGS]
    return [arg for arg in args if arg not in secret], {**child_environment(), _VARIABLE: json.dumps(secret)}


def take_secrets() -> list[str]:
    """Return the arguments that a parent has hidden, and remove them from the environment."""
    taken: list[str] = json.loads(os.environ.pop(_VARIABLE, "[]"))
    return taken
