"""MkDocs hook: what pages link to outside of docs/ is named on the site, which has no sources to show.

With `repo_url` in mkdocs.yml such links lead to the repository instead.
"""

from __future__ import annotations

import re
from pathlib import Path
from typing import Any, Final

from mkdocs.exceptions import PluginError

ROOT: Final = Path(__file__).resolve().parent.parent
LINK: Final = re.compile(r"\[([^\]\n]+)\]\(((?:\.\./)+)([^)\s#]+)(#[^)\s]*)?\)")
NAME: Final = re.compile(r"`(\w{20,})`")


def on_page_markdown(markdown: str, *, page: Any, config: Any, **_: Any) -> str:
    """Replace the page's links that leave docs/.

    Raises:
        PluginError: a file that is linked to does not exist.
    """
    folder = (ROOT / "docs" / page.file.src_uri).parent

    def replaced(link: re.Match[str]) -> str:
        text, ups, path, anchor = link.groups()
        target = (folder / ups / path).resolve()
        if target.is_relative_to(ROOT / "docs"):
            return link[0]
        if not target.exists():
            raise PluginError(f"{page.file.src_uri} links to {ups}{path}, which does not exist")
        if not config.repo_url:
            return NAME.sub(breakable, text)
        url = f"{config.repo_url.rstrip('/')}/blob/HEAD/{target.relative_to(ROOT)}{anchor or ''}"
        return f"[{text}]({url})"

    return LINK.sub(replaced, markdown)


def breakable(name: re.Match[str]) -> str:
    """A long name that may be broken after each of its words."""
    return f"<code>{name[1].replace('_', '_<wbr>')}</code>"
