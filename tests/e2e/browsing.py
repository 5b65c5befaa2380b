"""Pages in a headless Chromium that raise nothing, break no policy, and ask no other server."""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import contextmanager
from typing import Any, Final
from urllib.parse import urlsplit

from playwright.sync_api import Browser, Page, expect, sync_playwright

CHROMIUM: Final = "/usr/bin/chromium"
WITHIN_MS: Final = 10_000
PHONE: Final = {"width": 390, "height": 844}
TABLET: Final = {"width": 768, "height": 1024}
DESKTOP: Final = {"width": 1440, "height": 900}


@contextmanager
def browsing() -> Iterator[Browser]:
    """A browser, until the block is left."""
    expect.set_options(timeout=WITHIN_MS)
    with sync_playwright() as playwright:
        browser = playwright.chromium.launch(executable_path=CHROMIUM, args=["--no-sandbox", "--disable-gpu"])
        try:
            yield browser
        finally:
            browser.close()


@contextmanager
def visiting(browser: Browser, address: str, path: str, **context: Any) -> Iterator[Page]:
    """A page of a router, in a tab of its own; fails at the end if its script or its policy was broken."""
    with browser.new_context(**{"viewport": DESKTOP, **context}) as opened:
        page = opened.new_page()
        page.set_default_timeout(WITHIN_MS)
        problems: list[str] = []
        hosts: set[str] = set()
        page.on("pageerror", lambda error: problems.append(str(error)))
        page.on("console", lambda line: problems.append(line.text) if "Refused to" in line.text else None)
        page.on("request", lambda request: hosts.add(urlsplit(request.url).netloc))
        page.goto(f"http://{address}{path}")
        yield page
        assert problems == []
        assert hosts <= {address, ""}
