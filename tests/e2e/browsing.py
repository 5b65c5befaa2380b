"""A real browser for the tests of the pages, which may speak to their own server only."""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import contextmanager
from typing import Any
from urllib.parse import urlsplit

from playwright.sync_api import Browser, Page, expect, sync_playwright

WITHIN_MS = 90_000
expect.set_options(timeout=WITHIN_MS)


@contextmanager
def browsing() -> Iterator[Browser]:
    with sync_playwright() as playwright:
        arguments = ["--no-sandbox", "--disable-gpu"]
        browser = playwright.chromium.launch(executable_path="/usr/bin/chromium", args=arguments)
        yield browser
        browser.close()


@contextmanager
def opened(browser: Browser, url: str, **options: Any) -> Iterator[Page]:
    """A page in a session of its own, whose scripts raise nothing and which asks no other server."""
    context = browser.new_context(**options)
    page = context.new_page()
    page.set_default_timeout(WITHIN_MS)
    problems: list[str] = []
    hosts: set[str] = set()
    page.on("pageerror", lambda error: problems.append(str(error)))
    page.on("request", lambda request: hosts.add(urlsplit(request.url).netloc))
    page.goto(url)
    yield page
    context.close()
    assert problems == []
    assert hosts <= {urlsplit(url).netloc, ""}
