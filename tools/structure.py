"""Figures of the source tree: how much there is, how long its parts are, and whether imports go round or up.

    python -m tools.structure [--before REVISION] [--longest 5]

Counts the Python of the packages, apart from tests, benchmarks' scripts, tools and generated code, and the
C++ of the kernels. With `--before` it prints the same figures of a commit of this repository beside those of
the working tree. `tools.request_way` counts the files and types of a request while it is served.
"""

from __future__ import annotations

import argparse
import ast
import subprocess
import tarfile
import tempfile
import tomllib
from collections import defaultdict
from collections.abc import Iterable, Iterator, Mapping
from dataclasses import dataclass
from graphlib import CycleError, TopologicalSorter
from io import BytesIO
from pathlib import Path
from statistics import median
from typing import Final

from tools.way_tables import DOCUMENT, files_of

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


def figures(root: Path) -> dict[str, float]:
    """Return the figures of a tree, by name."""
    modules = read_modules(root)
    graph = import_graph(modules)
    lengths = [length for module in modules.values() for _, length in module.functions]
    document = (root / DOCUMENT).read_text(encoding="utf-8")
    native = (path for path in root.glob("kernels/**/*") if path.suffix in NATIVE)
    found = {
        "files": len(modules),
        "lines of Python": sum(module.num_lines for module in modules.values()),
        "lines of C++": sum(len(path.read_text(encoding="utf-8").splitlines()) for path in native),
        "median file, lines": median(module.num_lines for module in modules.values()),
        "functions": len(lengths),
        "median function, lines": median(lengths),
        "longest function, lines": max(lengths),
        "steps of a request, files": len(files_of(document, "The way of a request")),
        "steps of a block, files": len(files_of(document, "The way of a block")),
        "circles of modules": len(circle(graph)),
        "circles of folders": len(folder_circle(graph)),
        "arrows up": len(arrows_up(graph, layers_of(root))),
        "names of two modules": len(shared_names(modules)),
    }
    by_package: defaultdict[str, int] = defaultdict(int)
    for module in modules.values():
        by_package[_top(module.name)] += module.num_lines
    return found | {f"lines of {package}": num_lines for package, num_lines in sorted(by_package.items())}


def layers_of(root: Path) -> list[str]:
    """Return the layers of packages by pyproject.toml, the highest first."""
    contracts = tomllib.loads((root / "pyproject.toml").read_text(encoding="utf-8"))["tool"]["importlinter"]
    layers: list[str] = next(one["layers"] for one in contracts["contracts"] if one["name"] == "Layers")
    return layers


def shared_names(modules: Iterable[str]) -> dict[str, list[str]]:
    """Return the modules whose names, apart from their packages, are the same."""
    by_name: defaultdict[str, list[str]] = defaultdict(list)
    for module in modules:
        by_name[module.rpartition(".")[2]].append(module)
    return {name: found for name, found in by_name.items() if len(found) > 1}


def table(after: Mapping[str, float], before: Mapping[str, float] | None) -> Iterator[str]:
    """Yield the lines of a table of figures, of one tree or of two."""
    if before is None:
        yield from (f"{name:26}{value:10,.0f}" for name, value in after.items())
        return
    yield f"{'':26}{'before':>10}{'after':>10}"
    for name in dict.fromkeys([*before, *after]):
        was, now = before.get(name, 0), after.get(name, 0)
        change = f"{now / was - 1:+8.1%}" if was else ""
        yield f"{name:26}{was:10,.0f}{now:10,.0f}{change}"


def details(root: Path, num_longest: int) -> Iterator[str]:
    """Yield the longest functions, and what breaks a rule, each by its name."""
    modules = read_modules(root)
    graph = import_graph(modules)
    longest = sorted(
        ((length, f"{one.name}.{name}") for one in modules.values() for name, length in one.functions),
        reverse=True,
    )
    yield from (f"  {length:3} lines  {name}" for length, name in longest[:num_longest])
    for what, nodes in (("modules", circle(graph)), ("folders", folder_circle(graph))):
        if nodes:
            yield f"  circle of {what}: {' > '.join(nodes)}"
    yield from (f"  up: {name} > {one}" for name, one in arrows_up(graph, layers_of(root)))
    for name, found in sorted(shared_names(modules).items()):
        yield f"  {name}: {', '.join(found)}"


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
    """Print the figures of the working tree, beside those of a commit if one is named."""
    parser = argparse.ArgumentParser(
        description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter
    )
    parser.add_argument("--before", metavar="REVISION", help="a commit of this repository to compare with")
    parser.add_argument("--longest", type=int, default=5, help="functions to name; default: 5")
    args = parser.parse_args()
    before = None
    if args.before is not None:
        command = ["git", "archive", args.before]
        archive = subprocess.run(command, cwd=ROOT, capture_output=True, check=True).stdout
        with tempfile.TemporaryDirectory() as folder, tarfile.open(fileobj=BytesIO(archive)) as files:
            files.extractall(folder, filter="data")
            before = figures(Path(folder))
    print("\n".join([*table(figures(ROOT), before), *details(ROOT, args.longest)]))


if __name__ == "__main__":
    main()
