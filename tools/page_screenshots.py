"""Takes pictures of the pages of a running router, as phones, tablets and desktops show them, light and dark.

python tools/page_screenshots.py http://127.0.0.1:8000 pictures
"""

from __future__ import annotations

import argparse
from pathlib import Path
from typing import Final

from playwright.sync_api import Page, sync_playwright

PAGES: Final = ("", "dashboard", "docs")
SIZES: Final = ((390, 844), (768, 1024), (1440, 900))
ANSWER_WITHIN_MS: Final = 60_000


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("url")
    parser.add_argument("folder", type=Path)
    parser.add_argument("--browser", default="/usr/bin/chromium", help="path of Chromium; %(default)s")
    args = parser.parse_args()
    args.folder.mkdir(parents=True, exist_ok=True)
    with sync_playwright() as playwright:
        flags = ["--no-sandbox", "--disable-gpu"]
        browser = playwright.chromium.launch(executable_path=args.browser, args=flags)
        for width, height in SIZES:
            for scheme in ("light", "dark"):
                size = {"width": width, "height": height}
                page = browser.new_page(viewport=size, color_scheme=scheme)
                take_all(page, args.url.rstrip("/"), args.folder, f"{width}-{scheme}.png")
                page.close()


def take_all(page: Page, url: str, folder: Path, ending: str) -> None:
    """Each page as it opens, and the chat page with the answer to its first question."""
    for path in PAGES:
        page.goto(f"{url}/{path}")
        page.wait_for_load_state("networkidle" if not path else "load")
        page.wait_for_timeout(500)
        page.screenshot(path=folder / f"{path or 'chat'}-{ending}")
    page.goto(f"{url}/")
    page.locator("#questions button").first.click()
    page.locator(".answer .actions").wait_for(timeout=ANSWER_WITHIN_MS)
    page.screenshot(path=folder / f"answer-{ending}")


if __name__ == "__main__":
    main()
