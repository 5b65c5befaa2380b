from __future__ import annotations

import subprocess
import sys
import threading
import time
from collections.abc import Callable, Iterator
from concurrent.futures import Future
from functools import partial
from pathlib import Path
from types import SimpleNamespace
from typing import Any, Final

import numpy as np
import pytest

from baton_core.errors import (
    BatonError,
    ErrorCode,
    InvalidConfigError,
    InvalidModelError,
    InvalidRequestError,
    RequestError,
)
from baton_core.requests.structured_outputs import StructuredOutputsParams
from baton_engine.structured import compiler as compiler_module
from baton_engine.structured.compiler import FormCompiler
from baton_engine.structured.interface import EndTokens, Grammar, GrammarState, TokenMask
from baton_engine.structured.selection import Backends
from tests.unit.engine.forms import BACKENDS, Model, compiled, mask_of

MODEL: Final = Model()
IMPORTS: Final = """
import sys
from pathlib import Path
from baton_engine.structured.compiler import FormCompiler
FormCompiler(Path({folder!r}), 4096, [0])
print(sorted({{"torch", "xgrammar", "llguidance", "transformers"}} & sys.modules.keys()))
"""


class _Slow:
    """Stands in for the libraries: each form ends when the test says so."""

    def __init__(self) -> None:
        self.compiled: list[str] = []
        self.num_running = 0
        self.may_end = threading.Semaphore(0)

    def compile(self, params: StructuredOutputsParams) -> Grammar:
        self.num_running += 1
        assert self.may_end.acquire(timeout=30)
        self.num_running -= 1
        self.compiled.append(params.regex or "")
        return _AnyText()


class _AnyText(Grammar):
    num_bytes = 1 << 20

    def new_state(self) -> GrammarState:
        return _AnyTextState(EndTokens.of([0], 32))


class _AnyTextState(GrammarState):
    def _advance(self, token_id: int) -> bool:
        return True

    def _fill(self, row: TokenMask) -> None:
        row[:] = -1


@pytest.fixture
def slow(monkeypatch: pytest.MonkeyPatch) -> Iterator[_Slow]:
    libraries = _Slow()
    monkeypatch.setattr(FormCompiler, "_backends", libraries)
    yield libraries
    libraries.may_end.release(1000)


@pytest.fixture
def overdue(monkeypatch: pytest.MonkeyPatch) -> list[Callable[[], None]]:
    """Ends the time of each form that was begun, in their order: no other clock runs."""
    ends: list[Callable[[], None]] = []

    def make_timer(_: float, function: Callable[..., None], arguments: tuple[Any, ...]) -> SimpleNamespace:
        end = partial(function, *arguments)
        return SimpleNamespace(start=lambda: ends.append(end), cancel=lambda: None)

    monkeypatch.setattr(compiler_module, "Timer", make_timer)
    return ends


def form(regex: str) -> StructuredOutputsParams:
    return StructuredOutputsParams(regex=regex)


def error_of(future: Future[None]) -> BatonError:
    error = future.exception(timeout=30)
    assert isinstance(error, BatonError)
    return error


def wait_until(condition: Any) -> None:
    deadline = time.monotonic() + 30
    while not condition():
        assert time.monotonic() < deadline
        time.sleep(0.002)


def test_identical_forms_are_compiled_once_and_kept(slow: _Slow) -> None:
    compiler = MODEL.compiler()
    futures = [compiler.compile(form("a")) for _ in range(3)]
    assert futures[1].cancel()
    slow.may_end.release(5)
    assert futures[0].result(timeout=30) is futures[2].result(timeout=30) is None
    assert compiler.compile(form("a")).done()
    assert compiler.get(form("a")) is compiler.get(form("a"))
    assert slow.compiled == ["a"]


def test_as_many_run_as_there_are_threads_and_as_many_wait_as_allowed(
    slow: _Slow, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(compiler_module, "MAX_WAITING", 3)
    compiler = MODEL.compiler(num_threads=2)
    futures = [compiler.compile(form(regex)) for regex in "abcde"]
    wait_until(lambda: slow.num_running == 2)
    with pytest.raises(RequestError, match="3 forms wait") as error:
        compiler.compile(form("f"))
    assert error.value.code is ErrorCode.OVERLOADED
    compiler.compile(form("e"))
    slow.may_end.release(5)
    for future in futures:
        future.result(timeout=30)
    assert sorted(slow.compiled) == list("abcde")


def test_a_form_that_takes_too_long_is_refused_and_holds_up_no_other(
    slow: _Slow, overdue: list[Callable[[], None]]
) -> None:
    compiler = MODEL.compiler(num_threads=1, max_seconds=0.05)
    first = compiler.compile(form("a"))
    overdue[0]()
    assert "compiled within 0.05 s" in str(error_of(first))
    assert isinstance(error_of(compiler.compile(form("a"))), InvalidRequestError)
    second = compiler.compile(form("b"))
    slow.may_end.release(2)
    wait_until(lambda: len(slow.compiled) == 2)
    assert second.exception(timeout=30) is None
    wait_until(lambda: compiler.compile(form("a")).exception(timeout=30) is None)


def test_forms_that_never_end_take_a_bounded_number_of_threads(
    slow: _Slow, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(compiler_module, "MAX_OVERDUE", 2)
    compiler = MODEL.compiler(num_threads=1, max_seconds=0.02)
    futures = [compiler.compile(form(regex)) for regex in "abcd"]
    for future in futures[:3]:
        error_of(future)
    assert not futures[3].done()
    assert slow.num_running == 3
    slow.may_end.release(4)
    wait_until(lambda: futures[3].done())


class _Panic(BaseException):
    """As a library written in Rust raises."""


@pytest.mark.parametrize("kind", [_Panic, OSError])
def test_a_library_that_breaks_ends_its_request_and_takes_no_thread_for_good(
    kind: type[BaseException], monkeypatch: pytest.MonkeyPatch
) -> None:
    def compile_form(params: StructuredOutputsParams) -> Grammar:
        if params == form("good"):
            return _AnyText()
        raise kind("broke")

    monkeypatch.setattr(FormCompiler, "_backends", SimpleNamespace(compile=compile_form))
    compiler = MODEL.compiler(num_threads=1)
    for _ in range(2):
        error = error_of(compiler.compile(form("bad")))
        assert (error.code, str(error)) == (ErrorCode.INTERNAL, "a form cannot be compiled: broke")
    assert compiler.compile(form("good")).exception(timeout=30) is None


def test_the_cache_is_bounded_by_number_and_by_bytes(slow: _Slow, monkeypatch: pytest.MonkeyPatch) -> None:
    slow.may_end.release(100)
    for name, bound in (("MAX_CACHED", 2), ("MAX_CACHED_BYTES", 5 << 19)):
        with monkeypatch.context() as patch:
            patch.setattr(compiler_module, name, bound)
            compiler, slow.compiled = MODEL.compiler(), []
            for regex in ("a", "b", "a", "c", "a", "b"):
                compiler.get(form(regex))
            assert slow.compiled == ["a", "b", "c", "b"]


def test_what_waits_is_refused_when_the_worker_shuts_down(slow: _Slow) -> None:
    compiler = MODEL.compiler(num_threads=1)
    futures = [compiler.compile(form(regex)) for regex in "ab"]
    compiler.close()
    assert [error_of(future).code for future in futures] == [ErrorCode.UNAVAILABLE] * 2
    with pytest.raises(RequestError, match="shuts down"):
        compiler.compile(form("c"))
    slow.may_end.release(2)


@pytest.mark.parametrize("backend", ["auto", *BACKENDS])
@pytest.mark.parametrize(
    "wrong",
    [
        {"json": "{"},
        {"json": '{"type": "no type"}'},
        {"json": '{"$ref": "#/$defs/a", "$defs": {"a": {"$ref": "#/$defs/a"}}}'},
        {"regex": "("},
        {"regex": "(a{1000}){1000}"},
        {"grammar": "root ::= missing"},
        {"grammar": "start: missing"},
        {"structural_tag": '{"format": {"type": "no type"}}'},
        {"structural_tag": '{"structures": [{}], "triggers": []}'},
    ],
    ids=str,
)
def test_a_wrong_form_is_refused_by_its_name_each_time(backend: str, wrong: dict[str, str]) -> None:
    compiler = MODEL.compiler(backend)
    params = StructuredOutputsParams(**wrong)  # type: ignore[arg-type]
    error = error_of(compiler.compile(params))
    assert isinstance(error, InvalidRequestError)
    assert error.field == f"structured_outputs.{params.form}"
    with pytest.raises(InvalidRequestError):
        compiler.get(params)


def test_a_model_without_an_end_token_has_no_forms() -> None:
    compiler = FormCompiler(MODEL.folder, 4096, [])
    assert "no token that ends" in str(error_of(compiler.compile(form("a"))))


def test_a_folder_without_a_tokenizer_refuses_forms(tmp_path: Path) -> None:
    error = error_of(FormCompiler(tmp_path, 10, [0]).compile(form("a")))
    assert isinstance(error, InvalidModelError)


def test_an_unknown_backend_is_refused() -> None:
    with pytest.raises(InvalidConfigError, match="auto, xgrammar, guidance"):
        MODEL.compiler("outlines")


def test_a_missing_package_is_named(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setitem(sys.modules, "baton_engine.structured.xgrammar_backend", None)
    backends = Backends(MODEL.vocabulary(), EndTokens.of([0], 4096), "xgrammar")
    with pytest.raises(InvalidConfigError, match="needs a missing package"):
        backends.compile(form("a"))


def test_a_worker_without_structured_requests_loads_no_library() -> None:
    code = IMPORTS.format(folder=str(MODEL.folder))
    done = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, check=True)
    assert done.stdout.strip() == "[]"


@pytest.mark.parametrize("backend", BACKENDS)
def test_a_mask_is_quick(backend: str) -> None:
    schema = {"type": "object", "properties": {"a": {"type": "string"}}}
    state = compiled(MODEL.compiler(backend), json=schema).new_state()
    started = time.thread_time()
    for _ in range(20):
        mask_of(state, MODEL.vocab_size)
    seconds = (time.thread_time() - started) / 20
    assert seconds < 0.05, f"{seconds * 1e6:.0f} us"


@pytest.mark.parametrize(("backend", "num_forms"), [("xgrammar", 40), ("guidance", 200)])
def test_compiling_writes_to_nobody_elses_memory(backend: str, num_forms: int) -> None:
    """Masks of sequences that draw meanwhile are of the size that a compilation tries out its form with."""
    compiler = MODEL.compiler(backend)
    forms = [StructuredOutputsParams(regex=f"a{{{number}}}") for number in range(1, num_forms + 1)]
    pending = [compiler.compile(form) for form in forms]
    num_words = (MODEL.vocab_size + 31) // 32
    while not all(future.done() for future in pending):
        rows = [np.zeros(num_words, np.int32) for _ in range(2000)]
        assert not np.stack(rows).any()
    assert all(future.result(timeout=0) is None for future in pending)
