"""Figures of the source tree: how much there is, how long its parts are, and whether imports go round or up.

    python tools/structure.py [--at REVISION] [--longest 5]

Counts the Python of the packages, apart from tests, benchmarks' scripts, tools and generated code, and the
C++ of the kernels. With `--at` it reads a commit of this repository instead of the working tree, so that two
trees can be compared.
"""

from __future__ import annotations

import argparse
import ast
import subprocess
import tarfile
import tempfile
import tomllib
from collections import defaultdict
from collections.abc import Iterator, Mapping
from dataclasses import dataclass
from graphlib import CycleError, TopologicalSorter
from io import BytesIO
from pathlib import Path
from statistics import median
from typing import Final

ROOT: Final = Path(__file__).parents[1]
APART: Final = ("tests", "tools", "examples", "docs", "bench", "build")
"""Top-level folders that hold no product code; the package in bench/ counts."""
GENERATED: Final = ("_pb2.py", "_pb2_grpc.py")
NATIVE: Final = (".h", ".cpp")


@dataclass(frozen=True, slots=True)
class Module:
    """A Python module of the product."""

    name: str
    path: Path
    num_lines: int
    functions: tuple[tuple[str, int], ...]
    """Name and lines of each function and method."""
    imports: frozenset[str]
    """Dotted names that it imports, those for type checkers included."""


def read_modules(root: Path) -> dict[str, Module]:
    """Return the modules of the packages under `root`, by dotted name."""
    modules = {}
    for path in sorted(root.rglob("*.py")):
        parts = path.relative_to(root).parts
        package = next((number for number, part in enumerate(parts) if part.startswith("baton")), None)
        is_apart = parts[0].startswith(".") or (parts[0] in APART and not parts[1].startswith("baton"))
        if package is None or is_apart or path.name.endswith(GENERATED):
            continue
        names = [*parts[package:-1], *([] if path.stem == "__init__" else [path.stem])]
        text = path.read_text(encoding="utf-8")
        tree = ast.parse(text)
        name = ".".join(names)
        functions = tuple(_functions(tree))
        modules[name] = Module(name, path, len(text.splitlines()), functions, frozenset(_imports(tree)))
    return modules


def import_graph(modules: Mapping[str, Module]) -> dict[str, set[str]]:
    """Return which module imports which; a name that is no module counts for the module that holds it."""
    graph: dict[str, set[str]] = {}
    for name, module in modules.items():
        found = {one if one in modules else one.rpartition(".")[0] for one in module.imports}
        graph[name] = {one for one in found if one in modules and one != name}
    return graph


def circle(graph: Mapping[str, set[str]]) -> list[str]:
    """Return modules or packages that import each other in a circle; empty where there is none."""
    try:
        TopologicalSorter(graph).prepare()
    except CycleError as error:
        nodes: list[str] = error.args[1]
        return nodes
    return []


def folder_circle(graph: Mapping[str, set[str]]) -> list[str]:
    """Return a circle among what lies side by side in a package, each folder taken with all that is in it."""
    siblings: defaultdict[str, defaultdict[str, set[str]]] = defaultdict(lambda: defaultdict(set))
    for name, imported in graph.items():
        if name.endswith(".__main__"):
            continue  # a script, which nothing imports
        own = name.split(".")
        for one in imported:
            other = one.split(".")
            depth = next((n for n, (a, b) in enumerate(zip(own, other, strict=False)) if a != b), None)
            if depth is not None:
                package = ".".join(own[:depth])
                siblings[package][".".join(own[: depth + 1])].add(".".join(other[: depth + 1]))
    return next((found for nodes in siblings.values() if (found := circle(nodes))), [])


def arrows_up(graph: Mapping[str, set[str]], layers: list[str]) -> list[tuple[str, str]]:
    """Return imports from a lower layer of pyproject.toml's contract to a higher one."""
    heights = {
        package.strip(): -number for number, layer in enumerate(layers) for package in layer.split("|")
    }
    return [
        (name, one)
        for name, imported in graph.items()
        for one in imported
        if heights.get(_top(name), 0) < heights.get(_top(one), 0) and not name.endswith(".__main__")
    ]


def report(root: Path, num_longest: int) -> Iterator[str]:
    """Yield the lines of the report on a tree."""
    modules = read_modules(root)
    graph = import_graph(modules)
    lengths = [length for module in modules.values() for _, length in module.functions]
    python = sum(module.num_lines for module in modules.values())
    native = sum(
        len(path.read_text(encoding="utf-8").splitlines())
        for path in root.glob("kernels/**/*")
        if path.suffix in NATIVE
    )
    yield f"files                 {len(modules):7,}"
    yield f"lines of Python       {python:7,}"
    yield f"lines of C++          {native:7,}"
    yield f"median file           {median(module.num_lines for module in modules.values()):7.0f} lines"
    yield f"functions             {len(lengths):7,}"
    yield f"median function       {median(lengths):7.0f} lines"
    longest = sorted(
        (
            (length, f"{module.name}.{name}")
            for module in modules.values()
            for name, length in module.functions
        ),
        reverse=True,
    )
    for length, name in longest[:num_longest]:
        yield f"  {length:3} lines  {name}"
    found = circle(graph)
    yield f"circle of modules     {' > '.join(found) or 'none'}"
    found = folder_circle(graph)
    yield f"circle of folders     {' > '.join(found) or 'none'}"
    contracts = tomllib.loads((root / "pyproject.toml").read_text(encoding="utf-8"))["tool"]["importlinter"]
    layers = next(one["layers"] for one in contracts["contracts"] if one["name"] == "Layers")
    up = arrows_up(graph, layers)
    yield f"arrows up             {len(up):7,}"
    yield from (f"  {name} > {one}" for name, one in up)
    by_package: defaultdict[str, list[int]] = defaultdict(list)
    for module in modules.values():
        by_package[_top(module.name)].append(module.num_lines)
    yield "package               files   lines"
    for package, counts in sorted(by_package.items()):
        yield f"  {package:18} {len(counts):6,} {sum(counts):7,}"


def _functions(tree: ast.AST) -> Iterator[tuple[str, int]]:
    for node in ast.walk(tree):
        if isinstance(node, ast.FunctionDef | ast.AsyncFunctionDef):
            yield node.name, (node.end_lineno or node.lineno) - node.lineno + 1


def _imports(tree: ast.AST) -> Iterator[str]:
    for node in ast.walk(tree):
        if isinstance(node, ast.Import):
            yield from (alias.name for alias in node.names)
        elif isinstance(node, ast.ImportFrom) and node.module and not node.level:
            yield from (f"{node.module}.{alias.name}" for alias in node.names)


def _top(name: str) -> str:
    return name.partition(".")[0]


def main() -> None:
    """Print the report on the working tree or on a commit."""
    parser = argparse.ArgumentParser(
        description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter
    )
    parser.add_argument(
        "--at", metavar="REVISION", help="a commit of this repository; default: the files here"
    )
    parser.add_argument("--longest", type=int, default=5, help="functions to name; default: 5")
    args = parser.parse_args()
    if args.at is None:
        print("\n".join(report(ROOT, args.longest)))
        return
    command = ["git", "archive", args.at]
    archive = subprocess.run(command, cwd=ROOT, capture_output=True, check=True).stdout
    with tempfile.TemporaryDirectory() as folder, tarfile.open(fileobj=BytesIO(archive)) as files:
        files.extractall(folder, filter="data")
        print("\n".join(report(Path(folder), args.longest)))


if __name__ == "__main__":
    main()
