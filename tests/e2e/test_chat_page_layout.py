"""The look of the chat page: its answers, and the whole of it in windows of all sizes."""

from __future__ import annotations

from collections.abc import Iterator
from typing import Final, Literal

import pytest
from playwright.sync_api import Browser, Page, Route, expect

from tests.e2e.browsing import browsing, opened
from tests.e2e.chatting import CHAT, WRITTEN, adding, ended, refusing, say, text_of
from tests.e2e.processes import Cluster, until
from tests.tiers import exhaustive


@pytest.fixture(scope="module")
def browser() -> Iterator[Browser]:
    with browsing() as browser:
        yield browser


@pytest.fixture(scope="module")
def page(browser: Browser, cluster: Cluster) -> Iterator[Page]:
    """The chat page, whose parts are drawn by themselves."""
    with opened(browser, f"http://{cluster.http_address}/") as page:
        yield page


def test_text_that_is_nested_too_deeply_is_shown_as_it_is(page: Page) -> None:
    shown = page.evaluate(
        """async () => {
            const { showMarkdown } = await import("/pages/chat.markdown.js");
            const box = document.createElement("div");
            showMarkdown(box, "> ".repeat(20000) + "deep");
            return box.textContent;
        }"""
    )
    assert shown == "> " * 20000 + "deep"


def test_what_a_model_thinks_is_folded_once_it_answers(page: Page) -> None:
    page.evaluate(
        """async () => {
            const { Turn } = await import("/pages/chat.turn.js");
            window.turn = new Turn({ question: "Is it?" }, {});
            window.turn.begin({ continues: false });
            window.say = (delta) => { window.turn.take({ choices: [{ delta }] }); window.turn.draw(); };
            document.getElementById("turns").append(window.turn.node);
        }"""
    )
    thoughts = page.locator(".reasoning .markdown")
    page.evaluate("say({ reasoning: 'I *wonder*.', reasoning_content: 'I *wonder*.' })")
    expect(thoughts).to_be_visible()
    expect(thoughts).to_have_text("I wonder.")
    page.evaluate("say({ content: 'So it is.' })")
    expect(thoughts).to_be_hidden()
    assert text_of(page.locator(".answer")) == "So it is."
    page.locator(".reasoning summary").click()
    page.evaluate("say({ content: '' })")
    expect(thoughts).to_be_visible()
    assert page.evaluate("turn.answer.text") == "So it is."
    page.evaluate(
        """() => {
            const usage = { completion_tokens: 1, total_tokens: 9 };
            window.turn.begin({ continues: false });
            window.say({ reasoning: "I" });
            window.turn.take({ choices: [{ delta: {}, finish_reason: "length" }], usage }, 99);
            window.turn.finish();
            window.turn.draw();
        }"""
    )
    expect(page.locator(".answer .note")).to_have_text(
        "Cut at 1 token, while it was thinking: raise Max tokens and retry."
        " This turn is left out of what the model is sent next."
    )


def test_text_is_read_in_the_direction_of_its_script(page: Page) -> None:
    directions = page.evaluate(
        """async (text) => {
            const { showMarkdown } = await import("/pages/chat.markdown.js");
            const box = document.getElementById("turns");
            showMarkdown(box, text);
            return [...box.children].map((block) => getComputedStyle(block).direction);
        }""",
        "مرحبا!\n\nHello!\n\n- שלום!\n\n```\nx\n```",
    )
    assert directions == ["rtl", "ltr", "rtl", "ltr"]
    assert page.get_attribute("#text", "dir") == "auto"


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


@pytest.mark.parametrize("width", [390, exhaustive(768), 1440])
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


def test_pages_work_where_the_browser_keeps_nothing(browser: Browser, cluster: Cluster) -> None:
    with opened(browser, f"http://{cluster.http_address}/health") as page:
        page.add_init_script(
            "Object.defineProperty(window, 'sessionStorage', { get() { throw new Error('denied') } })"
        )
        page.goto(f"http://{cluster.http_address}/")
        page.route(CHAT, refusing(503, "no worker is there"))
        ended(say(page, "Hello"), "failed")
        page.goto(f"http://{cluster.http_address}/dashboard")
        expect(page.locator("#state")).to_have_text("ready")


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
