"""Flags of which requests a router takes, and which wait."""

from __future__ import annotations

import argparse
from typing import TYPE_CHECKING, Final

from baton.commands.flags import Flag, Form

if TYPE_CHECKING:
    from baton_router.admission_settings import AdmissionSettings

_MAX_INT: Final = 2**31 - 1
_COUNT: Final = r"0*[1-9][0-9]{0,11}"
_SECONDS: Final = r"(?=[0-9.]*[1-9])[0-9]{1,9}(\.[0-9]{1,9})?"
_SLO: Final = Form(
    rf"ttft={_SECONDS}(,tpot={_SECONDS})?|tpot={_SECONDS}",
    "ttft=SECONDS, tpot=SECONDS or ttft=SECONDS,tpot=SECONDS, each over 0",
)
_RATE: Final = Form(
    rf"requests={_COUNT}(,tokens={_COUNT})?|tokens={_COUNT}",
    "requests=N, tokens=N or requests=N,tokens=N, each over 0",
)

ADMISSION_FLAGS: Final = (
    Flag(
        "--slo",
        str,
        None,
        "seconds to the first token, and a token after it, of requests that do not say themselves: what "
        "cannot be that fast is refused at once",
        form=_SLO,
        metavar="ttft=S,tpot=S",
    ),
    Flag(
        "--rate-limit",
        str,
        None,
        "requests and tokens of each key in a minute",
        form=_RATE,
        metavar="requests=N,tokens=N",
    ),
    Flag("--max-queued-requests", int, 1024, "requests that wait for a worker", low=0, high=_MAX_INT),
    Flag("--queue-timeout", float, 30.0, "seconds they may wait", low=0, high=10**9, is_low_open=True),
    Flag(
        "--priority-aging",
        float,
        10.0,
        "seconds of waiting that count as one step of priority",
        low=0,
        high=10**9,
        is_low_open=True,
    ),
)


def admission_settings(args: argparse.Namespace) -> AdmissionSettings:
    """What these flags say."""
    from baton_core.requests.request_context import Slo
    from baton_core.routing.rate_limits import RateLimit
    from baton_router.admission_settings import AdmissionSettings

    slo, rates = _read(args.slo), _read(args.rate_limit)
    return AdmissionSettings(
        slo=Slo(ttft_s=slo.get("ttft"), tpot_s=slo.get("tpot")),
        rate_limit=RateLimit(requests=rates.get("requests"), tokens=rates.get("tokens")),
        max_queued_requests=args.max_queued_requests,
        queue_timeout_s=args.queue_timeout,
        priority_aging_s=args.priority_aging,
    )


def _read(pairs: str | None) -> dict[str, float]:
    split = [pair.partition("=") for pair in pairs.split(",")] if pairs else []
    return {name: float(value) for name, _, value in split}
