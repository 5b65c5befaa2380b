"""The pages of a router with keys, an SLO and operator routes: who sees them, what an operator does."""

from __future__ import annotations

import os
import re
import signal
import threading
from collections.abc import Iterator

import httpx
import pytest
from playwright.sync_api import Browser, FilePayload, Locator, Page, expect

from tests.e2e.browsing import browsing, opened
from tests.e2e.chatting import PHONE, ended, say
from tests.e2e.dashboard_pages import visiting
from tests.e2e.processes import FLOAT32, NO_GRAMMARS, SMALL, Cluster, serving

KEY, SECOND_KEY, CHAT_KEY = "a-key-of-this-router", "a-second-key", "the-key-of-the-chat"
KEYS = tuple(part for key in (KEY, SECOND_KEY, CHAT_KEY) for part in ("--api-key", key))
LIMIT = "requests=2,tokens=100000"
"""Every key has so much in a minute."""
SLO_S = 2.0
REQUEST = b'{"custom_id": "a", "method": "POST", "url": "/v1/completions", "body": {"prompt": "a"}}\n'
PAUSE_S = 3.0
"""A worker is frozen so long: longer than the SLO, shorter than the session's timeout."""


@pytest.fixture(scope="module")
def guarded(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Cluster]:
    """One prefill worker, which cannot be spared, and two decode workers; the model has two names."""
    flags = (
        *("--decode-workers", "2", "--enable-operator-routes", "--slo", f"ttft={SLO_S}"),
        *("--served-model-name", "little", "tiny", "--rate-limit", LIMIT, *KEYS),
        *("--files-directory", str(tmp_path_factory.mktemp("files"))),
    )
    with serving(tmp_path_factory.mktemp("guarded"), *SMALL, *FLOAT32, *NO_GRAMMARS, *flags) as running:
        yield running


@pytest.fixture(scope="module")
def browser() -> Iterator[Browser]:
    with browsing() as running:
        yield running


@pytest.fixture(scope="module")
def page(guarded: Cluster, browser: Browser) -> Iterator[Page]:
    """The dashboard as an operator has it open, one for all tests."""
    with visiting(browser, guarded) as visited:
        enter(visited, KEY)
        expect(visited.locator("#state")).to_have_text("ready")
        expect(visited.locator("#workers .badge.ready")).to_have_count(3)
        yield visited


def enter(page: Page, key: str) -> None:
    page.get_by_label("API key").fill(key)
    page.keyboard.press("Enter")


def worker(page: Page, name: str) -> Locator:
    return page.locator(f"#workers [data-worker={name}]")


def complete(cluster: Cluster, prompt: str, key: str = KEY) -> None:
    body, headers = {"prompt": prompt, "max_tokens": 4}, {"authorization": f"Bearer {key}"}
    url = f"http://{cluster.http_address}/v1/completions"
    assert httpx.post(url, json=body, headers=headers, timeout=30).status_code == 200


def test_nothing_is_told_without_a_key_and_it_is_asked_for_once(guarded: Cluster, browser: Browser) -> None:
    with visiting(browser, guarded) as page:
        statuses: list[int] = []
        page.on("response", lambda response: statuses.append(response.status))
        state, form = page.locator("#state"), page.locator("#ask")
        expect(state).to_have_text("needs an API key")
        expect(page.get_by_label("API key")).to_be_focused()
        expect(page.locator("main")).to_be_hidden()
        assert "prefill-0" not in page.content()
        enter(page, "ключ")
        expect(page.get_by_role("alert")).to_have_text("A key has visible ASCII characters only.")
        enter(page, "another-key")
        expect(page.get_by_role("alert")).to_have_text("That key is not one of this router's.")
        expect(page.locator("main")).to_be_hidden()
        enter(page, KEY)
        expect(state).to_have_text("ready")
        expect(form).to_be_hidden()
        expect(page.locator("#requests .none")).to_contain_text("No request yet")
        expect(page.locator("[data-metric=ttft] .verdict")).to_have_text("SLO 2.00 s: nothing in this window")
        statuses.clear()
        page.reload()
        expect(state).to_have_text("ready")
        expect(form).to_be_hidden()
        assert 401 not in statuses
        page.get_by_role("button", name="Forget the key").click()
        expect(state).to_have_text("needs an API key")
        expect(form).to_be_visible()
        assert "prefill-0" not in page.content()


def test_a_worker_drains_when_the_operator_has_confirmed_it(page: Page) -> None:
    row, dialog = worker(page, "decode-1"), page.locator("#confirm")
    row.get_by_role("button", name="Drain decode-1").click()
    expect(dialog).to_contain_text("Drain decode-1?")
    expect(dialog.get_by_role("button", name="Cancel")).to_be_focused()
    page.keyboard.press("Escape")
    expect(dialog).to_be_hidden()
    row.get_by_role("button", name="Drain decode-1").click()
    dialog.get_by_role("button", name="Cancel").click()
    expect(row.get_by_role("status")).to_have_text("")
    expect(row).to_contain_text("ready")
    row.get_by_role("button", name="Drain decode-1").click()
    dialog.get_by_role("button", name="Drain").click()
    expect(row.get_by_role("status")).to_have_text("✓ It takes no new requests, and has none left.")
    expect(row.locator(".badge.draining")).to_have_text("draining")
    expect(worker(page, "decode-2").locator(".badge.ready")).to_have_text("ready")
    row.get_by_role("button", name="Undrain decode-1").click()
    expect(row.get_by_role("status")).to_have_text("✓ It takes requests again.")
    expect(row.locator(".badge.ready")).to_have_text("ready")


def test_a_refusal_is_told_in_words_beside_the_worker(page: Page) -> None:
    row = worker(page, "prefill-0")
    row.get_by_role("button", name="Drain prefill-0").click()
    page.locator("#confirm").get_by_role("button", name="Drain").click()
    result = row.get_by_role("status")
    expect(result).to_contain_text(
        "✗ Not drained: prefill-0 is the last worker that takes requests and prefills."
    )
    expect(result).to_contain_text("baton admin with --force")
    for width in (1281, 1439, 1440):
        page.set_viewport_size({"width": width, "height": 900})
        panel = page.locator("#workers")
        assert panel.evaluate("(node) => node.scrollWidth - node.clientWidth") == 0, width
    expect(row).to_contain_text("ready")
    row.get_by_label("Role of prefill-0", exact=True).select_option("decode")
    row.get_by_role("button", name="Set role of prefill-0").click()
    expect(result).to_contain_text("✗ Not changed: prefill-0 is the last worker")
    page.route("**/drain?**", lambda route: route.abort())
    row.get_by_role("button", name="Drain prefill-0").click()
    page.locator("#confirm").get_by_role("button", name="Drain").click()
    expect(result).to_have_text("✗ It is not known whether it is drained: no answer from the router.")
    page.unroute("**/drain?**")


def test_a_role_is_set_from_the_keyboard(page: Page) -> None:
    row = worker(page, "decode-2")
    roles = row.get_by_label("Role of decode-2", exact=True)
    roles.focus()
    page.keyboard.press("m")
    page.wait_for_timeout(2500)  # in which the page asks the router twice
    expect(roles).to_be_focused()
    expect(roles).to_have_value("mixed")
    page.keyboard.press("Tab")
    page.keyboard.press("Enter")
    expect(row.get_by_role("status")).to_have_text("✓ It prefers mixed from now on.")
    expect(row.locator(".badge.role")).to_have_text("mixed (set)")
    roles.select_option("decode")
    row.get_by_role("button", name="Set role of decode-2").click()
    expect(row.locator(".badge.role")).to_have_text("decode (set)")


def test_the_slo_is_attained_then_missed_and_the_late_request_is_marked(page: Page, guarded: Cluster) -> None:
    for number, key in enumerate((KEY, KEY, SECOND_KEY)):
        complete(guarded, f"The os module, part {number}", key)
    verdict = page.locator("[data-metric=ttft] .verdict")
    expect(verdict).to_have_text("✓ SLO attained: 100 % within 2.00 s")
    good = verdict.evaluate("(node) => getComputedStyle(node).color")
    expect(page.locator(".mark")).to_have_count(0)
    (prefill,) = guarded.pids_of("baton prefill-worker")
    os.kill(prefill, signal.SIGSTOP)
    waking = threading.Timer(PAUSE_S, os.kill, (prefill, signal.SIGCONT))
    waking.start()
    try:
        complete(guarded, "A prompt that nobody has seen before", SECOND_KEY)
    finally:
        waking.join()
    expect(verdict).to_have_text("✗ SLO missed: 75 % within 2.00 s")
    assert verdict.evaluate("(node) => getComputedStyle(node).color") != good
    expect(page.locator("[data-metric=ttft] dd.over")).to_have_count(2)
    late = page.locator(".request", has=page.locator(".mark"))
    expect(late).to_have_count(1)
    expect(late.locator(".mark")).to_contain_text("▲ slow TTFT: ")
    expect(late.locator(".mark")).to_contain_text("SLO 2.00 s")
    expect(page.locator("#outlier-rule")).to_contain_text("TTFT over its SLO of 2.00 s")
    expect(page.locator("[data-figure=ttft] .limit")).to_have_count(1)


def test_the_chat_page_asks_for_a_key_and_keeps_it_for_the_tab(browser: Browser, guarded: Cluster) -> None:
    with opened(browser, f"http://{guarded.http_address}/", viewport=PHONE) as page:
        problem = page.locator("#key-error")
        expect(problem).to_have_text("The server asks for an API key.")
        expect(page.locator("#key")).to_be_focused()
        page.keyboard.type("ключ")
        page.keyboard.press("Tab")
        expect(problem).to_have_text("A key has visible ASCII characters only.")
        page.fill("#key", "wrong")
        page.keyboard.press("Tab")
        expect(problem).to_have_text("The server does not know this key.")
        page.fill("#key", CHAT_KEY)
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
        page.reload()
        expect(page.locator("#model-name")).to_have_text("tiny")
        expect(page.locator("#model")).to_have_value("tiny")
        for _ in range(2):
            answer = say(page, "Hello")
            expect(answer.locator(".timing summary")).to_contain_text("prefill-0 → decode-")
        refused = say(page, "Hello")
        ended(refused, "failed")
        problem = refused.locator(".error")
        expect(problem).to_contain_text(re.compile(r"The server is busy; try again in \d+ s\."))


def test_the_page_of_the_api_needs_no_key_and_asks_for_the_one_of_the_description(
    browser: Browser, guarded: Cluster
) -> None:
    with opened(browser, f"http://{guarded.http_address}/docs") as page:
        expect(page.locator("#operations")).to_have_text("This server wants an API key: enter it above.")
        assert page.locator("details").count() == 0
        page.fill("#key", "ключ")
        page.press("#key", "Enter")
        expect(page.locator("#operations")).to_have_text("A key has visible ASCII characters only.")
        page.fill("#key", "wrong")
        page.press("#key", "Enter")
        expect(page.locator("#operations")).to_have_text("This server does not know the key above.")
        page.fill("#key", CHAT_KEY)
        page.press("#key", "Enter")
        page.locator("#listModels > summary").click()
        page.locator("#listModels").get_by_role("button", name="Send").click()
        expect(page.locator("#listModels .answer .ok")).to_contain_text("200 OK")
        expect(page.locator("#listModels .curl")).to_contain_text("Bearer $BATON_API_KEY")
        assert CHAT_KEY not in page.content()
        upload = page.locator("#createFile")
        upload.locator("summary").first.click()
        file: FilePayload = {"name": "a.jsonl", "mimeType": "application/jsonl", "buffer": REQUEST}
        upload.locator("input[type=file]").set_input_files(file)
        expect(upload.locator(".curl")).to_contain_text("-F 'file=@a.jsonl' -F 'purpose=batch'")
        upload.get_by_role("button", name="Send").click()
        expect(upload.locator(".answer pre")).to_contain_text('"filename": "a.jsonl"')
        expect(upload.locator(".field", has_text="expires_after[seconds]")).to_contain_text("from 3600")
