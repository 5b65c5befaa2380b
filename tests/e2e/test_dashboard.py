"""The dashboard in a real browser, against a real cluster: what it shows, at every size, for everybody."""

from __future__ import annotations

import re
from collections.abc import Iterator
from contextlib import suppress
from itertools import pairwise
from typing import Any

import httpx
import pytest
from playwright.sync_api import Browser, Error, Page, Route, expect

from baton_proto.v1 import baton_pb2 as pb
from tests.e2e.browsing import browsing
from tests.e2e.calls import answer, ask, draw_prompt, greedy
from tests.e2e.dashboard_pages import DESKTOP, PHONE, TABLET, visiting
from tests.e2e.processes import Cluster, until

NUMBER = r"[\d.]+ m?s"


@pytest.fixture(scope="module")
def finished(cluster: Cluster) -> str:
    """A request of 96 prompt tokens and 16 new ones, which is over and in the router's last sample."""
    request: pb.GenerateRequest = ask(draw_prompt(96, seed=41), greedy(16))
    request.request_id = "drawn/by the dashboard"
    answer(cluster.stub.Generate(request))
    cluster.wait_until_idle()
    until(lambda: history(cluster)["latencies"]["num_finished"] > 0, 10.0, "a sample with the request")
    return request.request_id


@pytest.fixture(scope="module")
def browser() -> Iterator[Browser]:
    with browsing() as running:
        yield running


@pytest.fixture(scope="module")
def page(cluster: Cluster, finished: str, browser: Browser) -> Iterator[Page]:
    with visiting(browser, cluster) as visited:
        yield visited


def history(cluster: Cluster) -> Any:
    return httpx.get(f"http://{cluster.http_address}/debug/history").json()


def test_latency_percentiles_come_first(page: Page, cluster: Cluster) -> None:
    expect(page.locator("#state")).to_have_text("ready")
    first = page.locator("main > *").first
    expect(first).to_have_attribute("id", "latencies")
    told = {one["metric"]: one for one in history(cluster)["latencies"]["percentiles"]}
    cards = first.locator("article")
    assert cards.locator("h3").all_inner_texts() == [
        "TTFT time to first token",
        "TPOT mean time per output token",
        "ITL inter-token latency",
        "E2E whole request",
    ]
    for metric in ("ttft", "tpot", "itl", "e2e"):
        card = first.locator(f"[data-metric={metric}]")
        assert card.locator("dt").all_inner_texts() == ["p50", "p90", "p99"]
        shown = [seconds(text) for text in card.locator("dd").all_inner_texts()]
        assert shown == pytest.approx([told[metric][name] for name in ("p50_s", "p90_s", "p99_s")], rel=0.05)
        expect(card.locator(".verdict")).to_contain_text("no SLO")
    expect(page.locator("#failures")).to_contain_text("refused or failed")
    expect(page.locator("#window")).to_contain_text(re.compile(r"last 5 min · \d+ requests? finished"))
    expect(page.locator("#latency-rule")).to_contain_text("--slo")


def test_quantities_are_told_apart_near_a_limit(page: Page) -> None:
    shown = page.evaluate(
        """async () => {
            const { age, time } = await import("/pages/dashboard.dom.js");
            const { verdict } = await import("/pages/dashboard.latencies.js");
            const slo = { count: 96, slo_s: 150, share_within_slo: 95 / 96, is_slo_attained: false };
            return [...[119.996, 149, 180, 1150].map(time), age(149), verdict(slo)[1]];
        }"""
    )
    times = ["120 s", "149 s", "3 min", "1,150 s"]
    assert shown == [*times, "2 min", "✗ SLO missed: 98.9 % within 150 s"]


def seconds(text: str) -> float:
    number, unit = text.split()
    return float(number) / {"s": 1, "ms": 1000}[unit]


def test_a_page_that_opens_later_shows_the_minutes_before(
    cluster: Cluster, page: Page, browser: Browser
) -> None:
    with visiting(browser, cluster) as later:
        later.locator("#figures polyline").first.wait_for()
        known = history(cluster)["samples"]
        assert len(known) >= 3
        running = later.locator("[data-figure=running]")
        points = (running.locator("polyline").get_attribute("points") or "").split()
        assert len(known) - 3 <= len(points) <= len(known)
        tokens = later.locator("[data-figure=tokens]")
        peak = max(sample["generated_tokens_per_s"] for sample in known)
        assert peak > 0
        told = re.search(r"peak ([\d.,]+)", tokens.locator(".foot").inner_text())
        assert told is not None
        assert float(told[1].replace(",", "")) == pytest.approx(peak, rel=0.01)
        assert re.match(r"Output tokens over the last 10 min: peak", name_of(tokens.locator("svg")))
        assert later.locator("#figures h3").all_inner_texts() == [
            *("Requests", "Output tokens", "Prompt tokens", "TTFT p90"),
            *("Queue at the router", "Running", "KV blocks in use", "KV transfers"),
        ]
        legend = later.locator("[data-figure=requests] .legend li").all_inner_texts()
        assert [text.split()[0] for text in legend] == ["finished", "failed"]
        legend = later.locator("[data-figure=kv] .legend li").all_inner_texts()
        assert [text.split()[0] for text in legend] == ["prefill", "decode"]
        tokens.locator("svg").hover()
        expect(tokens.locator(".foot")).to_contain_text(re.compile(r"(s|min) ago"))


def name_of(locator: Any) -> str:
    return str(locator.get_attribute("aria-label"))


def test_it_shows_workers_and_no_controls_where_there_are_none(page: Page) -> None:
    rows = page.locator("#workers tbody tr")
    expect(rows).to_have_count(2)
    assert [row.locator("th, td").all_inner_texts()[1:3] for row in rows.all()] == [
        ["decode", "ready"],
        ["prefill", "ready"],
    ]
    assert [row.get_attribute("data-worker") for row in rows.all()] == ["decode-1", "prefill-0"]
    expect(page.locator("#workers button, #workers select")).to_have_count(0)
    expect(page.locator("#placements")).to_contain_text("split")


def test_a_router_that_is_back_with_other_settings_is_shown_as_it_is(page: Page) -> None:
    absent = {"worker_id": "decode-9", "role": "decode", "state": "lost", "retry_in_s": None}
    absent |= {"end": "ended with status 1", "reason": "/data/" + "a-folder-of-models/" * 9}

    def change(route: Route) -> None:
        told = route.fetch().json()
        models = [f"adapter-{number}" for number in range(200)]
        changed = told | {"has_operator_routes": True, "absent_workers": [absent], "models": models}
        with suppress(Error):  # the page has given up this request, and asks again
            route.fulfill(json=changed)

    page.route("**/debug/cluster", change)
    rows = page.locator("#workers tbody tr")
    expect(rows).to_have_count(3)
    expect(page.locator("#workers thead th")).to_have_count(11)
    expect(rows.first.locator("th, td")).to_have_count(11)
    expect(rows.last).to_contain_text("ended with status 1: /data/")
    expect(page.locator("#server")).to_contain_text("adapter-0 and 199 more")
    assert page.evaluate("document.documentElement.scrollWidth") <= DESKTOP["width"]
    page.unroute("**/debug/cluster")
    expect(rows).to_have_count(2)
    expect(rows.first.locator("th, td")).to_have_count(10)


def test_requests_are_bars_with_their_figures_and_the_rule_of_outliers(page: Page, finished: str) -> None:
    request = page.locator(".request", has_text=finished)
    expect(request).to_contain_text("prefill-0 → decode-1")
    expect(request).to_contain_text("96 → 16 tokens")
    expect(request).to_contain_text(re.compile(f"TTFT {NUMBER} · TPOT {NUMBER}"))
    expect(request.locator(".lane")).to_have_count(3)
    boxes = [request.locator(name).bounding_box() for name in (".lanes", ".lanes > .first", "i.decode")]
    whole, first, decode = [box for box in boxes if box is not None]
    assert whole["x"] < first["x"] < decode["x"] + decode["width"] <= whole["x"] + whole["width"] + 1
    assert decode["width"] > 2
    rule = page.locator("#outlier-rule")
    expect(rule).to_contain_text("TTFT, TPOT, E2E over the p99 of the last 5 min, once that has 100 requests")


def test_the_waterfall_has_an_axis_and_durations(page: Page, finished: str) -> None:
    request = page.locator(".request", has_text=finished)
    request.focus()
    page.keyboard.press("Enter")
    details = page.locator("#details")
    expect(details).to_be_visible()
    expect(details).to_contain_text("96 prompt tokens, 0 cached, 16 new")
    assert details.locator(".hop h4").all_inner_texts() == [
        "router",
        "prefill-0",
        "decode-1 · pulls from prefill-0",
    ]
    ticks = details.locator(".axis .tick").all_inner_texts()
    assert ticks[0] == "0 ms"
    assert 2 <= len(ticks) <= 6
    assert all(re.fullmatch(NUMBER, tick) for tick in ticks)
    took = dict(
        zip(
            details.locator(".hop .phase").all_inner_texts(),
            details.locator(".hop .took").all_inner_texts(),
            strict=True,
        )
    )
    assert re.fullmatch(f"{NUMBER} · 96 tokens", took["prefill"])
    assert re.fullmatch(f"{NUMBER} · 15 tokens", took["decode"])
    assert re.fullmatch(rf"{NUMBER} · .*KiB", took["transfer"])
    assert re.fullmatch(f"at {NUMBER}", took["first token"])
    bar = details.locator(".track i.decode").bounding_box()
    track = details.locator(".axis .track").bounding_box()
    assert re.search(f"finished in ({NUMBER})", details.inner_text())
    assert bar is not None
    assert track is not None
    place = details.locator(".axis .tick").nth(1).evaluate("tick => parseFloat(tick.style.left) / 100")
    share = seconds(took["decode"].split(" · ")[0]) * place / seconds(ticks[1])
    assert bar["width"] / track["width"] == pytest.approx(share, abs=0.02)
    sources = details.locator("table").first.locator("tr", has_text="decode-1").inner_text().split("\t")
    assert sources == ["decode-1", "0", "0", "96", "0"], "all of it pulled"
    expect(details).to_contain_text("▸ prefill-0 → decode-1")
    page.keyboard.press("Escape")
    expect(details).to_be_hidden()
    expect(request).to_be_focused()


@pytest.mark.parametrize("viewport", [PHONE, TABLET, DESKTOP], ids=["phone", "tablet", "desktop"])
def test_everything_fits_at_every_size_in_light_and_dark(
    cluster: Cluster, browser: Browser, finished: str, viewport: dict[str, int]
) -> None:
    with visiting(browser, cluster, viewport=viewport) as page:
        page.locator(".request").first.wait_for()
        assert page.evaluate("document.documentElement.scrollWidth") <= viewport["width"]
        wide = page.locator("main .panel").evaluate_all(
            "(all) => all.filter((one) => one.scrollWidth > one.clientWidth + 1).map((one) => one.innerText)"
        )
        assert wide == []
        columns = page.locator("#latencies article").evaluate_all(
            "(nodes) => new Set(nodes.map((node) => node.getBoundingClientRect().x)).size"
        )
        assert columns == {390: 1, 768: 2, 1440: 4}[viewport["width"]]
        assert lightness(page) > 200
        page.emulate_media(color_scheme="dark")
        assert lightness(page) < 40
        page.locator(".request").first.click()
        expect(page.locator("#details")).to_be_visible()
        assert page.evaluate("document.documentElement.scrollWidth") <= viewport["width"]
        box = page.locator("#details .waterfall").bounding_box()
        assert box is not None
        assert 0 <= box["x"] < box["x"] + box["width"] <= viewport["width"]
        cut = page.locator("#details .took").evaluate_all(
            "(all, width) => all.filter((one) => one.getBoundingClientRect().right > width).length",
            viewport["width"],
        )
        assert cut == 0


def lightness(page: Page) -> float:
    """The mean of the background's three channels, at most 255."""
    background = page.evaluate("getComputedStyle(document.body).backgroundColor")
    return sum(map(int, re.findall(r"\d+", background)[:3])) / 3


def test_it_can_be_read_and_used_without_eyes_or_a_mouse(
    page: Page, cluster: Cluster, browser: Browser
) -> None:
    levels = page.locator("h1, h2, h3").evaluate_all(
        "(nodes) => nodes.filter((node) => node.checkVisibility()).map((node) => Number(node.tagName[1]))"
    )
    assert levels[0] == 1
    assert all(after <= before + 1 for before, after in pairwise(levels))
    workers = page.get_by_role("table", name="Workers")
    expect(workers.get_by_role("columnheader")).to_have_count(10)
    expect(workers.get_by_role("rowheader")).to_have_count(2)
    assert all(name_of(image) for image in page.get_by_role("img").all())
    for name, path in (("Chat", "/"), ("Dashboard", "/dashboard"), ("API docs", "/docs")):
        link = page.get_by_role("navigation").get_by_role("link", name=name)
        assert link.evaluate("(node) => new URL(node.href).pathname") == path
    with visiting(browser, cluster, viewport=PHONE, reduced_motion="reduce") as phone:
        phone.locator(".request").first.wait_for()
        table = phone.get_by_role("table", name="Workers")
        expect(table.get_by_role("rowheader")).to_have_count(2)
        expect(table.get_by_role("cell")).to_have_count(18)
        phone.keyboard.press("Tab")
        expect(phone.locator(".skip")).to_be_focused()
        phone.wait_for_function(
            "() => [...document.querySelectorAll('*')]"
            ".every((node) => getComputedStyle(node).transitionDuration === '0s')"
        )


def test_it_outlives_its_router(page: Page) -> None:
    state = page.locator("#state")
    page.route("**/debug/**", lambda route: route.abort())
    expect(state).to_have_text("no answer from the router")
    expect(page.locator("main")).to_have_class("stale")
    page.unroute("**/debug/**")
    expect(state).to_have_text("ready")
    expect(page.locator("main")).to_have_class("")


def test_text_from_outside_stays_text(cluster: Cluster, page: Page) -> None:
    request: pb.GenerateRequest = ask(draw_prompt(40, seed=42), greedy(2))
    request.request_id = "<img src=x onerror=alert(1)>"
    answer(cluster.stub.Generate(request))
    row = page.locator(".request", has_text=request.request_id)
    row.click()
    expect(page.get_by_role("heading", name=request.request_id)).to_be_visible()
    expect(page.locator("img")).to_have_count(0)
    page.get_by_role("button", name="Close").click()
