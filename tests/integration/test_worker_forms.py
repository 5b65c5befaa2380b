"""Whole workers whose requests wait for the form of their outputs, which a test holds back."""

from __future__ import annotations

import re
from concurrent.futures import Future
from functools import partial

import grpc
import pytest

from baton import SamplingParams
from baton_core.errors import BatonError, ErrorCode, InvalidRequestError, RequestError
from baton_core.requests.structured_outputs import StructuredOutputsParams
from baton_core.sessions.router_messages import FirstToken, Reserved
from baton_core.sessions.worker_info import Role
from baton_router.requests.request_limits import RequestLimits
from baton_worker.worker_shell import GrammarBackend
from tests.e2e.calls import answer, draw_prompt
from tests.integration.scripted_worker import until
from tests.integration.worker_cluster import Said, routing, working
from tests.tiers import exhaustive

FORM = SamplingParams(
    seed=3, max_tokens=40, structured_outputs=StructuredOutputsParams(regex="(yes|no)( (yes|no)){2}")
)
WITHIN_S = 20.0


class HeldForms:
    """Compiles when a test says so, or refuses with an error of its own."""

    def __init__(self, error: BatonError | None = None, *, is_refused_at_once: bool = False) -> None:
        self.num_asked = 0
        self._error = error
        self._is_refused_at_once = is_refused_at_once
        self._held: list[tuple[Future[None], StructuredOutputsParams]] = []

    def before(self, inner: GrammarBackend) -> HeldForms:
        self._inner = inner
        return self

    def compile(self, params: StructuredOutputsParams, tenant: str = "") -> Future[None]:
        self.num_asked += 1
        if self._error is not None and self._is_refused_at_once:
            raise self._error
        form: Future[None] = Future()
        self._held.append((form, params))
        return form

    @property
    def backends(self) -> list[str]:
        """The libraries that the forms held back name."""
        return [params.backend for _, params in self._held]

    def let_go(self) -> None:
        for form, params in self._held:
            if self._error is None:
                self._inner.compile(params).add_done_callback(partial(_pass_on, form))
            else:
                form.set_exception(self._error)
        self._held.clear()

    def close(self) -> None:
        self._inner.close()


def _pass_on(form: Future[None], compiled: Future[None]) -> None:
    form.set_result(compiled.result())


async def test_both_workers_wait_for_the_form_and_then_keep_to_it(said: Said) -> None:
    at_p, at_d = HeldForms(), HeldForms()
    async with (
        routing(said) as cluster,
        working(Role.PREFILL, cluster.port, hold=at_p.before),
        working(Role.DECODE, cluster.port, hold=at_d.before),
    ):
        await cluster.wait_for_idle("prefill", "decode")
        call = cluster.ask("r", draw_prompt(40, seed=1), FORM)
        await until(lambda: at_p.num_asked == at_d.num_asked == 1 and said.has(Reserved, "r"), WITHIN_S)
        at_p.let_go()
        await until(lambda: said.has(FirstToken, "r"))
        at_d.let_go()
        (output,), _ = answer([event async for event in call])
        assert re.fullmatch("(yes|no)( (yes|no)){2}", output.text)
        await cluster.wait_for_idle("prefill", "decode")


async def test_a_client_that_goes_meanwhile_leaves_nothing(said: Said) -> None:
    grammars = HeldForms()
    async with (
        routing(said, split="never") as cluster,
        working(Role.MIXED, cluster.port, hold=grammars.before),
    ):
        await cluster.wait_for_idle("mixed")
        call = cluster.ask("r", draw_prompt(40, seed=1), FORM)
        await until(lambda: grammars.num_asked == 1, WITHIN_S)
        call.cancel()
        await cluster.wait_for_idle("mixed")
        grammars.let_go()
        await cluster.wait_for_idle("mixed")


@pytest.mark.parametrize("setting", ["xgrammar", exhaustive("guidance")])
async def test_the_router_chooses_for_both_workers_which_library_compiles_a_form(
    said: Said, setting: str
) -> None:
    at_p, at_d = HeldForms(), HeldForms()
    async with (
        routing(said, limits=RequestLimits(structured_outputs_backend=setting)) as cluster,
        working(Role.PREFILL, cluster.port, hold=at_p.before),
        working(Role.DECODE, cluster.port, hold=at_d.before),
    ):
        await cluster.wait_for_idle("prefill", "decode")
        call = cluster.ask("r", draw_prompt(40, seed=1), FORM)
        await until(lambda: at_p.num_asked == at_d.num_asked == 1, WITHIN_S)
        assert at_p.backends == at_d.backends == [setting]
        at_p.let_go()
        at_d.let_go()
        (output,), _ = answer([event async for event in call])
        assert re.fullmatch("(yes|no)( (yes|no)){2}", output.text)


async def test_rules_that_leave_no_token_of_a_form_end_the_request_with_an_error_that_names_them(
    said: Said,
) -> None:
    params = SamplingParams(
        seed=3,
        max_tokens=40,
        allowed_token_ids=(5,),
        structured_outputs=StructuredOutputsParams(regex="(yes|no)( (yes|no)){2}"),
    )
    async with (
        routing(said) as cluster,
        working(Role.PREFILL, cluster.port),
        working(Role.DECODE, cluster.port),
    ):
        await cluster.wait_for_idle("prefill", "decode")
        call = cluster.ask("r", draw_prompt(40, seed=1), params)
        with pytest.raises(grpc.aio.AioRpcError) as caught:
            async for _ in call:
                pass
        assert caught.value.code().name == "INVALID_ARGUMENT"
        assert "allowed_token_ids is (5,)" in (caught.value.details() or "")
        assert "structured_outputs.regex" in (caught.value.details() or "")
        await cluster.wait_for_idle("prefill", "decode")


@pytest.mark.parametrize(
    ("error", "is_refused_at_once", "status"),
    [
        (InvalidRequestError("structured_outputs.regex", "(", "an expression"), False, "INVALID_ARGUMENT"),
        (RequestError(ErrorCode.OVERLOADED, "too many forms wait"), True, "RESOURCE_EXHAUSTED"),
    ],
)
async def test_a_form_that_is_not_compiled_ends_its_request_with_the_reason(
    said: Said, error: BatonError, is_refused_at_once: bool, status: str
) -> None:
    grammars = HeldForms(error, is_refused_at_once=is_refused_at_once)
    async with (
        routing(said, split="never") as cluster,
        working(Role.MIXED, cluster.port, hold=grammars.before),
    ):
        await cluster.wait_for_idle("mixed")
        call = cluster.ask("r", draw_prompt(40, seed=1), FORM)
        await until(lambda: grammars.num_asked == 1, WITHIN_S)
        grammars.let_go()
        with pytest.raises(grpc.aio.AioRpcError) as caught:
            await call.read()
        assert caught.value.code().name == status
        assert str(error) in (caught.value.details() or "")
        await cluster.wait_for_idle("mixed")
