"""Fleets are asked of ratios, loads and losses, and of groups of workers."""

from __future__ import annotations

import pytest
from msgspec.structs import replace

from baton_core.errors import InvalidConfigError
from baton_core.requests.request_context import Slo
from baton_simulator.capacity.questions import LOADS, best
from baton_simulator.capacity.worker_mix import lost_workers, parse_mix, racks, ratios
from tests.unit.simulator.capacity_fleets import make_plan, make_question, make_requests

pytestmark = pytest.mark.slow


def test_long_prompts_with_short_answers_want_prefill_workers() -> None:
    requests = make_requests(12, prompt=2000, output=2, every_ms=900)
    slo = Slo(ttft_s=2.5)
    rows = make_question(make_plan("2P:2D", link_bytes_per_s=1e9), requests, slo).ratio(9)
    assert list(rows) == ["1P:3D", "2P:2D", "3P:1D", "4M"]
    assert best({name: row for name, row in rows.items() if name != "4M"}) == "3P:1D"
    assert rows["3P:1D"].attainment == 1.0 > rows["1P:3D"].attainment


def test_short_prompts_with_long_answers_want_decode_workers() -> None:
    requests = make_requests(10, prompt=64, output=50, every_ms=150)
    plan = make_plan("2P:2D", max_num_seqs=2, link_bytes_per_s=1e9)
    rows = make_question(plan, requests, Slo(tpot_s=0.02)).ratio(9)
    assert best({name: row for name, row in rows.items() if name != "4M"}) == "1P:3D"
    assert rows["1P:3D"].attainment > rows["3P:1D"].attainment


def test_losing_workers_costs_goodput_from_then_on() -> None:
    requests = make_requests(24, prompt=1000, output=4, every_ms=450)
    question = make_question(make_plan("4P:2D", link_bytes_per_s=1e9), requests, Slo(ttft_s=1.5))
    rows = question.loss("3P", ["P0", "P1", "P2"], at_s=4.0)
    assert list(rows) == [
        "none lost",
        "none lost, from then on",
        "3P lost at 4 s",
        "3P lost at 4 s, from then on",
    ]
    before, after = rows["none lost, from then on"], rows["3P lost at 4 s, from then on"]
    assert before.attainment == 1.0
    assert after.goodput_per_s < before.goodput_per_s / 2
    assert before.num_requests == after.num_requests == 15


def test_faster_arrivals_are_served_later() -> None:
    requests = make_requests(8, prompt=500, output=2, every_ms=1000)
    rows = make_question(make_plan("1P:1D", link_bytes_per_s=1e9), requests, Slo(ttft_s=1.0)).load()
    assert [name.partition("x")[0] for name in rows] == [format(load, "g") for load in LOADS]
    ttfts = [round(row.ttft.mean_s, 6) for row in rows.values()]
    assert ttfts == sorted(ttfts)
    assert ttfts[-1] > 2 * ttfts[0]


def test_one_request_that_is_refused_at_once_has_no_rate() -> None:
    plan = make_plan("2M")
    rows = make_question(plan, make_requests(1, prompt=300_000), Slo()).load()
    assert list(rows)[:2] == ["0.25x", "0.5x"]
    assert {(row.goodput_per_s, row.tokens_per_s, row.duration_s) for row in rows.values()} == {
        (0.0, 0.0, 0.0)
    }
    assert best(rows) is None


def test_failures_are_counted_by_kind_with_an_example_the_most_frequent_first() -> None:
    requests = [
        replace(one, input_length=one.input_length + number)
        for number, one in enumerate(make_requests(3, prompt=300_000))
    ]
    (row,) = make_question(make_plan("2M"), requests, Slo()).goodput().values()
    ((error, count),) = row.errors.items()
    assert (row.num_failed, count) == (3, 3)
    assert error.startswith("the request needs 300005 tokens; ")


def test_ratios_are_spread_over_all_divisions() -> None:
    assert [str(mix) for mix in ratios(3, 9)] == ["1P:2D", "2P:1D", "3M"]
    assert [str(mix) for mix in ratios(128, 3)] == ["1P:127D", "64P:64D", "127P:1D", "128M"]
    assert [str(mix) for mix in ratios(1, 9)] == ["1M"]


def test_racks_have_their_part_of_every_role() -> None:
    groups = racks(parse_mix("4P:2D"), 2)
    assert groups == {"rack-0": ["P0", "P2", "D0"], "rack-1": ["P1", "P3", "D1"]}


@pytest.mark.parametrize(
    ("text", "names"),
    [
        ("rack-1", ["P1", "P3", "D1"]),
        ("50%", ["P0", "P1", "D0"]),
        ("1%", ["P0", "D0"]),
        ("3P:1D", ["P0", "P1", "P2", "D0"]),
        ("2D", ["D0", "D1"]),
    ],
)
def test_workers_are_lost_by_rack_by_share_or_by_count(text: str, names: list[str]) -> None:
    mix = parse_mix("4P:2D")
    assert lost_workers(text, mix, racks(mix, 2)) == names


def test_no_rack_is_empty() -> None:
    mix = parse_mix("1P:2D")
    assert list(racks(mix, 8)) == ["rack-0", "rack-1", "rack-2"]
    with pytest.raises(InvalidConfigError, match="lose is 'rack-3'; allowed: rack-0 to rack-2"):
        lost_workers("rack-3", mix, racks(mix, 8))


@pytest.mark.parametrize("text", ["rack-9", "0%", "101%", "5P", "1M", "P", ""])
def test_workers_that_are_not_there_cannot_be_lost(text: str) -> None:
    mix = parse_mix("4P:2D")
    with pytest.raises(InvalidConfigError, match=f"lose is '{text}'; allowed: "):
        lost_workers(text, mix, racks(mix, 2))


@pytest.mark.parametrize(
    "text", ["", "4", "4X", "P:D", "0P:0D", "4P", "4D", "4P4D", "1P:1P", "999P:2D", "-1P:2D"]
)
def test_a_fleet_that_cannot_be_is_refused(text: str) -> None:
    with pytest.raises(InvalidConfigError, match=r"workers is '.*'; allowed: "):
        parse_mix(text)


def test_roles_may_come_in_any_order() -> None:
    assert str(parse_mix("3D:2M:1P")) == "1P:3D:2M"
