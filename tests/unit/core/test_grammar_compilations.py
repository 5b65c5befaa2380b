"""Requests whose output must have a form wait until it is compiled, and not for ever."""

from __future__ import annotations

from typing import Any

import pytest

from baton_core.errors import ErrorCode
from baton_core.requests.structured_outputs import StructuredOutputsParams
from baton_core.sessions.router_messages import (
    Failed,
    FirstToken,
    RequestSpec,
    Reserved,
    TokenBatch,
    Transferred,
)
from baton_core.worker.worker_events import CompileGrammar, GrammarCompiled, RouterLost
from baton_worker.core.grammar_compilations import GrammarCompilations
from tests.builders import make_request
from tests.unit.core.workers import ROUTER, Pair, Worker, make_worker

FORM = StructuredOutputsParams(regex="a+")


def make_spec(request_id: str = "r", **changes: Any) -> RequestSpec:
    return make_request(request_id, structured_outputs=FORM, **changes)


def asked(effects: list[Any]) -> list[CompileGrammar]:
    return [effect for effect in effects if isinstance(effect, CompileGrammar)]


def assert_nothing_is_left(worker: Worker) -> None:
    assert worker.core.num_requests == len(worker.core.preparations.grammars) == 0
    assert worker.core.pool.num_used == 0
    assert worker.core.schedule(0.0) is None
    assert worker.core.next_deadline() is None


# --- where the prompt is computed ---


@pytest.mark.parametrize("command", ["generate", "prefill"])
@pytest.mark.parametrize("n", [1, 3])
def test_the_prompt_is_computed_once_the_form_is_there(command: str, n: int) -> None:
    worker = make_worker()
    (prepare,) = asked(getattr(worker, command)(make_spec(n=n)))
    assert prepare.structured_outputs == FORM
    assert worker.core.schedule(0.0) is None
    worker.feed(GrammarCompiled(compilation_id=prepare.compilation_id), now=1.0)
    histories = [sample.history for sample in worker.plan(1.0).slices[0].samples]
    assert [history.rules.params.structured_outputs for history in histories if history] == [FORM] * n


def test_those_without_a_form_go_ahead() -> None:
    worker = make_worker()
    worker.generate(make_spec("a"))
    assert asked(worker.generate(make_request("b"), now=1.0)) == []
    worker.step()
    assert [first.request_id for first in worker.heard(FirstToken)] == ["b"]


def test_a_request_runs_to_its_end_without_being_prepared_again() -> None:
    worker = make_worker()
    (prepare,) = asked(worker.generate(make_spec(max_tokens=2)))
    worker.feed(GrammarCompiled(compilation_id=prepare.compilation_id))
    for _ in range(2):
        assert asked(worker.step()) == []
    assert_nothing_is_left(worker)


# --- where it is decoded ---


@pytest.mark.parametrize("is_prepared_last", [False, True])
@pytest.mark.parametrize("n", [1, 2])
def test_decoding_begins_with_the_form_the_blocks_and_the_first_token(is_prepared_last: bool, n: int) -> None:
    pair = Pair()
    spec = make_spec(n=n, max_tokens=2)
    (at_p,), (at_d,) = asked(pair.p.prefill(spec)), asked(effects := pair.d.reserve(spec))
    pair.carry(effects)
    pair.p.feed(GrammarCompiled(compilation_id=at_p.compilation_id))
    if not is_prepared_last:
        pair.d.feed(GrammarCompiled(compilation_id=at_d.compilation_id))
    pair.carry(pair.p.step())
    pair.finish_pulls()
    pair.d.start("r", *[500] * n)
    if is_prepared_last:
        assert pair.d.core.schedule(0.0) is None
        assert pair.d.heard(Transferred) == []
        pair.d.feed(GrammarCompiled(compilation_id=at_d.compilation_id))
    pair.d.step()
    assert [len(message.outputs) for message in pair.d.heard(TokenBatch)] == [n]
    pair.assert_nothing_is_held()


def test_a_wrong_form_frees_the_reservation() -> None:
    pair = Pair()
    (prepare,) = asked(effects := pair.d.reserve(make_spec()))
    pair.carry(effects)
    pair.carry(pair.d.feed(GrammarCompiled(compilation_id=prepare.compilation_id, error="regex is '('")))
    assert [type(message) for message in pair.d.told] == [Reserved, Failed]
    pair.wait(60.0)
    pair.assert_nothing_is_held()


def test_a_reservation_that_is_refused_prepares_nothing() -> None:
    worker = make_worker(num_blocks=4, max_num_batched_tokens=8)
    worker.reserve(make_request("a", prompt=10))
    assert asked(worker.reserve(make_spec("b", prompt=10, first=100))) == []
    assert len(worker.core.preparations.grammars) == 0


# --- what may go wrong ---


@pytest.mark.parametrize("command", ["generate", "prefill"])
def test_a_wrong_form_fails_its_request_with_the_message(command: str) -> None:
    worker = make_worker()
    (prepare,) = asked(getattr(worker, command)(make_spec()))
    worker.feed(GrammarCompiled(compilation_id=prepare.compilation_id, error="regex is '('; allowed: ..."))
    failed = Failed(request_id="r", code=ErrorCode.INVALID_REQUEST, message="regex is '('; allowed: ...")
    assert worker.told == [failed]
    assert_nothing_is_left(worker)


def test_a_compiler_that_fails_by_itself_is_not_the_clients_fault() -> None:
    worker = make_worker()
    (prepare,) = asked(worker.generate(make_spec()))
    event = GrammarCompiled(
        compilation_id=prepare.compilation_id, error="too many", code=ErrorCode.OVERLOADED
    )
    worker.feed(event)
    assert worker.told == [Failed(request_id="r", code=ErrorCode.OVERLOADED, message="too many")]


@pytest.mark.parametrize("command", ["generate", "prefill", "reserve"])
def test_a_form_that_takes_too_long_fails_its_request(command: str) -> None:
    worker = make_worker(compile_within_s=30.0)
    (prepare,) = asked(getattr(worker, command)(make_spec(), now=1.0))
    worker.wait(30.9)
    assert worker.heard(Failed) == []
    worker.wait(31.0)
    message = "waited 30 s for structured_outputs.regex to be compiled"
    assert worker.heard(Failed) == [Failed(request_id="r", code=ErrorCode.DEADLINE_EXCEEDED, message=message)]
    worker.wait(100.0)
    assert worker.feed(GrammarCompiled(compilation_id=prepare.compilation_id), now=100.0) == []
    assert_nothing_is_left(worker)


@pytest.mark.parametrize("command", ["generate", "prefill", "reserve"])
@pytest.mark.parametrize("is_router_lost", [False, True])
def test_an_end_meanwhile_leaves_nothing(command: str, is_router_lost: bool) -> None:
    worker = make_worker()
    (prepare,) = asked(getattr(worker, command)(make_spec(n=2)))
    if is_router_lost:
        worker.feed(RouterLost(router_id=ROUTER))
    else:
        worker.cancel("r")
    worker.take_told()
    worker.wait(60.0)
    assert worker.feed(GrammarCompiled(compilation_id=prepare.compilation_id, error="late")) == []
    assert worker.told == []
    assert_nothing_is_left(worker)


def test_a_late_answer_is_not_the_next_ones_of_that_name() -> None:
    worker = make_worker()
    (old,) = asked(worker.generate(make_spec()))
    worker.cancel("r")
    (new,) = asked(worker.generate(make_spec()))
    worker.feed(GrammarCompiled(compilation_id=old.compilation_id, error="late"))
    assert (worker.core.num_requests, worker.core.schedule(0.0)) == (1, None)
    worker.feed(GrammarCompiled(compilation_id=new.compilation_id))
    assert worker.core.schedule(0.0) is not None


def test_a_name_in_use_is_refused_without_being_prepared() -> None:
    worker = make_worker()
    worker.generate(make_spec())
    assert asked(worker.generate(make_spec())) == []
    assert len(worker.core.preparations.grammars) == 1


def test_who_waits_for_nothing_is_found_out() -> None:
    compilations = GrammarCompilations(30.0)
    prepare = compilations.begin(0.0, "r", FORM, "a tenant")
    assert prepare.tenant == "a tenant"
    compilations.check_invariants({"r"})
    with pytest.raises(AssertionError, match="a request that is over waits for its grammar"):
        compilations.check_invariants(set())
    assert compilations.end(prepare.compilation_id) == "r"
    assert compilations.end(prepare.compilation_id) is None
    compilations.check_invariants(set())
