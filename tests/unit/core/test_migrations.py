"""A request whose worker is lost, or gives it back, goes on at another one."""

from __future__ import annotations

from typing import Any

import pytest

from baton_core.errors import ErrorCode
from baton_core.requests.finish import FinishReason
from baton_core.sessions.control_messages import AWAY_AT
from baton_core.sessions.router_messages import (
    Cancel,
    Failed,
    FirstTokenOf,
    Generate,
    OutputSoFar,
    Prefill,
    RequestSpec,
    Reserve,
    Start,
    Transferred,
)
from baton_router.core.flow.flow_state import FlowState
from baton_router.core.flow.migration import MAX_MIGRATED_TOKENS, MigrationLimits, Migrations
from baton_router.core.placement.placement_config import SplitMode
from baton_router.core.router_events import FinishRequest, StopMatched, WorkerLeft
from tests.builders import make_request
from tests.unit.core.routers import Client, batch, client_in, first_token, refused, tokens

STOP = FinishReason.STOP
SECOND = "r\t1"


def lose(client: Client, worker_id: str, *, now: float = 1.0) -> list[tuple[str, Any]]:
    return client.feed(WorkerLeft(worker_id=worker_id, reason="it is silent"), now=now)


def resumed(*outputs: tuple[int, ...], name: str = SECOND, **request: Any) -> RequestSpec:
    so_far = tuple(OutputSoFar(index=index, token_ids=ids) for index, ids in enumerate(outputs) if ids)
    return make_request(name, resumed=so_far, **request)


def kinds(sent: list[tuple[str, Any]]) -> list[tuple[str, type]]:
    return [(worker_id, type(message)) for worker_id, message in sent if not isinstance(message, Cancel)]


def decoding(*worker_ids: str, split: SplitMode = SplitMode.ALWAYS) -> Client:
    """A client whose request has three tokens: 5, 6 and 7."""
    client = Client(*worker_ids, split=split)
    client.submit()
    client.says(worker_ids[0], first_token())
    if split is SplitMode.ALWAYS:
        client.says(worker_ids[1], Transferred(request_id="r", num_blocks=1, num_bytes=1, transfer_s=0.1))
    client.says(worker_ids[-1] if split is SplitMode.NEVER else "d", batch(tokens("r", 0, 6, 7)))
    return client


def test_a_stream_goes_on_at_another_pair_with_what_it_has() -> None:
    client = decoding("p", "d")
    client.join("d2")
    sent = lose(client, "d")
    spec = resumed((5, 6, 7))
    assert kinds(sent) == [("p", Prefill), ("d2", Reserve)]
    assert [message.spec for _, message in sent if isinstance(message, Prefill | Reserve)] == [spec, spec]
    client.says("d", batch(tokens("r", 0, 8)))
    sent = client.says("p", first_token(SECOND, tokens(SECOND, 0, 8)))
    assert sent == [("d2", Start(request_id=SECOND, first_tokens=(FirstTokenOf(index=0, token_id=8),)))]
    client.says("d2", batch(tokens(SECOND, 0, 9, reason=STOP)))
    assert [token for _, ids in client.emitted for token in ids] == [5, 6, 7, 8, 9]
    assert client.finished.num_output_tokens == 5
    assert client.core.num_migrations == 1
    assert client.core.fleet.has_no_reservations


def test_a_stream_goes_on_at_one_worker_that_computes_it_again() -> None:
    client = decoding("d", split=SplitMode.NEVER)
    client.join("d2")
    assert lose(client, "d")[-1] == ("d2", Generate(spec=resumed((5, 6, 7))))
    client.says("d2", batch(tokens(SECOND, 0, 8, reason=STOP)))
    assert [token for _, ids in client.emitted for token in ids] == [5, 6, 7, 8]
    assert isinstance(client.terminal, FinishRequest)


def test_blocks_that_are_still_held_are_given_to_another_decode_worker() -> None:
    client = Client("p", "d2", "d")
    client.submit()
    client.says("p", first_token())
    assert kinds(lose(client, "d2")) == [("d", Reserve), ("d", Start)]


@pytest.mark.parametrize("state", [FlowState.LOCAL, FlowState.SPLIT])
def test_a_prompt_whose_worker_is_lost_is_computed_elsewhere(state: FlowState) -> None:
    client = client_in(state)
    for name in ("p2", "d2"):
        client.join(name)
    sent = lose(client, "d" if state is FlowState.LOCAL else "p")
    assert sent[-1][1].spec == make_request(SECOND)
    assert not client.ends


def test_a_prefill_worker_goes_on_when_its_decode_worker_is_lost() -> None:
    client = Client("p", "d2", "d")
    client.submit()
    assert kinds(lose(client, "d2")) == [("d", Reserve)]


def test_what_was_held_by_a_lost_prefill_worker_is_computed_again() -> None:
    client = client_in(FlowState.AWAITING_DECODE)
    assert kinds(lose(client, "p")) == []
    assert kinds(client.join("p2")) == [("p2", Prefill), ("d", Reserve)]


def test_several_sequences_go_on_at_one_worker_without_those_that_are_over() -> None:
    client = Client("p", "d")
    client.submit(n=3)
    client.says("p", first_token("r", *(tokens("r", index, 5 + index) for index in range(3))))
    client.says("d", batch(tokens("r", 0, 8), tokens("r", 1, 9, reason=STOP)))
    client.join("d2")
    spec = make_request(
        SECOND, n=3, resumed=(OutputSoFar(index=0, token_ids=(5, 8)), OutputSoFar(index=2, token_ids=(7,)))
    )
    assert lose(client, "d")[-1] == ("d2", Generate(spec=spec))
    client.says("d2", batch(tokens(SECOND, 2, 10, reason=STOP), tokens(SECOND, 0, 11, reason=STOP)))
    assert isinstance(client.terminal, FinishRequest)


def test_a_worker_that_gives_a_request_back_makes_it_move() -> None:
    client = decoding("d", split=SplitMode.NEVER)
    client.join("d2")
    back = Failed(request_id="r", code=ErrorCode.UNAVAILABLE, message="it is leaving")
    assert client.says("d", back)[-1] == ("d2", Generate(spec=resumed((5, 6, 7))))


def test_workers_that_give_it_back_one_after_the_other_were_not_killed_by_it() -> None:
    client = Client("d", split=SplitMode.NEVER)
    client.submit()
    for number in range(8):
        attempt = f"r\t{number}" if number else "r"
        client.join(f"d{number + 2}", now=4.0 * number)
        back = Failed(request_id=attempt, code=ErrorCode.UNAVAILABLE, message="it is leaving")
        worker_id = f"d{number + 1}" if number else "d"
        assert kinds(client.says(worker_id, back, now=4.0 * number)) == [(f"d{number + 2}", Generate)]
        lose(client, worker_id, now=4.0 * number)
    assert not client.ends


def test_a_worker_that_gives_it_back_again_and_again_does_not_do_so_for_ever() -> None:
    client = Client("d", split=SplitMode.NEVER)
    client.submit()
    for number in range(5):
        attempt = f"r\t{number}" if number else "r"
        back = Failed(request_id=attempt, code=ErrorCode.UNAVAILABLE, message="no more blocks")
        client.says("d", back, now=4.0 * number)
        client.heartbeat("d", now=4.0 * number + 1.0)
    assert [end.code for end in client.ends] == [ErrorCode.UNAVAILABLE]
    assert "moved 3 times without a new token" in client.ends[0].message


def test_the_wait_for_a_decode_worker_counts_from_its_loss() -> None:
    client = Client("p", "d")
    client.submit()
    client.says("p", first_token(), now=1.0)
    lose(client, "d", now=2.0)
    while not client.ends and (due := client.core.next_deadline()) is not None:
        client.wait(due)
    assert due == 17.0
    assert "waited 15.0 s for a worker" in client.ends[0].message


def test_it_waits_for_a_worker_that_comes() -> None:
    client = decoding("d", split=SplitMode.NEVER)
    assert kinds(lose(client, "d")) == []
    assert client.join("d2", now=10.0) == [("d2", Generate(spec=resumed((5, 6, 7))))]


def test_it_waits_for_room_as_long_as_there_are_workers() -> None:
    client = decoding("d", split=SplitMode.NEVER)
    client.join("d2")
    lose(client, "d")
    for number in range(1, 40):
        client.says("d2", refused(f"r\t{number}"), now=float(number))
        client.wait(float(number))
        assert kinds(client.heartbeat("d2", now=float(number))) == [("d2", Generate)]
    client.says("d2", batch(tokens("r\t40", 0, 8, reason=STOP)), now=40.0)
    assert isinstance(client.terminal, FinishRequest)


def test_it_gives_up_when_none_comes() -> None:
    client = decoding("d", split=SplitMode.NEVER)
    lose(client, "d", now=1.0)
    assert client.core.next_deadline() == 16.0
    client.wait(16.0)
    assert client.code is ErrorCode.WORKER_LOST
    assert client.terminal.message == (  # type: ignore[union-attr]
        "worker d was lost: it is silent; waited 15.0 s for a worker: no decode worker is registered"
    )


def test_the_wait_begins_anew_when_the_next_worker_is_lost_too() -> None:
    client = Client("d", split=SplitMode.NEVER)
    client.submit()
    client.join("d2")
    lose(client, "d", now=1.0)
    lose(client, "d2", now=17.0)
    client.wait(17.0)
    assert not client.ends
    assert client.core.next_deadline() == 32.0
    client.wait(32.0)
    assert "waited 15.0 s for a worker" in client.terminal.message  # type: ignore[union-attr]


def test_it_waits_as_long_as_an_operator_has_paused_the_workers() -> None:
    client = decoding("d", split=SplitMode.NEVER)
    client.join("d2")
    client.heartbeat("d2", is_paused=True)
    lose(client, "d", now=1.0)
    for second in range(2, 90):
        client.heartbeat("d2", now=float(second), is_paused=True)
        client.wait(float(second))
    assert not client.ends
    assert kinds(client.heartbeat("d2", now=90.0)) == [("d2", Generate)]


def test_it_waits_for_a_worker_that_joins_while_the_others_are_paused() -> None:
    client = decoding("d", split=SplitMode.NEVER)
    client.core.fleet.set_away(AWAY_AT[0])
    lose(client, "d", now=1.0)
    assert kinds(client.join("d2", now=2.0)) == []
    assert kinds(client.heartbeat("d2", now=2.1)) == []
    client.core.fleet.set_away(frozenset())
    assert kinds(client.heartbeat("d2", now=3.0)) == [("d2", Generate)]


def test_a_worker_that_refused_may_have_room_later() -> None:
    client = decoding("d", split=SplitMode.NEVER)
    client.join("d2")
    lose(client, "d")
    client.says("d2", refused(SECOND))
    assert kinds(client.heartbeat("d2")) == [("d2", Generate)]


def test_what_kills_its_workers_stops() -> None:
    client = decoding("d", split=SplitMode.NEVER)
    lose(client, "d")
    for number in range(3):
        assert not client.ends
        client.join("d2")
        lose(client, "d2", now=4.0 + 3 * number)
    assert client.code is ErrorCode.WORKER_LOST
    assert "moved 3 times without a new token, the maximum" in client.terminal.message  # type: ignore[union-attr]


def test_a_worker_that_had_not_begun_with_it_was_lost_for_another_reason() -> None:
    client = decoding("d", split=SplitMode.NEVER)
    lose(client, "d")
    for number in range(1, 16):
        client.join("d2", now=4.0 * number)
        client.heartbeat("d2", now=4.0 * number, waiting_request_ids=(f"r\t{number}",))
        lose(client, "d2", now=4.0 * number)
        assert not client.ends
    client.join("d2", now=70.0)
    lose(client, "d2", now=70.0)
    assert "moved 16 times, the maximum" in client.terminal.message  # type: ignore[union-attr]


def test_a_decode_worker_that_waits_for_its_prompt_was_lost_for_another_reason() -> None:
    client = Client("p", "d0")
    client.submit()
    for number in range(8):
        client.join(f"d{number + 1}", now=4.0 * number)
        assert kinds(lose(client, f"d{number}", now=4.0 * number)) == [(f"d{number + 1}", Reserve)]
    client.says("p", first_token("r", tokens("r", 0, 7, reason=STOP)), now=40.0)
    assert isinstance(client.terminal, FinishRequest)


@pytest.mark.parametrize("is_placed", [False, True])
def test_a_stop_text_can_end_it_while_it_moves(is_placed: bool) -> None:
    client = decoding("p", "d")
    if is_placed:
        client.join("d2")
    lose(client, "d")
    client.feed(StopMatched(request_id="r", index=0), now=2.0)
    assert client.finished.num_output_tokens == 3
    assert client.core.fleet.has_no_reservations


def test_a_request_can_begin_with_what_it_has() -> None:
    client = Client("p", "d")
    so_far = (OutputSoFar(index=0, token_ids=(5, 6)),)
    sent = client.submit(resumed=so_far)
    assert kinds(sent) == [("p", Prefill), ("d", Reserve)]
    client.says("p", first_token("r", tokens("r", 0, 7, reason=STOP)))
    assert client.emitted == [(0, (7,))]
    assert client.terminal.num_output_tokens == 3  # type: ignore[union-attr]


def test_several_sequences_that_a_client_has_begin_at_one_worker() -> None:
    client = Client("p", "d")
    so_far = (OutputSoFar(index=0, token_ids=(5, 6)), OutputSoFar(index=1, token_ids=(7,)))
    assert kinds(client.submit(n=2, resumed=so_far)) == [("d", Generate)]


def test_a_request_that_begins_with_what_it_has_waits_where_it_is_refused() -> None:
    client = Client("d", split=SplitMode.NEVER)
    client.submit(resumed=(OutputSoFar(index=0, token_ids=(5, 6)),), now=50.0)
    client.says("d", refused(), now=51.0)
    client.wait(60.0)
    assert not client.ends
    assert kinds(client.heartbeat("d", now=61.0)) == [("d", Generate)]


def note(
    migrations: Migrations, num_tokens: int, *, now: float = 0.0, num_prompt_tokens: int = 10
) -> str | None:
    return migrations.add(now, ErrorCode.WORKER_LOST, "lost", num_tokens, num_prompt_tokens)


def test_moves_are_bounded() -> None:
    migrations = Migrations(MigrationLimits(max_migrations=5, max_fruitless_migrations=2))
    assert [note(migrations, 0, now=0.0), note(migrations, 0, now=2.0)] == [None, None]
    assert note(migrations, 0, now=4.0) == "moved 2 times without a new token, the maximum"
    given_back = migrations.add(4.0, ErrorCode.UNAVAILABLE, "given back", 0, 10, is_suspect=False)
    assert given_back is None
    assert [note(migrations, 1, now=5.0), note(migrations, 2, now=6.0)] == [None, None]
    assert note(migrations, 3, now=7.0) == "moved 5 times, the maximum"
    assert migrations.num_migrations == 5


def test_a_router_that_loses_all_its_workers_at_once_counts_one_move() -> None:
    migrations = Migrations(MigrationLimits(max_migrations=4, max_fruitless_migrations=2))
    assert [note(migrations, 0, now=0.1 * number) for number in range(19)] == [None] * 19
    assert note(migrations, 0, now=2.0) is None
    assert note(migrations, 0, now=4.0) == "moved 2 times without a new token, the maximum"
    assert migrations.num_migrations == 20


def test_what_fits_into_no_message_is_not_moved() -> None:
    assert "can be moved" in str(
        note(Migrations(MigrationLimits()), 0, num_prompt_tokens=MAX_MIGRATED_TOKENS + 1)
    )


@pytest.mark.parametrize("first", ["prefill", "decode"])
def test_a_machine_with_both_workers_dies_and_the_request_goes_on_at_once(first: str) -> None:
    client = Client("p", "d", "p2", "d2")
    sent = {type(message): worker_id for worker_id, message in client.submit()}
    prefill, decode = sent[Prefill], sent[Reserve]
    client.says(prefill, first_token())
    lost = (prefill, decode) if first == "prefill" else (decode, prefill)
    placed = [one for name in lost for one in client.feed(WorkerLeft(worker_id=name, reason="gone"), now=1.0)]
    assert {worker_id for worker_id, message in placed if not isinstance(message, Cancel)} - set(lost)
    assert not client.ends
