"""Serves the web pages: static files that run only their own scripts and call only their own server."""

from __future__ import annotations

import base64
import hashlib
import re
from functools import cache
from pathlib import Path
from typing import Final

from starlette.responses import HTMLResponse, Response

from baton_router.http.calls import Call
from baton_router.http.errors import HttpError
from baton_router.http.route import Routes, Tag

ROUTES: Final = Routes(tag=Tag.PAGES, media_type="text/html", needs_key=False)
DOCS: Final = "/docs"

_PAGES: Final = Path(__file__).parent.parent / "pages"
_INLINE: Final = re.compile(r"<(script|style)>(.*?)</\1>", re.DOTALL)
_PART_TYPES: Final = {".css": "text/css", ".js": "text/javascript"}


@ROUTES.route("/", "showChatPage", "A page to chat on")
async def show_chat(call: Call[None]) -> Response:
    """Serve the chat page, which needs no key: it shows nothing of the server and asks its user for one."""
    return _page("chat.html")


@ROUTES.route("/dashboard", "showDashboard", "A page that shows the cluster as it is now")
async def show_dashboard(call: Call[None]) -> Response:
    """Serve the dashboard, which needs no key either."""
    return _page("dashboard.html")


@ROUTES.route(DOCS, "showDocs", "A page that shows this description, and sends requests")
async def show_docs(call: Call[None]) -> Response:
    """Serve the page of the API, which needs no key: it reads `/openapi.json`, which does."""
    return _page("docs.html")


@ROUTES.route(
    "/pages/{name}", "getPagePart", "Styles and scripts of the pages", media_type="text/plain", errors=(404,)
)
async def show_part(call: Call[None]) -> Response:
    """Serve a style or script, which needs no key, like the pages.

    Raises:
        HttpError: 404.
    """
    name = call.request.path_params["name"]
    parts = _parts()
    if name not in parts:
        raise HttpError(404, "unknown_route", f"name is {name!r}; allowed: {', '.join(parts)}", param="name")
    return parts[name]


@cache
def _page(name: str) -> HTMLResponse:
    text = (_PAGES / name).read_text(encoding="utf-8")
    headers = {"Content-Security-Policy": _policy(text), "Referrer-Policy": "no-referrer"}
    return HTMLResponse(text, headers=headers)


@cache
def _parts() -> dict[str, Response]:
    """Return styles and scripts by name; browsers revalidate them, so they always fit the page."""
    headers = {"Cache-Control": "no-cache", "X-Content-Type-Options": "nosniff"}
    return {
        path.name: Response(path.read_bytes(), headers=headers, media_type=_PART_TYPES[path.suffix])
        for path in sorted(_PAGES.iterdir())
        if path.suffix in _PART_TYPES
    }


def _policy(page: str) -> str:
    """Return the policy that allows the page's inline parts, or else its files; no script may inject HTML."""
    inline = {name: _hash(content) for name, content in _INLINE.findall(page)}
    scripts, styles = (inline.get(name, "'self'") for name in ("script", "style"))
    return (
        f"default-src 'none'; connect-src 'self'; img-src data:; script-src {scripts}; style-src {styles}; "
        "base-uri 'none'; form-action 'none'; frame-ancestors 'none'; require-trusted-types-for 'script'"
    )


def _hash(content: str) -> str:
    return f"'sha256-{base64.b64encode(hashlib.sha256(content.encode()).digest()).decode()}'"
