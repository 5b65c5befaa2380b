"""The command line that all programs of `bench` have in common."""

from __future__ import annotations

import argparse
import sys


def make_parser(description: str | None) -> argparse.ArgumentParser:
    """A parser whose `--help` shows the module's command, and its docstring as it is written."""
    spec = sys.modules["__main__"].__spec__
    return argparse.ArgumentParser(
        prog=f"python -m {spec.name.removesuffix('.__main__')}" if spec else None,
        description=description,
        formatter_class=argparse.RawDescriptionHelpFormatter,
    )
