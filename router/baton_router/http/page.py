"""The pages for people: static files that may run their own script and speak to their own server only."""

from __future__ import annotations

import base64
import hashlib
import re
from functools import cache
from pathlib import Path
from typing import Final

from starlette.responses import HTMLResponse

from baton_router.http.calls import Call

_PAGES: Final = Path(__file__).parent.parent / "pages"
_INLINE: Final = re.compile(r"<(script|style)>(.*?)</\1>", re.DOTALL)


async def show_chat(call: Call[None]) -> None:
    """Needs no key: the page says nothing of the server, and asks its user for one."""
    await call.respond(_page("chat.html"))


async def show_dashboard(call: Call[None]) -> None:
    """Needs no key, for the same reason."""
    await call.respond(_page("dashboard.html"))


async def show_docs(call: Call[None]) -> None:
    """Needs no key, for the same reason: it reads `/openapi.json`, which does."""
    await call.respond(_page("docs.html"))


@cache
def _page(name: str) -> HTMLResponse:
    text = (_PAGES / name).read_text(encoding="utf-8")
    headers = {"Content-Security-Policy": _policy(text), "Referrer-Policy": "no-referrer"}
    return HTMLResponse(text, headers=headers)


def _policy(page: str) -> str:
    sources = {name: _hash(content) for name, content in _INLINE.findall(page)}
    return (
        f"default-src 'none'; connect-src 'self'; img-src data:; script-src {sources['script']}; "
        f"style-src {sources['style']}; base-uri 'none'; form-action 'none'; frame-ancestors 'none'"
    )


def _hash(content: str) -> str:
    return f"'sha256-{base64.b64encode(hashlib.sha256(content.encode()).digest()).decode()}'"
