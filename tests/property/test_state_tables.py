"""Every (state, input) pair of every state machine of the core, sessions apart."""

from __future__ import annotations

from collections import Counter
from collections.abc import Callable, Iterator, Mapping
from dataclasses import dataclass
from enum import StrEnum
from typing import Any

import pytest

from baton_core.blocks import block_pool
from baton_core.blocks.block_pool import BlockInput, BlockPool, BlockState
from baton_core.requests.request_context import RequestContext
from baton_core.worker import sequence
from baton_core.worker.sequence import SequenceInput, SequenceState
from baton_decode.core import transfer
from baton_decode.core.transfer import PullTimings, Transfer, TransferInput, TransferState
from baton_router.core.admission.admission_gate import AdmissionGate, DispatchLimit
from baton_router.core.batches import batch
from baton_router.core.batches.batch import BatchInput, BatchStatus
from baton_router.core.fleet.fleet import Fleet
from baton_router.core.flow import flow_state
from baton_router.core.flow.flow_limits import FlowLimits
from baton_router.core.flow.flow_state import FlowInput, FlowState
from baton_router.core.flow.request_flow import RequestFlow
from baton_router.core.flow.request_record import open_record
from tests.builders import make_request, make_sequence, make_source


def apply_to_block(state: Any, what: Any) -> StrEnum:
    pool = BlockPool(1)
    pool._states[0] = state
    pool._apply(0, what)
    return pool.state(0)


def apply_to_sequence(state: Any, what: Any) -> StrEnum:
    seq = make_sequence(state=state)
    seq.apply(1.0, what)
    return seq.state


def apply_to_transfer(state: Any, what: Any) -> StrEnum:
    machine = Transfer(
        "t",
        "r",
        make_source(),
        {0: 0},
        is_verified_by_checksum=False,
        next_pull_id=lambda: 1,
        timings=PullTimings(),
    )
    machine._state = state
    machine._apply(what)
    return machine.state


def apply_to_flow(state: Any, what: Any) -> StrEnum:
    spec = make_request()
    record = open_record(0.0, spec, RequestContext())
    fleet = Fleet()
    gate = AdmissionGate(RequestContext(), 0.0, dispatch_limit=DispatchLimit(), fleet=fleet, counts=Counter())
    flow = RequestFlow(0.0, spec, limits=FlowLimits(), fleet=fleet, gate=gate, record=record)
    flow._state = state
    flow._apply(1.0, what)
    return flow.state


def apply_to_batch(state: Any, what: Any) -> StrEnum:
    made = batch.Batch(id="b", endpoint="/v1/completions", input_file_id="f", created_at=1, expires_at=9)
    made.status = state
    made.advance(what, 5.5)
    assert getattr(made, f"{made.status}_at") == 5
    return made.status


@dataclass(frozen=True, kw_only=True)
class Machine:
    name: str
    states: type[StrEnum]
    inputs: type[StrEnum]
    table: Mapping[Any, Any]
    initial: tuple[StrEnum, ...]
    terminal: frozenset[Any]
    apply: Callable[[Any, Any], StrEnum]


MACHINES = (
    Machine(
        name="block",
        states=BlockState,
        inputs=BlockInput,
        table=block_pool.TRANSITIONS,
        initial=(BlockState.FREE,),
        terminal=frozenset(),
        apply=apply_to_block,
    ),
    Machine(
        name="sequence",
        states=SequenceState,
        inputs=SequenceInput,
        table=sequence.TRANSITIONS,
        initial=(SequenceState.WAITING, SequenceState.PULLING),
        terminal=sequence.TERMINAL,
        apply=apply_to_sequence,
    ),
    Machine(
        name="transfer",
        states=TransferState,
        inputs=TransferInput,
        table=transfer.TRANSITIONS,
        initial=(TransferState.PULLING,),
        terminal=transfer.TERMINAL,
        apply=apply_to_transfer,
    ),
    Machine(
        name="flow",
        states=FlowState,
        inputs=FlowInput,
        table=flow_state.TRANSITIONS,
        initial=(FlowState.WAITING,),
        terminal=flow_state.TERMINAL,
        apply=apply_to_flow,
    ),
    Machine(
        name="batch",
        states=BatchStatus,
        inputs=BatchInput,
        table=batch.TRANSITIONS,
        initial=(BatchStatus.VALIDATING,),
        terminal=batch.TERMINAL,
        apply=apply_to_batch,
    ),
)


def pairs() -> Iterator[Any]:
    for machine in MACHINES:
        for state in machine.states:
            for what in machine.inputs:
                yield pytest.param(machine, state, what, id=f"{machine.name}-{state}-{what}")


@pytest.mark.parametrize(("machine", "state", "what"), list(pairs()))
def test_a_pair_goes_where_the_table_says_or_raises(machine: Machine, state: StrEnum, what: StrEnum) -> None:
    target = machine.table.get((state, what))
    if target is None:
        with pytest.raises(KeyError):
            machine.apply(state, what)
    else:
        assert machine.apply(state, what) is target


def reachable(machine: Machine, starts: tuple[StrEnum, ...]) -> set[StrEnum]:
    found = set(starts)
    while fresh := {target for (state, _), target in machine.table.items() if state in found} - found:
        found |= fresh
    return found


@pytest.mark.parametrize("machine", MACHINES, ids=lambda machine: machine.name)
class TestShape:
    def test_terminal_states_have_no_exits(self, machine: Machine) -> None:
        assert not [pair for pair in machine.table if pair[0] in machine.terminal]

    def test_every_state_is_reachable(self, machine: Machine) -> None:
        assert reachable(machine, machine.initial) == set(machine.states)

    def test_from_every_state_there_is_a_way_to_an_end(self, machine: Machine) -> None:
        ends = machine.terminal or set(machine.initial)
        assert all(reachable(machine, (state,)) & ends for state in machine.states)

    def test_every_input_means_something_somewhere(self, machine: Machine) -> None:
        assert {what for _, what in machine.table} == set(machine.inputs)
