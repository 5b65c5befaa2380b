"""Files that figures are written to: checked before hours of work, and their errors told by the flag."""

from __future__ import annotations

import os
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path

from baton_core.errors import InvalidConfigError


def require_writable(path: Path, name: str) -> None:
    """Refuse a file that cannot be written; `name` is what the error calls it.

    Raises:
        InvalidConfigError: it is a folder, its folder is missing, or there is no permission.
    """
    if path.is_dir():
        reason = "it is a folder"
    elif not path.parent.is_dir():
        reason = f"{path.parent} is no folder"
    elif not os.access(path if path.exists() else path.parent, os.W_OK):
        reason = "no permission to write there"
    else:
        return
    raise _refusal(path, name, reason)


@contextmanager
def writing(path: Path, name: str) -> Iterator[None]:
    """Tell an error of writing a file by the name of its flag.

    Raises:
        InvalidConfigError: the block raised OSError.
    """
    try:
        yield
    except OSError as error:
        raise _refusal(path, name, error.strerror or type(error).__name__) from None


def _refusal(path: Path, name: str, reason: str) -> InvalidConfigError:
    return InvalidConfigError(f"{name} is {str(path)!r}; allowed: a file that can be written ({reason})")
