"""The page of the API's description in a real browser, against a real cluster."""

from __future__ import annotations

from collections.abc import Iterator
from urllib.parse import urlsplit

import pytest
from playwright.sync_api import Browser, Page, expect

from tests.e2e.browsing import WITHIN_MS, browsing
from tests.e2e.processes import Cluster


@pytest.fixture(scope="module")
def browser() -> Iterator[Browser]:
    with browsing() as running:
        yield running


@pytest.fixture(scope="module")
def page(browser: Browser, cluster: Cluster) -> Iterator[Page]:
    """The page, one for all tests, whose script raises nothing and which asks no other server."""
    page = browser.new_page()
    page.set_default_timeout(WITHIN_MS)
    problems: list[str] = []
    hosts: set[str] = set()
    page.on("pageerror", lambda error: problems.append(str(error)))
    page.on("request", lambda request: hosts.add(urlsplit(request.url).netloc))
    page.goto(f"http://{cluster.http_address}/docs")
    yield page
    page.close()
    assert (problems, hosts) == ([], {cluster.http_address})


def test_routes_stand_under_their_tags_and_fields_have_types_and_descriptions(page: Page) -> None:
    expect(page.locator("h2")).to_have_text(
        [
            *("Chat", "Completions", "Messages", "Responses", "Pooling", "Tokens", "Models", "Server"),
            *("Debug", "Pages"),
        ]
    )
    operation = page.locator("#createChatCompletion")
    operation.locator("summary").first.click()
    messages = operation.locator(".field").filter(has=page.locator("code", has_text="messages")).first
    expect(messages).to_contain_text("ChatMessage[] required (at least 1)")
    expect(messages).to_contain_text("The conversation so far.")
    messages.locator("summary", has_text="ChatMessage").click()
    expect(messages).to_contain_text("role string required (from length 1")
    effort = operation.locator(".field").filter(has=page.get_by_text("reasoning_effort", exact=True))
    expect(effort).to_contain_text('"high" | "low" | "max"')
    temperature = operation.locator(".field").filter(has=page.get_by_text("temperature", exact=True))
    expect(temperature).to_contain_text("number | null")
    expect(temperature).to_contain_text("Default: the model's, else 1.")


def test_a_request_is_sent_and_its_answer_is_shown(page: Page, cluster: Cluster) -> None:
    page.goto(f"http://{cluster.http_address}/docs#createCompletion")
    operation = page.locator("#createCompletion")
    operation.locator("textarea").fill('{"prompt": "It\'s", "max_tokens": 3, "stream": true}')
    expect(operation.locator(".curl")).to_contain_text(f"'http://{cluster.http_address}/v1/completions'")
    expect(operation.locator(".curl")).to_contain_text(r'''{"prompt": "It'\''s"''')
    operation.get_by_role("button", name="Send").click()
    expect(operation.locator(".answer .ok")).to_contain_text("200 OK")
    expect(operation.locator(".answer pre")).to_contain_text("data: [DONE]")
    operation.locator("textarea").fill('{"prompt": 7}')
    operation.get_by_role("button", name="Send").click()
    expect(operation.locator(".answer .failed")).to_contain_text("400 Bad Request")
    cluster.wait_until_idle()


def test_parameters_of_path_and_query_are_filled_in(page: Page, cluster: Cluster) -> None:
    page.goto(f"http://{cluster.http_address}/docs#listRequests")
    operation = page.locator("#listRequests")
    operation.locator("input[name=limit]").fill("0")
    operation.get_by_role("button", name="Send").click()
    expect(operation.locator(".answer pre")).to_contain_text("limit is 0; allowed: an integer from 1 to 256")
    page.goto(f"http://{cluster.http_address}/docs#retrieveModel")
    operation = page.locator("#retrieveModel")
    operation.locator("input[name=model]").fill("not/there")
    operation.get_by_role("button", name="Send").click()
    expect(operation.locator(".answer .failed")).to_contain_text("404")
    expect(operation.locator(".curl")).to_contain_text("/v1/models/not/there'")


def test_a_filter_leaves_what_it_names(page: Page) -> None:
    page.fill("#filter", "tokenize")
    expect(page.locator("details.operation:not([hidden])")).to_have_count(2)
    expect(page.locator("h2:visible")).to_have_text(["Tokens"])
    expect(page.locator("#contents a:visible")).to_have_text(["/tokenize", "/detokenize"])
    expect(page.locator("#contents b:visible")).to_have_text(["Tokens"])
    page.evaluate("location.hash = '#%E0'")  # names no operation


def test_operations_fit_a_phone(page: Page) -> None:
    page.set_viewport_size({"width": 360, "height": 740})
    page.fill("#filter", "")
    operations = "document.querySelectorAll('details.operation')"
    page.evaluate(f"{operations}.forEach((one) => {{ one.open = true; }})")
    page.wait_for_function(f"[...{operations}].every((one) => one.dataset.filled)")
    assert page.evaluate("document.documentElement.scrollWidth") <= 360
