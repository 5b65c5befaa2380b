"""The dashboard in a real browser, against a real cluster."""

from __future__ import annotations

from collections.abc import Iterator
from urllib.parse import urlsplit

import pytest
from playwright.sync_api import Page, Route, expect, sync_playwright

from baton_proto.v1 import baton_pb2 as pb
from tests.e2e.calls import answer, ask, draw_prompt, greedy
from tests.e2e.processes import Cluster

WITHIN_MS = 10_000


@pytest.fixture(scope="module")
def finished(cluster: Cluster) -> str:
    """A request of 96 prompt tokens and 16 new ones, which is over."""
    request: pb.GenerateRequest = ask(draw_prompt(96, seed=41), greedy(16))
    request.request_id = "drawn/by the dashboard"
    answer(cluster.stub.Generate(request))
    cluster.wait_until_idle()
    return request.request_id


@pytest.fixture(scope="module")
def page(cluster: Cluster, finished: str) -> Iterator[Page]:
    """The dashboard, whose script raises nothing and which asks no other server."""
    with sync_playwright() as playwright:
        arguments = ["--no-sandbox", "--disable-gpu"]
        browser = playwright.chromium.launch(executable_path="/usr/bin/chromium", args=arguments)
        page = browser.new_page()
        page.set_default_timeout(WITHIN_MS)
        problems: list[str] = []
        hosts: set[str] = set()
        page.on("pageerror", lambda error: problems.append(str(error)))
        page.on("request", lambda request: hosts.add(urlsplit(request.url).netloc))
        page.goto(f"http://{cluster.http_address}/dashboard")
        yield page
        browser.close()
        assert problems == []
        assert hosts <= {cluster.http_address, ""}


def test_it_shows_workers_figures_and_requests(page: Page, finished: str) -> None:
    expect(page.locator("#state")).to_have_text("ready")
    rows = page.locator("#workers tbody tr")
    expect(rows).to_have_count(2)
    assert [row.split("\t")[:3] for row in rows.all_inner_texts()] == [
        ["decode-1", "decode", "ready"],
        ["prefill-0", "prefill", "ready"],
    ]
    expect(page.locator(".figure")).to_have_count(8)
    expect(page.locator("#placements")).to_contain_text("split")
    request = page.locator(".request", has_text=finished)
    expect(request).to_contain_text("prefill-0 → decode-1")
    expect(request).to_contain_text("96 → 16")
    expect(request.locator(".lane")).to_have_count(3)
    boxes = [request.locator(name).bounding_box() for name in (".lanes", ".lanes > .first", ".decode")]
    whole, first, decode = [box for box in boxes if box is not None]
    assert whole["x"] < first["x"] < decode["x"] + decode["width"] <= whole["x"] + whole["width"] + 1
    assert decode["width"] > 0.05 * whole["width"]


def test_a_request_is_explained_when_it_is_chosen(page: Page, finished: str) -> None:
    page.locator(".request", has_text=finished).click()
    details = page.locator("#details")
    expect(details).to_be_visible()
    expect(details).to_contain_text("96 prompt tokens, 0 cached, 16 new")
    expect(details.locator(".hop")).to_have_count(3)
    sources = details.locator("tr", has_text="decode-1").first.inner_text().split("\t")
    assert sources == ["decode-1", "0", "0", "96", "0"], "all of it pulled"
    expect(details).to_contain_text("▸ prefill-0 → decode-1")
    details.get_by_role("button", name="Close").click()
    expect(details).to_be_hidden()


def test_it_asks_for_a_key_and_outlives_its_router(page: Page) -> None:
    def guard(route: Route) -> None:
        is_known = route.request.headers.get("authorization") == "Bearer secret"
        route.continue_() if is_known else route.fulfill(status=401, json={"error": {"message": "no"}})

    state = page.locator("#state")
    page.route("**/debug/**", guard)
    expect(state).to_have_text("needs an API key")
    page.fill("#key", "secret")
    page.keyboard.press("Tab")
    expect(state).to_have_text("ready")
    page.unroute("**/debug/**")
    page.route("**/debug/**", lambda route: route.abort())
    expect(state).to_have_text("no answer from the router")
    expect(page.locator("main")).to_have_class("stale")
    page.unroute("**/debug/**")
    expect(state).to_have_text("ready")
    expect(page.locator("main")).to_have_class("")
