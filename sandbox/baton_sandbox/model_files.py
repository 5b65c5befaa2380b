"""Checks that the files of a model's folder are the folder's own.

A folder from an untrusted source may hold links. Followed, a chat template would show any file of this host
to clients that ask for a prompt's text.
"""

from __future__ import annotations

import errno
from pathlib import Path
from typing import Final

from baton_core.errors import InvalidModelError

_TEXT_SUFFIXES: Final = (".jinja", ".json", ".txt")
_TEMPLATES: Final = "additional_chat_templates"
"""The one folder within a model's that is read."""


def check_links(folder: Path) -> None:
    """Refuse a folder whose text files or folders are links to somewhere else.

    Files of weights may be links: nothing shows what they hold. In the cache of the Hugging Face Hub, where
    every file is a link, `snapshots/*/file` may lead to the same repository's `blobs`.

    Raises:
        InvalidModelError: naming the file and where it leads.
    """
    own = folder.resolve()
    allowed = [own]
    if own.parent.name == "snapshots":
        allowed.append(own.parents[1] / "blobs")
    for path in (own / _TEMPLATES, *_text_files(own), *_text_files(own / _TEMPLATES)):
        target = _resolve(path)
        if not any(target.is_relative_to(each) for each in allowed):
            raise InvalidModelError(
                f"{path} is a link to {target}; allowed: files of the model's folder, "
                "and in the cache of the Hugging Face Hub the repository's blobs"
            )


def _text_files(folder: Path) -> list[Path]:
    try:
        return sorted(path for path in folder.iterdir() if path.suffix in _TEXT_SUFFIXES)
    except OSError:  # reading the folder reports what is wrong with it
        return []


def _resolve(path: Path) -> Path:
    try:
        return path.resolve(strict=True)
    except (OSError, RuntimeError) as error:  # Python before 3.13 raises the latter at a circle
        if isinstance(error, OSError) and error.errno != errno.ELOOP:
            return path.resolve()  # reading it reports that
        raise InvalidModelError(f"{path} is a link that leads nowhere ({error}); allowed: a file") from error
