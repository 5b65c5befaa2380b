from __future__ import annotations

from typing import Any

import pytest

from baton.commands.cli_arguments import parse, router_flags
from baton.commands.limit_arguments import admission_settings
from baton_core.errors import InvalidConfigError
from baton_core.requests.request_context import Slo
from baton_router.core.admission.admission_gate import DispatchLimit
from baton_router.core.admission.rate_limits import RateLimit
from baton_router.process.admission_settings import FAIR, AdmissionSettings

GIVEN = ("--slo=ttft=1.5,tpot=0.05", "--rate-limit=requests=60,tokens=100000", "--max-queued-requests=7")


@pytest.mark.parametrize(
    ("flag", "changes"),
    [
        ("--slo", {"slo": Slo(ttft_s=0.0)}),
        ("--slo", {"slo": Slo(tpot_s=-1.0)}),
        ("--rate-limit", {"rate_limit": RateLimit(tokens=0)}),
        ("--max-queued-requests", {"max_queued_requests": -1}),
        ("--queue-timeout", {"queue_timeout_s": 0.0}),
        ("--priority-aging", {"priority_aging_s": 0.0}),
    ],
)
def test_a_bad_setting_is_refused_by_flag(flag: str, changes: dict[str, Any]) -> None:
    with pytest.raises(InvalidConfigError, match=f"^{flag} is .*; allowed: "):
        AdmissionSettings(**changes)


def test_workers_are_held_back_where_several_keys_share_them() -> None:
    settings = AdmissionSettings()
    assert settings.config([]).dispatch_limit == settings.config(["a"]).dispatch_limit == DispatchLimit()
    assert settings.config(["a", "b"]).dispatch_limit == FAIR


def test_the_flags_say_it_also_by_way_of_serve() -> None:
    wanted = AdmissionSettings(
        slo=Slo(ttft_s=1.5, tpot_s=0.05),
        rate_limit=RateLimit(requests=60, tokens=100_000),
        max_queued_requests=7,
    )
    serve = parse(["serve", *GIVEN])
    assert admission_settings(serve) == wanted
    assert admission_settings(parse(["router", *router_flags(serve)])) == wanted
    assert admission_settings(parse(["router"])) == AdmissionSettings()


@pytest.mark.parametrize("text", ["ttft=0", "ttft=1,ttft=2", "tpot=1,ttft=1", "1", "ttft=1,", "ttft=0.0"])
def test_a_promise_of_another_form_is_refused(text: str) -> None:
    with pytest.raises(InvalidConfigError, match=r"^--slo is .*; allowed: ttft=SECONDS"):
        parse(["router", f"--slo={text}"])
