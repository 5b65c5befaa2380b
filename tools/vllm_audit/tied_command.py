"""Becomes a command that ends with the process that starts it, however that one ends.

python -m tools.vllm_audit.tied_command PARENT_PID COMMAND...
"""

from __future__ import annotations

import os
import sys
from collections.abc import Sequence

from baton_service.process import die_with_parent


def tied(words: Sequence[str]) -> list[str]:
    """The command line of a command that is not left behind when this process is killed."""
    return [sys.executable, "-m", "tools.vllm_audit.tied_command", str(os.getpid()), *words]


def main() -> None:
    parent_pid, program, *arguments = sys.argv[1:]
    die_with_parent(int(parent_pid))
    os.execvp(program, [program, *arguments])  # the kernel keeps the tie


if __name__ == "__main__":
    main()
