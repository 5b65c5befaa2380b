"""A queue knows its own speed, and the requests in it."""

from __future__ import annotations

import pytest

from baton_router.core.admission.drain_rate import DrainRate
from baton_router.core.admission.output_forecast import OutputForecast


def test_a_line_that_nobody_waits_in_has_no_speed() -> None:
    drain = DrainRate()
    drain.note(0.0, 1000, is_busy=False)
    drain.note(100.0, 1000, is_busy=False)
    assert drain.wait_s(100) is None


def test_a_wait_is_told_from_what_left_while_others_waited() -> None:
    drain = DrainRate()
    drain.note(0.0, is_busy=True)
    for tick in range(1, 201):
        drain.note(tick / 10, 50, is_busy=True)
    assert drain.wait_s(1000) == pytest.approx(2.0, rel=0.05)
    for tick in range(201, 601):
        drain.note(tick / 10, 5, is_busy=True)
    assert drain.wait_s(1000) == pytest.approx(20.0, rel=0.2)


def test_idle_times_do_not_count_and_a_line_that_stands_still_says_so() -> None:
    drain = DrainRate()
    drain.note(0.0, is_busy=True)
    drain.note(1.0, 100, is_busy=False)
    drain.note(1000.0, is_busy=True)
    assert drain.wait_s(100) == pytest.approx(1.0, rel=0.06)
    drain.note(1030.0, is_busy=True)
    assert (drain.wait_s(100) or 0.0) > 20


def test_an_output_is_expected_to_be_as_long_as_its_tenants_others() -> None:
    forecast = OutputForecast()
    assert forecast.num_tokens("a") == 256
    for _ in range(100):
        forecast.learn("a", 20)
    assert (forecast.num_tokens("a"), forecast.num_tokens("b")) == (21, 256)
