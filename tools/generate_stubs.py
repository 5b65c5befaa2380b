"""Writes the Python stubs beside the .proto files; with --check, only says whether they are current."""

from __future__ import annotations

import argparse
import importlib.resources
import sys
import tempfile
from pathlib import Path

from grpc_tools import protoc

PROTO = Path(__file__).resolve().parent.parent / "proto"
SUFFIXES = ("_pb2.py", "_pb2.pyi", "_pb2_grpc.py")


def generate(out: Path) -> None:
    """Run protoc over every .proto file into `out`."""
    includes = str(importlib.resources.files("grpc_tools") / "_proto")
    names = [str(path.relative_to(PROTO)) for path in sorted(PROTO.rglob("*.proto"))]
    flags = [f"--{kind}_out={out}" for kind in ("python", "pyi", "grpc_python")]
    if protoc.main(["protoc", f"-I{PROTO}", f"-I{includes}", *flags, *names]):
        sys.exit("protoc failed")


def stubs(folder: Path) -> dict[str, str]:
    paths = (path for path in folder.rglob("*") if path.name.endswith(SUFFIXES))
    return {str(path.relative_to(folder)): path.read_text() for path in paths}


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--check", action="store_true")
    if not parser.parse_args().check:
        generate(PROTO)
        return
    with tempfile.TemporaryDirectory() as folder:
        generate(Path(folder))
        committed, fresh = stubs(PROTO), stubs(Path(folder))
    stale = sorted(name for name in committed | fresh if committed.get(name) != fresh.get(name))
    if stale:
        sys.exit(f"stubs differ from the .proto files: {', '.join(stale)}; run: make stubs")


if __name__ == "__main__":
    main()
