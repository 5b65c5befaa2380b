"""The chat page in a real browser, against a real cluster."""

from __future__ import annotations

import re
from collections.abc import Iterator

import pytest
from playwright.sync_api import Page, expect, sync_playwright

from tests.e2e.processes import Cluster

ANSWER_WITHIN_MS = 30_000


@pytest.fixture(scope="module")
def browser_page(cluster: Cluster) -> Iterator[Page]:
    """The page of the cluster, whose script raises nothing."""
    with sync_playwright() as playwright:
        arguments = ["--no-sandbox", "--disable-gpu"]
        browser = playwright.chromium.launch(executable_path="/usr/bin/chromium", args=arguments)
        page = browser.new_page()
        page.set_default_timeout(ANSWER_WITHIN_MS)
        problems: list[str] = []
        page.on("pageerror", lambda error: problems.append(str(error)))
        page.goto(f"http://{cluster.http_address}/")
        yield page
        browser.close()
        assert problems == []


def say(page: Page, text: str) -> None:
    page.fill("#text", text)
    page.click("#send")


def test_it_streams_an_answer_and_shows_its_timing(browser_page: Page, cluster: Cluster) -> None:
    browser_page.fill("#temperature", "0")
    browser_page.fill("#max_tokens", "12")
    say(browser_page, "What is os.path?")
    timing = browser_page.locator(".assistant .timing").first
    expect(timing).to_contain_text("first token", timeout=ANSWER_WITHIN_MS)
    words = timing.inner_text()
    assert re.search(r"first token \d+ ms · total \d+ ms · \d+ prompt tokens \(\d+ cached\) · \d+ new", words)
    assert re.search(r"queue \d+ ms · prefill \d+ ms", words), words
    answer = browser_page.locator(".assistant span").nth(1).inner_text()
    assert answer
    say(browser_page, "What is os.path?")
    browser_page.click("#reset")
    expect(browser_page.locator(".message")).to_have_count(0)
    cluster.wait_until_idle()


def test_the_same_seed_gives_the_same_answer_and_a_stop_ends_it(browser_page: Page, cluster: Cluster) -> None:
    browser_page.fill("#temperature", "1")
    browser_page.fill("#seed", "7")
    answers = []
    for number in range(2):
        say(browser_page, "Tell me about lists.")
        line = browser_page.locator(".assistant .timing")
        expect(line).to_have_count(1, timeout=ANSWER_WITHIN_MS)
        answers.append(browser_page.locator(".assistant span").nth(1).inner_text())
        browser_page.click("#reset")
        assert answers[number]
    assert answers[0] == answers[1]
    browser_page.fill("#text", "Tell me everything.")
    browser_page.evaluate("element('ask').requestSubmit(); element('cancel').click()")
    expect(browser_page.locator(".error")).to_have_text("stopped")
    cluster.wait_until_idle()


def test_a_refusal_is_shown_in_the_servers_words(browser_page: Page) -> None:
    browser_page.click("#reset")
    browser_page.fill("#max_tokens", "5")
    browser_page.eval_on_selector("#top_p", "box => { box.value = '7' }")
    say(browser_page, "Hello")
    expect(browser_page.locator(".error")).to_contain_text("top_p is 7")
