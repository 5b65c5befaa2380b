"""Styles and scripts of the pages: a fixed list, which says nothing of the server."""

from __future__ import annotations

import re

from baton_router.process.http_settings import HttpSettings
from tests.integration.http_router import error_of, http_cluster


async def test_the_dashboard_and_all_of_its_parts_are_served_without_a_key() -> None:
    async with http_cluster(http=HttpSettings(api_keys=("key",))) as client:
        page = await client.get("/dashboard")
        policy = page.headers["content-security-policy"]
        assert "default-src 'none'" in policy
        assert "unsafe" not in policy
        assert "<script>" not in page.text
        assert "style=" not in page.text
        seen: set[str] = set()
        open_ = set(re.findall(r"pages/([\w.]+)", page.text))
        assert open_ == {"dashboard.css", "dashboard.js"}
        while open_:
            seen.add(name := open_.pop())
            part = await client.get(f"/pages/{name}")
            assert part.status_code == 200, name
            kind = "text/css" if name.endswith(".css") else "text/javascript"
            assert part.headers["content-type"].startswith(kind)
            assert not re.search(
                r"innerHTML|outerHTML|insertAdjacentHTML|https?://(?!www\.w3\.org/)", part.text
            )
            open_ |= set(re.findall(r'from "\./([\w.]+)"', part.text)) - seen
        assert {"dashboard.workers.js", "dashboard.history.js"} <= seen


async def test_no_other_file_is_served() -> None:
    async with http_cluster() as client:
        for name in ("main.py", "..%2Fmain.py", "chat.html", "nothing.js"):
            response = await client.get(f"/pages/{name}")
            assert error_of(response)[0] == 404, name
