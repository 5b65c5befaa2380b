"""Conversations on the chat page, in a real browser and against a real cluster."""

from __future__ import annotations

import json
import re
from collections.abc import Iterator
from typing import Any

import httpx
import pytest
from playwright.sync_api import Browser, Page, Request, expect

from tests.e2e.browsing import browsing, opened
from tests.e2e.chatting import CHAT, PHONE, WRITTEN, adding, ended, is_chat, refusing, say, text_of
from tests.e2e.processes import Cluster, until

DESKTOP = {"width": 1280, "height": 720}


@pytest.fixture(scope="module")
def browser() -> Iterator[Browser]:
    with browsing() as browser:
        yield browser


@pytest.fixture(scope="module")
def tab(browser: Browser, cluster: Cluster) -> Iterator[Page]:
    """One tab for all tests: to open another one costs more than what most of them do there."""
    with opened(browser, f"http://{cluster.http_address}/health") as tab:
        yield tab


@pytest.fixture
def page(tab: Page, cluster: Cluster) -> Iterator[Page]:
    """The chat page in a tab that remembers nothing."""
    tab.goto(f"http://{cluster.http_address}/")
    yield tab
    tab.unroute_all()
    tab.goto(
        f"http://{cluster.http_address}/health"
    )  # a page stores its state, at the latest when it is left
    tab.evaluate("sessionStorage.clear()")
    tab.context.clear_permissions()
    tab.set_viewport_size(DESKTOP)


@pytest.fixture
def sent(page: Page) -> Iterator[list[dict[str, Any]]]:
    """The bodies of the requests for answers, as the page sends them."""
    bodies: list[dict[str, Any]] = []

    def take(request: Request) -> None:
        if is_chat(request):
            bodies.append(request.post_data_json)

    page.on("request", take)
    yield bodies
    page.remove_listener("request", take)


def test_an_empty_chat_names_its_model_and_asks_what_that_can_answer(page: Page) -> None:
    expect(page.locator("#model-name")).to_have_text("baton-docs-5m")
    page.fill("#temperature", "0")
    page.fill("#text", "a draft")
    for number, words in enumerate(("sorted(iterable", "current working directory", "deque object")):
        question = page.locator("#questions button").nth(number)
        asked = question.inner_text()
        question.click()
        expect(page.locator("#welcome")).to_be_hidden()
        expect(page.locator(".question")).to_have_text(asked)
        answer = page.locator(".answer")
        ended(answer)
        assert words in text_of(answer)
        page.click("#new")
        expect(page.locator(".turn")).to_have_count(0)
        expect(page.locator("#questions button")).to_have_count(3)
    expect(page.locator("#text")).to_have_value("a draft")


def test_the_figures_of_an_answer_are_those_that_the_server_says(page: Page) -> None:
    page.fill("#max_tokens", "12")
    page.route(CHAT, adding(ignore_eos=True))
    with page.expect_response(lambda response: is_chat(response.request)) as response:
        answer = say(page, "What is os.path?")
    ended(answer, "cut")
    *_, last, done, _ = response.value.text().split("\n\n")
    assert done == "data: [DONE]"
    told = json.loads(last.removeprefix("data: "))
    timings, usage = told["timings"], told["usage"]
    rate, first_s = 1 / timings["per_token_s"], timings["first_token_s"]
    assert answer.locator(".timing summary").inner_text() == (
        f"12 tokens · {f'{rate:.1f}' if rate < 100 else f'{rate:,.0f}'} tokens/s"
        f" · first token after {shown_time(first_s)} · prefill-0 → decode-1"
    )
    answer.locator(".timing summary").click()
    rows = answer.locator(".timing dl")
    expect(rows).to_contain_text(f"{usage['prompt_tokens']} tokens, 0 of them cached")
    expect(rows).to_contain_text(f"{timings['transferred_bytes'] / 1024:.0f} KiB")
    expect(rows).to_contain_text(told["id"])


def shown_time(seconds: float) -> str:
    return f"{seconds:.2f} s" if seconds >= 1 else f"{1e3 * seconds:.{1 if seconds < 0.01 else 0}f} ms"


def test_markdown_becomes_elements_and_nothing_of_it_runs_or_loads(page: Page) -> None:
    page.fill("#max_tokens", "600")
    page.route(CHAT, adding(structured_outputs={"choice": [WRITTEN]}))
    answer = say(page, "How do I read JSON?")
    heading = answer.locator("h4").first
    expect(heading).to_have_text("Reading JSON")
    expect(answer.locator("pre")).to_be_visible()
    heading.evaluate("heading => { heading.dataset.seen = 'yes' }")
    ended(answer)
    expect(heading).to_have_attribute("data-seen", "yes")  # what is there stays, and a selection in it
    expect(answer.locator("p").first).to_have_text("The json module reads text & gives — in time — objects:")
    texts = {"strong": "text", "em": "objects", "td:has(code)": "list", "th.right": "Python"}
    for tag, text in texts.items():
        expect(answer.locator(tag)).to_have_text(text)
    expect(answer.locator("ol > li > ul > li")).to_contain_text("checks")
    assert answer.locator("pre code").inner_text() == (
        'with open("a.json") as file:\n    print(json.load(file)["a < b"])'
    )
    expect(answer.locator(".code-head span")).to_have_text("python")
    assert answer.locator("p", has_text="Two").inner_text() == "Two\nlines"
    expect(answer).to_contain_text('<img src=x onerror="window.harmed = 1">')
    assert answer.locator("img, script").count() == 0
    links = {link.inner_text(): link.get_attribute("href") for link in answer.locator("a").all()}
    assert links == {"docs": "https://docs.python.org", "picture": "https://example.org/a.png"}
    assert page.evaluate("window.harmed") is None
    attempt = "() => { try { document.body.innerHTML = '' } catch (error) { return error.name } }"
    assert page.evaluate(attempt) == "TypeError", "the policy of the page has no text read as HTML"


@pytest.mark.parametrize("has_clipboard", [True, False], ids=["https", "http"])
def test_an_answer_and_each_of_its_code_blocks_can_be_copied(page: Page, has_clipboard: bool) -> None:
    page.context.grant_permissions(["clipboard-read", "clipboard-write"])
    if not has_clipboard:  # as on a page that came over plain HTTP from another machine
        page.evaluate("Object.defineProperty(navigator, 'clipboard', { value: undefined })")
    page.fill("#max_tokens", "100")
    page.route(CHAT, adding(structured_outputs={"choice": ["So:\n\n```\nx = 1\n```\n"]}))
    answer = say(page, "How do I set x?")
    ended(answer)
    for name, text in (("Copy code", "x = 1"), ("Copy answer", "So:\n\n```\nx = 1\n```\n")):
        answer.get_by_role("button", name=name).click()
        expect(answer.get_by_text("Copied")).to_be_visible()
        page.fill("#text", "")
        page.focus("#text")
        page.keyboard.press("Control+V")
        expect(page.locator("#text")).to_have_value(text)
        expect(answer.get_by_text("Copied")).to_have_count(0)


def latest_request(cluster: Cluster) -> Any:
    return httpx.get(f"http://{cluster.http_address}/debug/requests?limit=1").json()["requests"][0]


def test_stop_ends_the_request_at_the_server_and_keeps_what_came(
    page: Page, cluster: Cluster, sent: list[dict[str, Any]]
) -> None:
    page.fill("#max_tokens", "1900")
    page.route(CHAT, adding(ignore_eos=True))
    expect(page.locator("#send")).to_have_text("Send")
    page.fill("#text", "Tell me everything.")
    page.click("#send")
    expect(page.locator("#send")).to_have_text("Stop")
    answer = page.locator(".answer")
    expect(answer).to_have_attribute("aria-busy", "true")
    expect(answer.locator("> .markdown")).to_have_text(re.compile(".{40}", re.DOTALL))
    page.click("#send")
    ended(answer, "stopped")
    expect(page.locator("#send")).to_have_text("Send")
    expect(page.locator("#text")).to_be_focused()
    expect(answer).to_have_attribute("aria-busy", "false")
    expect(answer.locator(".timing summary")).to_contain_text("prefill-0 → decode-1")
    until(lambda: latest_request(cluster)["state"] == "failed", 10.0, "the end of the request")
    latest = latest_request(cluster)
    assert latest["code"] == "cancelled"
    assert latest["num_output_tokens"] < 1900
    expect(answer.locator(".note")).to_contain_text(f"Stopped after {latest['num_output_tokens']:,} tokens.")
    cluster.wait_until_idle()
    kept = text_of(answer)
    page.unroute(CHAT)
    page.fill("#max_tokens", "4")
    say(page, "Go on.")
    expect(page.locator(".turn")).to_have_count(2)
    roles = [message["role"] for message in sent[-1]["messages"]]
    assert roles == ["user", "assistant", "user"]
    unmarked = [re.sub(r"[*_`#]", "", text).split() for text in (sent[-1]["messages"][1]["content"], kept)]
    assert unmarked[0] == unmarked[1]  # what the page shows as marks is not in its text


def test_an_answer_that_is_cut_says_where_and_goes_on(page: Page, sent: list[dict[str, Any]]) -> None:
    page.route(CHAT, adding(ignore_eos=True))
    page.fill("#max_tokens", "8")
    page.fill("#temperature", "0")
    answer = say(page, "What is collections.deque?")
    ended(answer, "cut")
    expect(answer.locator(".note")).to_have_text("Cut at 8 tokens. Continue")
    before = text_of(answer)
    answer.get_by_role("button", name="Continue").click()
    expect(answer.locator(".note")).to_have_text("Cut at 16 tokens. Continue")
    assert text_of(answer).startswith(before)
    assert len(text_of(answer)) > len(before)
    assert sent[1]["continue_final_message"] is True
    assert sent[1]["messages"][-1] == {"role": "assistant", "content": before}
    figures = answer.locator(".timing summary").inner_text()
    expect(answer.locator(".timing dl")).to_contain_text("of the last 8 tokens")
    page.unroute(CHAT)
    page.route(CHAT, lambda route: None)  # the next part does not come
    answer.get_by_role("button", name="Continue").click()
    ended(answer, "streaming")
    page.click("#send")
    expect(answer.locator(".note")).to_have_text("Cut at 16 tokens. Continue")
    expect(answer.locator(".timing summary")).to_have_text(figures)
    answer.get_by_role("button", name="Retry").click()
    ended(answer, "waiting")
    page.reload()
    expect(answer.locator(".note")).to_have_text("Cut at 16 tokens. Continue")


def test_an_answer_that_fills_the_context_says_so(page: Page) -> None:
    page.route(CHAT, adding(ignore_eos=True))
    page.fill("#max_tokens", "")
    page.fill("#system", "word " * 1900)
    answer = say(page, "Go on.")
    ended(answer, "full")
    expect(answer.locator(".note")).to_have_text(
        re.compile(r"^Cut at [\d,]+ tokens: the model's context of 2,048 is full\.$")
    )
    expect(answer.get_by_role("button", name="Continue")).to_have_count(0)


def test_a_refused_value_is_explained_beside_its_field_and_its_turn_can_be_retried(
    page: Page, sent: list[dict[str, Any]]
) -> None:
    page.set_viewport_size(PHONE)
    expect(page.locator("#fields")).to_be_hidden()
    page.locator("summary", has_text="Settings").click()
    page.fill("#max_tokens", "5")
    page.fill("#top_p", "0")
    failed = say(page, "Lost?")
    ended(failed, "failed")
    expect(page.locator("#top_p-error")).to_be_visible()
    expect(page.locator("#top_p-error")).to_have_text("Top p must be a finite number over 0 to 1.")
    expect(page.locator("#top_p")).to_be_focused()
    expect(page.locator("#top_p")).to_have_attribute("aria-invalid", "true")
    expect(failed.locator(".error")).to_have_text("Top p must be a finite number over 0 to 1.")
    page.fill("#top_p", "1")
    expect(page.locator("#top_p-error")).to_be_hidden()
    answer = say(page, "Found?")
    expect(answer.locator(".actions")).to_be_visible()
    expect(page.locator("#fields")).to_be_hidden()
    assert [message["content"] for message in sent[-1]["messages"]] == ["Found?"]
    first = page.locator(".answer").first
    first.get_by_role("button", name="Retry").click()
    expect(first.locator(".timing")).to_be_visible()
    expect(first.locator(".error")).to_have_count(0)
    assert [message["content"] for message in sent[-1]["messages"]] == ["Lost?"]


def test_a_value_that_cannot_be_right_is_not_sent(page: Page, sent: list[dict[str, Any]]) -> None:
    page.fill("#temperature", "-1")
    page.fill("#max_tokens", "2.5")
    say(page, "Hello")
    expect(page.locator("#temperature-error")).to_have_text("Temperature must be a number, 0 or more.")
    expect(page.locator("#max_tokens-error")).to_have_text("Max tokens must be a whole number, 1 or more.")
    expect(page.locator("#temperature")).to_be_focused()
    expect(page.locator("#text")).to_have_value("Hello")
    assert sent == []


def test_a_conversation_that_is_too_long_is_said_beside_the_message(page: Page) -> None:
    answer = say(page, "word " * 3000)
    ended(answer, "failed")
    expect(page.locator("#text-error")).to_contain_text("longer than the model's context")
    expect(page.locator("#text")).to_have_value(re.compile("^word word"))  # to be shortened


def test_a_refusal_is_shown_as_a_sentence(page: Page) -> None:
    busy = "The server is busy; try again in 3 s."
    for status, message, shown in (
        (429, "slo_ttft_s is 1; x", f"{busy} slo_ttft_s is 1; x."),
        (429, "the queue is full", f"{busy} The queue is full."),
        (503, "no worker is there", "No worker is there."),
        (503, "decode-1 is loading", "decode-1 is loading."),
    ):
        page.route(CHAT, refusing(status, message))
        refused = say(page, "Hello")
        ended(refused, "failed")
        expect(refused.locator(".error")).to_have_text(shown)
        page.unroute(CHAT)


def test_an_answer_outlives_a_retry_that_fails(page: Page, sent: list[dict[str, Any]]) -> None:
    page.fill("#max_tokens", "6")
    page.route(CHAT, adding(ignore_eos=True))
    answer = say(page, "What is os.path?")
    ended(answer, "cut")
    text = text_of(answer)
    page.unroute(CHAT)
    page.route(CHAT, lambda route: route.abort())
    answer.get_by_role("button", name="Retry").click()
    expect(answer.locator(".error")).to_have_text("The server cannot be reached. Is it running?")
    assert text_of(answer) == text
    page.unroute(CHAT)
    piece = {"id": "x", "choices": [{"index": 0, "delta": {"content": "half"}}]}
    page.route(CHAT, lambda route: route.fulfill(body=f"data: {json.dumps(piece)}\n\n"))
    broken = say(page, "And os?")
    ended(broken, "failed")
    expect(broken.locator(".error")).to_have_text("The connection broke before the answer was complete.")
    assert text_of(broken) == "half"
    page.unroute(CHAT)
    say(page, "And sys?")
    expect(page.locator(".turn")).to_have_count(3)
    contents = [message["content"] for message in sent[-1]["messages"]]
    assert (contents[0], contents[2]) == ("What is os.path?", "And sys?")
    assert len(contents) == 3


def test_the_last_turns_are_kept_of_a_conversation_that_is_too_long_for_a_tab(page: Page) -> None:
    page.route(CHAT, refusing(503, "no worker is there"))
    page.evaluate("sessionStorage.setItem('filler', 'x'.repeat(5 * 1024 * 1024 - 5000))")
    for letter in "abc":
        ended(say(page, letter * 2000), "failed")
    page.reload()
    expect(page.locator(".question")).to_have_text([re.compile("^b+$"), re.compile("^c+$")])


def test_the_keyboard_is_enough(page: Page, sent: list[dict[str, Any]]) -> None:
    expect(page.locator("#text")).to_be_focused()
    page.keyboard.type("one")
    page.keyboard.press("Shift+Enter")
    page.keyboard.type("two")
    expect(page.locator("#text")).to_have_value("one\ntwo")
    page.route(CHAT, adding(ignore_eos=True, max_tokens=1900))
    with page.expect_request(is_chat):
        page.keyboard.press("Enter")
    expect(page.locator("#send")).to_have_text("Stop")
    expect(page.locator("#text")).to_be_focused()
    assert sent[0]["messages"] == [{"role": "user", "content": "one\ntwo"}]
    page.keyboard.type("next")
    page.keyboard.press("Enter")
    expect(page.locator("#text")).to_have_value("next")  # not sent before the answer is there
    page.evaluate("dispatchEvent(new KeyboardEvent('keydown', { key: 'Escape', isComposing: true }))")
    page.wait_for_timeout(100)
    expect(page.locator("#send")).to_have_text("Stop")  # that key was for an input method
    page.keyboard.press("Escape")
    ended(page.locator(".answer"), "stopped")
    expect(page.locator("#text")).to_be_focused()
    expect(page.get_by_role("log")).to_have_count(1)
    expect(page.get_by_role("group", name="Your message")).to_have_text("one\ntwo")
    expect(page.get_by_role("group", name="Answer")).to_have_count(1)
    expect(page.get_by_role("status")).to_contain_text("Stopped")
    unlabelled = "[...document.querySelectorAll('input, select, textarea')].filter(box => !box.labels.length)"
    assert page.evaluate(f"{unlabelled}.length") == 0


def test_a_conversation_and_its_settings_outlive_a_visit_to_another_page(page: Page) -> None:
    page.fill("#max_tokens", "5")
    answer = say(page, "What is os.path?")
    expect(answer.locator(".actions")).to_be_visible()
    text = text_of(answer)
    links = {link.inner_text(): link.get_attribute("href") for link in page.locator("nav a").all()}
    assert links == {"Chat": "./", "Dashboard": "dashboard", "API docs": "docs"}
    page.get_by_role("link", name="Dashboard").click()
    expect(page).to_have_title(re.compile("cluster|[Dd]ashboard"))
    page.goto(page.url.removesuffix("dashboard"))
    expect(page.locator(".question")).to_have_text("What is os.path?")
    assert text_of(page.locator(".answer")) == text
    expect(page.locator("#max_tokens")).to_have_value("5")
    expect(page.locator("#welcome")).to_be_hidden()
    page.click("#new")
    page.reload()
    expect(page.locator(".turn")).to_have_count(0)
    page.fill("#max_tokens", "1900")
    page.route(CHAT, adding(ignore_eos=True))
    answer = say(page, "Tell me everything.")
    expect(answer.locator("> .markdown")).to_have_text(re.compile(".{40}", re.DOTALL))
    page.reload()
    ended(answer, "stopped")
    expect(answer.locator(".note")).to_have_text(re.compile(r"^Stopped after \d+ tokens\. Continue$"))
