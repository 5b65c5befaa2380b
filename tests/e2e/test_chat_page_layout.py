"""The look of the chat page in windows of all sizes; its field for a key and that of the page of the API."""

from __future__ import annotations

import re
from collections.abc import Iterator
from typing import Final, Literal

import pytest
from playwright.sync_api import Browser, Page, Route, expect

from tests.e2e.browsing import browsing, opened
from tests.e2e.chatting import CHAT, PHONE, WRITTEN, adding, ended, say
from tests.e2e.processes import NO_GRAMMARS, ONE_MIXED, Cluster, serving, until


@pytest.fixture(scope="module")
def browser() -> Iterator[Browser]:
    with browsing() as browser:
        yield browser


KEY: Final = "the-key-of-the-pages"
SCHEMES: Final[tuple[Literal["light", "dark"], ...]] = ("light", "dark")
CONTRAST = """() => {
    const channels = (color) => color.match(/[\\d.]+/g).map(Number);
    const luminance = (rgb) => rgb.slice(0, 3).map((c) => c / 255)
        .map((c) => c <= .04045 ? c / 12.92 : ((c + .055) / 1.055) ** 2.4)
        .reduce((sum, c, index) => sum + c * [.2126, .7152, .0722][index], 0);
    const behind = (node) => {
        for (; node; node = node.parentElement) {
            const color = channels(getComputedStyle(node).backgroundColor);
            if (color[3] !== 0) return color;
        }
    };
    const isShown = (node) => node.checkVisibility() && !node.closest(".unseen")
        && [...node.childNodes].some((child) => child.nodeType === 3 && child.data.trim());
    return [...document.body.querySelectorAll("*")].filter(isShown).map((node) => {
        const colors = [channels(getComputedStyle(node).color), behind(node)];
        const [low, high] = colors.map(luminance).sort((a, b) => a - b);
        return [(high + .05) / (low + .05), node.outerHTML.slice(0, 80)];
    }).filter(([ratio]) => ratio < 4.5);
}"""


@pytest.mark.parametrize("width", [390, 768, 1440])
def test_the_layout_fits(browser: Browser, cluster: Cluster, width: int) -> None:
    size = {"width": width, "height": 844}
    with opened(browser, f"http://{cluster.http_address}/", viewport=size) as page:
        expect(page.locator("#questions button")).to_have_count(3)
        assert_fits(page)
        expect(page.locator("#fields")).to_be_visible(visible=width == 1440)
        page.route(CHAT, adding(structured_outputs={"choice": [WRITTEN]}, max_tokens=600))
        answer = say(page, "How do I read JSON?")
        ended(answer)
        expect(answer.locator(".timing")).to_be_in_viewport()
        assert_fits(page)
        page.unroute(CHAT)
        page.evaluate("document.getElementById('settings').open = true")
        page.fill("#top_p", "0")
        ended(say(page, "Lost?"), "failed")
        expect(page.locator("#top_p-error")).to_be_in_viewport()
        assert_fits(page)


def assert_fits(page: Page) -> None:
    """The page is no wider than the window, the message can be written, and every text can be read."""
    for scheme in SCHEMES:
        page.emulate_media(color_scheme=scheme)
        assert page.evaluate("matchMedia('(prefers-color-scheme: dark)').matches") == (scheme == "dark")
        assert page.evaluate("document.documentElement.scrollWidth - innerWidth") <= 0
        expect(page.locator("#text")).to_be_in_viewport(ratio=1)
        expect(page.locator("#send")).to_be_in_viewport(ratio=1)
        assert page.evaluate(CONTRAST) == []


def test_nothing_moves_for_whoever_wants_no_motion(browser: Browser, cluster: Cluster) -> None:
    dot = "getComputedStyle(document.querySelector('.answer.waiting .note'), '::before').animationName"
    for wanted, name in (("no-preference", "pulse"), ("reduce", "none")):
        url = f"http://{cluster.http_address}/"
        with opened(browser, url, reduced_motion=wanted) as page:
            held = holding(page)
            ended(say(page, "Hello"), "waiting")
            assert page.evaluate(dot) == name
            first_held(page, held).abort()


def holding(page: Page) -> list[Route]:
    """Keep requests for answers from the server."""
    held: list[Route] = []
    page.route(CHAT, lambda route: held.append(route))
    return held


def first_held(page: Page, held: list[Route]) -> Route:
    """Return the first request that is kept; the browser tells of it while the page waits."""

    def is_there() -> bool:
        page.wait_for_timeout(10)
        return bool(held)

    until(is_there, 60.0, "a request")
    return held[0]


@pytest.fixture(scope="module")
def keyed(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Cluster]:
    """A cluster that asks for a key, takes two requests a minute, and serves its model under two names."""
    names = ("--served-model-name", "little", "tiny")
    flags = ("--api-key", KEY, *NO_GRAMMARS, *names, "--rate-limit", "requests=2,tokens=100000")
    with serving(tmp_path_factory.mktemp("keyed"), *ONE_MIXED, *flags) as running:
        yield running


def test_it_asks_for_a_key_and_keeps_it_for_the_tab(browser: Browser, keyed: Cluster) -> None:
    with opened(browser, f"http://{keyed.http_address}/", viewport=PHONE) as page:
        problem = page.locator("#key-error")
        expect(problem).to_have_text("The server asks for an API key.")
        expect(page.locator("#key")).to_be_focused()
        page.keyboard.type("wrong")
        page.keyboard.press("Tab")
        expect(problem).to_have_text("The server does not know this key.")
        page.fill("#key", KEY)
        page.keyboard.press("Tab")
        expect(problem).to_be_hidden()
        expect(page.locator("#model-name")).to_have_text("little")
        expect(page.locator("#questions button").first).to_have_text("Write a haiku about the sea.")
        assert page.locator("#model option").all_inner_texts() == ["little", "tiny"]
        page.reload()
        expect(page.locator("#model-name")).to_have_text("little")
        page.locator("summary", has_text="Settings").click()
        page.fill("#max_tokens", "5")
        page.select_option("#model", "tiny")
        expect(page.locator("#model-name")).to_have_text("tiny")
        for _ in range(2):
            answer = say(page, "Hello")
            expect(answer.locator(".timing summary")).to_contain_text("mixed-0")
        refused = say(page, "Hello")
        ended(refused, "failed")
        problem = refused.locator(".error")
        expect(problem).to_contain_text(re.compile(r"The server is busy; try again in \d+ s\."))


def test_the_page_of_the_api_needs_no_key_and_asks_for_the_one_of_the_description(
    browser: Browser, keyed: Cluster
) -> None:
    with opened(browser, f"http://{keyed.http_address}/docs") as page:
        expect(page.locator("#operations")).to_have_text("This server wants an API key: enter it above.")
        assert page.locator("details").count() == 0
        page.fill("#key", "wrong")
        page.press("#key", "Enter")
        expect(page.locator("#operations")).to_have_text("This server does not know the key above.")
        page.fill("#key", KEY)
        page.press("#key", "Enter")
        page.locator("#listModels > summary").click()
        page.locator("#listModels").get_by_role("button", name="Send").click()
        expect(page.locator("#listModels .answer .ok")).to_contain_text("200 OK")
        expect(page.locator("#listModels .curl")).to_contain_text("Bearer $BATON_API_KEY")
        assert KEY not in page.content()
