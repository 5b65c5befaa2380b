"""A request's details as `baton explain` prints them."""

from __future__ import annotations

from baton.commands.explain import MIN_BAR, render
from baton_core.errors import ErrorCode
from baton_core.requests.phases import Phase, PhaseName, TokenSources
from baton_router.core.placement.placement_record import Candidate, Cost, Decision
from baton_router.http.debug.schemas import Hop, RequestDetails


def phase(name: PhaseName, start_s: float, end_s: float, **fields: object) -> Phase:
    return Phase(name=name, start_s=start_s, end_s=end_s, **fields)  # type: ignore[arg-type]


SPLIT = Candidate(
    prefill="p0",
    decode="d0",
    cost=Cost(queue_s=0.001, prefill_s=0.18, gap_s=0.004, affinity_s=0.002, score_s=0.187),
    num_cached_tokens=128,
    num_local_tokens=64,
)
LOCAL = Candidate(prefill="d0", decode="d0", cost=Cost(prefill_s=2.1, stall_s=0.4, score_s=2.5))
DECISION = Decision(
    policy="score",
    at_s=0.004,
    chosen=SPLIT,
    reason="split costs less",
    candidates=(SPLIT, LOCAL),
    num_candidates=3,
    left_out=(("d1", "it sleeps"),),
)


def details(**changes: object) -> RequestDetails:
    fields = {
        "request_id": "req-1",
        "state": "finished",
        "code": None,
        "message": "",
        "age_s": 4.0,
        "duration_s": 1.0,
        "first_token_s": 0.2,
        "num_prompt_tokens": 512,
        "num_cached_tokens": 128,
        "num_output_tokens": 40,
        "session_id": "",
        "traceparent": "",
        "hops": [],
        "decisions": [],
    }
    return RequestDetails(**{**fields, **changes})  # type: ignore[arg-type]


def test_phases_are_bars_on_one_scale_with_a_row_for_each_name() -> None:
    router = [phase(PhaseName.ADMIT, 0.0, 0.1), phase(PhaseName.FIRST_TOKEN, 0.25, 0.25)]
    worker = [
        phase(PhaseName.PREFILL_CHUNK, 0.1, 0.2, num_tokens=256),
        phase(PhaseName.TRANSFER, 0.2, 0.5, num_bytes=2**21, peer="p0"),
        phase(PhaseName.PREFILL_CHUNK, 0.2, 0.25, num_tokens=128),
        phase(PhaseName.DECODE, 0.25, 1.0, num_tokens=40),
    ]
    hops = [Hop(process="router", phases=router), Hop(process="d0", phases=worker, num_left_out=7)]
    lines = render(details(hops=hops), 30).splitlines()
    assert lines[3:] == [
        "router  admit              ██··················     100.0 ms",
        "        first_token        ·····│··············  at 250.0 ms",
        "d0      prefill_chunk      ··███···············     150.0 ms  2 times, 384 tokens",
        "        transfer           ····██████··········     300.0 ms  2.00 MiB, from p0",
        "        decode             ·····███████████████     750.0 ms  40 tokens",
        "        and 7 more phases  ····················",
    ]


def test_drafted_tokens_are_told_with_the_share_that_was_right() -> None:
    decode = phase(PhaseName.DECODE, 0.0, 1.0, num_tokens=40, num_drafted=30, num_accepted=21)
    (line,) = render(details(hops=[Hop(process="d0", phases=[decode])]), 120).splitlines()[3:]
    assert line.endswith("40 tokens, 21 of 30 drafted ones right")


def test_bars_take_the_columns_that_are_left() -> None:
    hop = Hop(process="d0", phases=[phase(PhaseName.DECODE, 0.0, 1.0, num_tokens=40)])
    for columns in (60, 100, 200):
        (line,) = render(details(hops=[hop]), columns).splitlines()[3:]
        assert len(line) == columns
        assert line.count("█") > MIN_BAR


def test_a_decision_lists_its_candidates_and_marks_the_one_taken() -> None:
    lines = render(details(decisions=[DECISION]), 80).splitlines()
    assert lines[3:] == [
        "placed after 4.0 ms by score: split costs less",
        "   candidate  cached  at decoder   queue   prefill     gap     stall  affinity     score",
        ">  p0 > d0       128          64  1.0 ms  180.0 ms  4.0 ms    0.0 ms    2.0 ms  187.0 ms",
        "   d0              0           0  0.0 ms    2.10 s  0.0 ms  400.0 ms    0.0 ms    2.50 s",
        "  and 1 more candidates",
        "  d1 left out: it sleeps",
    ]


def test_the_sources_of_the_prompt_are_told_for_each_worker() -> None:
    hops = [
        Hop(process="router", phases=[]),
        Hop(process="p0", phases=[], sources=TokenSources(num_computed=384, num_local_cache=128)),
        Hop(process="d0", phases=[], sources=TokenSources(num_remote=500, num_recomputed=12)),
    ]
    assert render(details(hops=hops), 80).splitlines()[3:] == [
        "where the prompt's tokens came from",
        "      computed  local cache  remote  recomputed",
        "  p0       384          128       0           0",
        "  d0         0            0     500          12",
    ]


def test_a_failure_is_told_in_the_routers_words() -> None:
    failed = details(
        state="failed",
        code=ErrorCode.WORKER_LOST,
        message="worker d0 was lost",
        first_token_s=None,
        session_id="s1",
    )
    lines = render(failed, 80).splitlines()
    assert lines[0] == "req-1: failed, 1.00 s in all, no token"
    assert lines[2:] == [f"{ErrorCode.WORKER_LOST}: worker d0 was lost", "session s1"]


def test_what_a_client_named_cannot_move_the_cursor() -> None:
    printed = render(details(session_id="a\x1b[2J\nb\x9bc", message="é"), 80)
    assert "session a\\x1b[2J\\nb\\x9bc\n" in printed
    assert all(one.isprintable() for one in printed.replace("\n", ""))
