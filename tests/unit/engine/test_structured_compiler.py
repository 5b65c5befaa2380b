from __future__ import annotations

import subprocess
import sys
import time
from collections.abc import Callable, Iterator
from concurrent.futures import Future
from contextlib import ExitStack
from dataclasses import replace
from functools import partial
from pathlib import Path
from typing import Any, Final

import msgspec
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
from baton_engine.sampling import grammar_progress
from baton_engine.sampling.grammar_progress import GrammarProgress
from baton_engine.structured import compiler as compiler_module
from baton_engine.structured import grammar_cache
from baton_engine.structured.compiler import LANES, GrammarCompiler, Lane
from baton_engine.structured.interface import EndTokens, Grammar, GrammarState
from baton_engine.structured.selection import Backends
from baton_engine.structured.trial import TrialResult
from baton_sandbox.process_limits import ProcessLimits
from tests.unit.engine.grammars import BACKENDS, Model, compiled, mask_of

pytestmark = pytest.mark.slow

MODEL: Final = Model()
IMPORTS: Final = """
import sys
from pathlib import Path
from baton_engine.structured.compiler import GrammarCompiler
GrammarCompiler(Path({folder!r}), 4096, [0])
print(sorted({{"torch", "xgrammar", "llguidance", "transformers"}} & sys.modules.keys()))
"""


def slow_grammar(number: int = 0) -> StructuredOutputsParams:
    """A small grammar that xgrammar needs minutes for."""
    rules = [
        f'r{i} ::= r{(i + 1) % 400} r{(i * 3 + 1) % 400} | [a-z]+ | "x{number}" r{(i * 7 + 5) % 400}'
        for i in range(400)
    ]
    return StructuredOutputsParams(grammar="\n".join(["root ::= r0", *rules]))


def lane(num_places: int = 1, **limits: Any) -> Lane:
    """A lane of tests, whose bounds are out of the way unless given."""
    roomy = ProcessLimits(cpu_s=600.0, wall_s=600.0, memory_bytes=LANES[0].limits.memory_bytes)
    return Lane(limits=replace(roomy, **limits), num_places=num_places)


Make = Callable[..., GrammarCompiler]


@pytest.fixture
def make() -> Iterator[Make]:
    with ExitStack() as stack:

        def make_compiler(backend: str = "auto", **settings: Any) -> GrammarCompiler:
            compiler = MODEL.compiler(backend, **settings)
            stack.callback(compiler.close)
            return compiler

        yield make_compiler


@pytest.fixture(scope="module")
def compilers() -> Iterator[Make]:
    """One compiler for each backend."""
    with ExitStack() as stack:
        made: dict[str, GrammarCompiler] = {}

        def find(backend: str = "auto") -> GrammarCompiler:
            if backend not in made:
                made[backend] = MODEL.compiler(backend)
                stack.callback(made[backend].close)
            return made[backend]

        yield find


def form(regex: str) -> StructuredOutputsParams:
    return StructuredOutputsParams(regex=regex)


def error_of(future: Future[None]) -> BatonError:
    error = future.exception(timeout=60)
    assert isinstance(error, BatonError)
    return error


def test_identical_forms_are_compiled_once_and_kept(make: Make, monkeypatch: pytest.MonkeyPatch) -> None:
    compiler, tried = make(), list[bytes]()
    run = compiler._processes.run
    monkeypatch.setattr(
        compiler._processes, "run", lambda task, limits: (tried.append(task), run(task, limits))[1]
    )
    futures = [compiler.compile(form("a")) for _ in range(3)]
    assert futures[1].cancel()
    assert futures[0].result(timeout=60) is futures[2].result(timeout=60) is None
    assert compiler.compile(form("a")).done()
    assert compiler.compile(form("a"), "another tenant").done()
    assert compiler.get(form("a")) is compiler.get(form("a"))
    assert len(tried) == 1


def test_a_slow_form_is_ended_and_refused_by_name(make: Make) -> None:
    compiler = make(lanes=[lane(cpu_s=0.2), lane(cpu_s=0.5)])
    for _ in range(2):
        error = error_of(compiler.compile(slow_grammar()))
        assert isinstance(error, InvalidRequestError)
        assert error.field == "structured_outputs.grammar"
        assert "compiles within 0.5 s of processor time and 768 MiB" in str(error)


def test_a_schema_whose_patterns_take_minutes_is_refused_by_name(make: Make) -> None:
    patterns = {f"^[a-z]{{1,{number}}}x{number}$": {"type": "integer"} for number in range(1, 250)}
    params = StructuredOutputsParams(json={"type": "object", "patternProperties": patterns})
    error = error_of(make(lanes=[lane(cpu_s=0.5)]).compile(params))
    assert isinstance(error, InvalidRequestError)
    assert error.field == "structured_outputs.json"


def test_slow_forms_of_one_tenant_hold_up_nobody_else(make: Make) -> None:
    compiler = make(lanes=[lane(2, cpu_s=0.3), lane()])
    slow = [compiler.compile(slow_grammar(number), "a") for number in range(24)]
    for number in range(3):
        assert compiler.compile(form(f"b{number}"), "b").exception(timeout=60) is None
    assert sum(future.done() for future in slow) == 0
    assert compiler._lanes[0].line, "the slow forms were all tried before the others"


def test_tenants_take_turns(make: Make) -> None:
    compiler, ended = make(lanes=[lane()]), list[str]()
    futures = []
    for number in range(8):
        futures.append(compiler.compile(form(f"a{number}"), "a"))
        futures[-1].add_done_callback(lambda _, number=number: ended.append(f"a{number}"))
    futures.append(compiler.compile(form("b"), "b"))
    futures[-1].add_done_callback(lambda _: ended.append("b"))
    for future in futures:
        assert future.exception(timeout=60) is None
    assert ended.index("b") <= 2, ended


def test_of_too_many_that_wait_the_last_of_the_tenant_with_the_most_gives_way(
    make: Make, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(compiler_module, "MAX_WAITING", 3)
    compiler = make(lanes=[lane()])
    futures = [compiler.compile(slow_grammar(number), "a") for number in range(4)]
    with pytest.raises(RequestError, match="3 grammars wait") as error:
        compiler.compile(form("a"), "a")
    assert error.value.code is ErrorCode.OVERLOADED
    assert compiler.compile(slow_grammar(3), "a") is not futures[3]  # one that waits already takes no place
    other = compiler.compile(form("b"), "b")
    assert error_of(futures[3]).code is ErrorCode.OVERLOADED
    assert not other.done()


def test_a_form_that_compiles_to_too_much_is_refused(make: Make, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(compiler_module, "MAX_GRAMMAR_BYTES", 1)
    assert "compiles to at most" in str(error_of(make().compile(form("a"))))


@pytest.mark.parametrize("regex", ["(([a-z]*[0-9]*){1,30}){1,400}", "(([a-z]*[0-9]*){1,3}){1,400}"])
def test_a_form_whose_steps_are_slow_is_refused_or_compiled_by_the_library_that_is_quick(
    make: Make, regex: str
) -> None:
    alone = make("xgrammar", lanes=[lane(cpu_s=2.0)])
    assert isinstance(error_of(alone.compile(form(regex))), InvalidRequestError)
    assert make().compile(form(regex)).exception(timeout=60) is None


def test_a_form_that_a_busy_machine_did_not_come_to_may_come_again(make: Make) -> None:
    compiler = make(lanes=[lane(wall_s=0.5)])
    for _ in range(2):
        assert error_of(compiler.compile(slow_grammar())).code is ErrorCode.DEADLINE_EXCEEDED


def test_a_form_that_nobody_waits_for_any_more_is_not_compiled(
    make: Make, monkeypatch: pytest.MonkeyPatch
) -> None:
    compiler = make(lanes=[lane(cpu_s=0.5)])
    futures = [compiler.compile(slow_grammar(number)) for number in range(4)]
    assert futures[1].cancel()
    monkeypatch.setattr(compiler_module, "WAIT_WITHIN_S", 0.0)
    assert isinstance(error_of(futures[0]), InvalidRequestError)
    assert error_of(futures[2]).code is error_of(futures[3]).code is ErrorCode.DEADLINE_EXCEEDED


class _Panic(BaseException):
    """As a library written in Rust raises."""


@pytest.mark.parametrize("kind", [_Panic, OSError])
def test_a_library_that_breaks_ends_its_request_and_takes_no_place_for_good(
    make: Make, kind: type[BaseException], monkeypatch: pytest.MonkeyPatch
) -> None:
    compiler = make(lanes=[lane()])
    compile_form = compiler._backends.compile

    def break_once(params: StructuredOutputsParams) -> Grammar:
        if params == form("bad"):
            raise kind("broke")
        return compile_form(params)

    monkeypatch.setattr(compiler._backends, "compile", break_once)
    for _ in range(2):
        error = error_of(compiler.compile(form("bad")))
        assert (error.code, str(error)) == (ErrorCode.INTERNAL, "a grammar cannot be compiled: broke")
    assert compiler.compile(form("good")).exception(timeout=60) is None


class _OneMiB(Grammar):
    num_bytes = 1 << 20

    def new_state(self) -> GrammarState:
        raise AssertionError("nothing follows it")


def test_the_cache_is_bounded_by_number_and_by_bytes(monkeypatch: pytest.MonkeyPatch) -> None:
    for name, bound in (("MAX_CACHED", 2), ("MAX_CACHED_BYTES", 5 << 19)):
        with monkeypatch.context() as patch:
            patch.setattr(grammar_cache, name, bound)
            cache, compiled = grammar_cache.GrammarCache(), []
            for regex in ("a", "b", "a", "c", "a", "b"):
                if cache.get(form(regex)) is None:
                    compiled.append(regex)
                    cache.put(form(regex), _OneMiB())
            assert compiled == ["a", "b", "c", "b"]


def test_sizes_are_known_of_the_latest_grammars(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(grammar_cache, "MAX_SIZES", 2)
    cache = grammar_cache.GrammarCache()
    noted = [cache.note_size(form(regex), size) for regex, size in (("a", 3), ("b", 2), ("a", 0), ("c", 1))]
    assert noted == [3, 2, 3, 1]
    assert [cache.note_size(form(regex), 0) for regex in "acb"] == [3, 1, 0]


def test_a_grammar_counts_as_much_memory_as_its_trial_took(
    make: Make, monkeypatch: pytest.MonkeyPatch
) -> None:
    compiler = make(lanes=[lane()])
    answer = msgspec.json.encode(TrialResult(num_bytes=1 << 24))
    monkeypatch.setattr(compiler._processes, "run", lambda *_: answer)
    compiler.compile(form("ab")).result(timeout=60)
    assert compiler.get(form("ab")).num_bytes == 1 << 24


@pytest.mark.parametrize("backend", BACKENDS)
def test_a_grammar_that_is_compiled_again_counts_as_much_as_before(
    make: Make, backend: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    compiler = make(backend=backend, lanes=[lane()])
    answer = msgspec.json.encode(TrialResult(num_bytes=1 << 24))
    monkeypatch.setattr(compiler._processes, "run", lambda *_: answer)
    monkeypatch.setattr(grammar_cache, "MAX_CACHED", 1)
    for regex in ("ab", "b"):
        compiler.compile(form(regex)).result(timeout=60)
    assert compiler.get(form("ab")).num_bytes == 1 << 24


def test_what_waits_is_refused_when_the_worker_shuts_down(make: Make) -> None:
    compiler = make(lanes=[lane()])
    futures = [compiler.compile(slow_grammar(number)) for number in range(2)]
    compiler.close()
    assert [error_of(future).code for future in futures] == [ErrorCode.UNAVAILABLE] * 2
    with pytest.raises(RequestError, match="shuts down"):
        compiler.compile(form("c"))


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
def test_a_wrong_form_is_refused_by_its_name_each_time(
    compilers: Make, backend: str, wrong: dict[str, str]
) -> None:
    compiler = compilers(backend)
    params = StructuredOutputsParams(**wrong)  # type: ignore[arg-type]
    error = error_of(compiler.compile(params))
    assert isinstance(error, InvalidRequestError)
    assert error.field == f"structured_outputs.{params.kind}"
    with pytest.raises(InvalidRequestError):
        compiler.get(params)


def test_a_model_without_an_end_token_has_no_forms() -> None:
    compiler = GrammarCompiler(MODEL.folder, 4096, [])
    assert "no token that ends" in str(error_of(compiler.compile(form("a"))))


def test_a_folder_without_a_tokenizer_refuses_forms(tmp_path: Path) -> None:
    error = error_of(GrammarCompiler(tmp_path, 10, [0]).compile(form("a")))
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
def test_a_mask_is_quick(compilers: Make, backend: str) -> None:
    schema = {"type": "object", "properties": {"a": {"type": "string"}}}
    state = compiled(compilers(backend), json=schema).new_state()
    started = time.thread_time()
    for _ in range(20):
        mask_of(state, MODEL.vocab_size)
    seconds = (time.thread_time() - started) / 20
    assert seconds < 0.05, f"{seconds * 1e6:.0f} us"


@pytest.mark.parametrize(("backend", "num_forms"), [("xgrammar", 40), ("guidance", 40)])
def test_compiling_writes_to_nobody_elses_memory(compilers: Make, backend: str, num_forms: int) -> None:
    """Masks of sequences that draw meanwhile are of the size that a compilation tries out its form with."""
    compiler = compilers(backend)
    grammars = [StructuredOutputsParams(regex=f"a{{{number}}}") for number in range(1, num_forms + 1)]
    pending = [compiler.compile(form) for form in grammars]
    num_words = (MODEL.vocab_size + 31) // 32
    while not all(future.done() for future in pending):
        rows = [np.zeros(num_words, np.int32) for _ in range(2000)]
        assert not np.stack(rows).any()
    assert all(future.result(timeout=0) is None for future in pending)


def test_a_form_that_turns_out_to_be_slow_ends_its_sequence_by_name_and_is_refused_from_then_on(
    make: Make, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(grammar_progress, "MAX_FOLLOW_S", 0.0)
    monkeypatch.setattr(grammar_progress, "MAX_FOLLOW_S_PER_TOKEN", 2e-6)
    compiler, params = make("xgrammar", lanes=[lane()]), form("(([a-z]*[0-9]*){1,3}){1,4}")
    state = compiled(compiler, regex=params.regex).new_state()
    progress = GrammarProgress(state, None, params, partial(compiler.refuse, params))
    with pytest.raises(InvalidRequestError, match=r"structured_outputs.regex is .* for each token"):
        progress.mask((MODEL.vocab_size + 31) // 32)
    assert "for each token" in str(error_of(compiler.compile(params)))
