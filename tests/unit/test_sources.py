"""Every source file keeps to limits: what it may load, how long it is, where settings come from."""

from __future__ import annotations

import ast
import gc
from collections.abc import Iterator
from pathlib import Path
from typing import Final, TypeVar

import pytest

T = TypeVar("T", bound=ast.AST)
ROOT: Final = Path(__file__).parents[2]
FOLDERS: Final = (
    *("core", "sandbox", "service", "kernels", "kv_transfer", "engine", "prefill_worker", "decode_worker"),
    *("worker", "router", "simulator", "bench/baton_bench", "api"),
)
FILES: Final = sorted(path for folder in FOLDERS for path in (ROOT / folder).rglob("*.py"))
UNPICKLING: Final = {"pickle", "marshal", "shelve", "dill", "cloudpickle", "joblib"}
"""Modules that run what they read, or that can be made to."""
EVALUATING: Final = {"eval", "exec", "compile"}
MAKING_SOCKETS: Final = (
    *("socket.socket", "socket.create_server", "socket.create_connection", "asyncio.start_server"),
    *("HTTPServer", "ThreadingHTTPServer", "TCPServer", "ThreadingTCPServer", "uvicorn.run"),
)
"""Calls, and base classes, of what makes sockets that may hold data back."""
SOCKET_FILES: Final = {
    "service/baton_service/tcp.py": "what listens and connects over TCP",
    "worker/baton_worker/metrics_server.py": "a server at a socket of tcp.py",
    "service/baton_service/reachability.py": "UDP, and nothing is sent",
    "kv_transfer/baton_kv/tcp_plain.py": "KV blocks over TCP; each connection is configured there",
    "kv_transfer/baton_kv/pool_socket.py": "Unix sockets",
    "service/baton_service/unix_listener.py": "Unix sockets",
    "bench/peer/offline_engine.py": "one end of a pair",
    "worker/baton_worker/rank_process.py": "one end of a pair",
}
"""All that make sockets, and why their data is not held back."""
MAX_FILE_LINES: Final = 400
MAX_FUNCTION_LINES: Final = 60
MAX_ENVIRONMENT_READS: Final = 24
"""Settings are flags; the environment holds secrets, and what other programs define."""


Sources = dict[Path, list[ast.AST]]


@pytest.fixture(scope="module")
def sources() -> Sources:
    """The nodes of each file's syntax tree."""
    gc.disable()  # CPython 3.11 gives up a tree while which finalizers run (python/cpython#106905)
    try:
        return {path: list(ast.walk(ast.parse(path.read_text(encoding="utf-8")))) for path in FILES}
    finally:
        gc.enable()


def named(sources: Sources, *kinds: type[T]) -> Iterator[tuple[str, T]]:
    """Nodes of these kinds, each with the place to name in a complaint."""
    for path, nodes in sources.items():
        for node in nodes:
            if isinstance(node, kinds):
                yield f"{path.relative_to(ROOT)}:{getattr(node, 'lineno', 0)}", node


def modules_of(node: ast.Import | ast.ImportFrom) -> set[str]:
    """Top-level packages that an import names."""
    names = [alias.name for alias in node.names] if isinstance(node, ast.Import) else [node.module or ""]
    return {name.split(".")[0] for name in names}


def is_evaluation(call: ast.Call) -> bool:
    """Return whether a call runs its argument as code, or can be made to."""
    called = dotted(call.func)
    if called == "torch.load":
        return "weights_only=True" not in [ast.unparse(keyword) for keyword in call.keywords]
    return called in EVALUATING or called.endswith(".recv_pyobj")


def test_nothing_unpickles_or_evaluates_what_it_reads(sources: Sources) -> None:
    imports = named(sources, ast.Import, ast.ImportFrom)
    assert [where for where, node in imports if modules_of(node) & UNPICKLING] == []
    assert [where for where, node in named(sources, ast.Call) if is_evaluation(node)] == []


def test_files_and_functions_can_be_read_at_one_sitting(sources: Sources) -> None:
    tests = sorted((ROOT / "tests").rglob("*.py"))
    lengths = {path: len(path.read_text(encoding="utf-8").splitlines()) for path in (*FILES, *tests)}
    assert [path for path, length in lengths.items() if length > MAX_FILE_LINES] == []
    assert [
        f"{where} {node.name}"
        for where, node in named(sources, ast.FunctionDef, ast.AsyncFunctionDef)
        if (node.end_lineno or 0) - node.lineno >= MAX_FUNCTION_LINES and not is_kernel(node)
    ] == []


def is_kernel(function: ast.FunctionDef | ast.AsyncFunctionDef) -> bool:
    """Return whether Triton compiles it: its calls are inlined, but it reads best in one piece."""
    return any(ast.unparse(one).startswith("triton.jit") for one in function.decorator_list)


def test_few_places_read_the_environment(sources: Sources) -> None:
    reads = [where for where, node in named(sources, ast.Attribute) if node.attr in ("environ", "getenv")]
    assert len(reads) <= MAX_ENVIRONMENT_READS, reads


def test_sockets_are_made_where_their_data_is_not_held_back(sources: Sources) -> None:
    bench = {path: list(ast.walk(ast.parse(path.read_text()))) for path in (ROOT / "bench").rglob("*.py")}
    makers = {
        where.rpartition(":")[0]
        for where, node in named({**sources, **bench}, ast.Call, ast.ClassDef)
        if not names_used(node).isdisjoint(MAKING_SOCKETS)
    }
    assert makers == set(SOCKET_FILES), "make TCP sockets by baton_service.tcp"


def names_used(node: ast.Call | ast.ClassDef) -> set[str]:
    """Names of what a call calls, or a class is derived from."""
    return {dotted(one) for one in (node.bases if isinstance(node, ast.ClassDef) else (node.func,))}


def dotted(node: ast.expr) -> str:
    """Return a name with its dots; what comes before the last of them is left out where it is no name."""
    if isinstance(node, ast.Attribute):
        return f"{dotted(node.value)}.{node.attr}"
    return node.id if isinstance(node, ast.Name) else ""
