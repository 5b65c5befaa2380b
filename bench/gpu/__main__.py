"""Measures Baton on a GPU, part by part, against the limits of the device and against its peers.

    python -m bench.gpu                                        all parts, under ten minutes on an H200
    python -m bench.gpu --parts decode prefill --out gpu.json
    python -m bench.gpu --device cpu --quick                   tiny shapes: that everything runs

Each part is a process with a time limit of its own: one that fails or hangs says so in its place, and the
others go on. Prints markdown and writes JSON. `python -m bench.autotune_gpu` comes first on a new
architecture.
"""

from __future__ import annotations

import argparse
import datetime
import json
import math
import os
import subprocess
import sys
import tempfile
import time
from collections.abc import Callable, Sequence
from dataclasses import asdict
from pathlib import Path
from typing import Final

import torch

from baton_kernels.triton.kernel_configs import read_table
from baton_kernels.triton.kernel_variant import device_arch
from bench.command_line import make_parser
from bench.gpu.attention import correctness, decode, prefill
from bench.gpu.handover import handover
from bench.gpu.layers import layers
from bench.gpu.measures import Setup, Table
from bench.gpu.models import large_model, small_model
from bench.gpu.quantized import quantized

PARTS: Final[dict[str, tuple[Callable[[Setup], list[Table]], float]]] = {
    "correctness": (correctness, 1.0),
    "decode": (decode, 2.0),
    "prefill": (prefill, 2.0),
    "layers": (layers, 1.0),
    "quantized": (quantized, 1.0),
    "small-model": (small_model, 1.0),
    "large-model": (large_model, 2.0),
    "handover": (handover, 1.0),
}
"""The function that measures each part, and its share of the time."""
OUR_SHARE: Final = 0.6
"""Share of a part's time; the rest is for a peer that has just begun."""
DTYPES: Final = {"bfloat16": torch.bfloat16, "float16": torch.float16, "float32": torch.float32}


def parse_arguments(arguments: Sequence[str] | None = None) -> argparse.Namespace:
    parser = make_parser(__doc__)
    parser.add_argument("--parts", nargs="+", choices=PARTS, default=list(PARTS))
    parser.add_argument("--minutes", type=float, default=9.5, help="time for all parts together")
    parser.add_argument("--device", choices=("cuda", "cpu"), default="cuda")
    parser.add_argument("--dtype", choices=DTYPES, default="bfloat16")
    parser.add_argument(
        "--quick", action="store_true", help="tiny shapes: that everything runs, not how fast"
    )
    parser.add_argument("--out", type=Path, default=Path("gpu.json"), help="file for the JSON")
    parser.add_argument("--run-part", choices=PARTS, help=argparse.SUPPRESS)
    parser.add_argument("--seconds", type=float, default=math.inf, help=argparse.SUPPRESS)
    options = parser.parse_args(arguments)
    if options.device == "cuda" and not torch.cuda.is_available():
        parser.error("device is 'cuda' and torch sees no GPU; allowed: cpu")
    return options


def make_setup(options: argparse.Namespace) -> Setup:
    return Setup(
        device=torch.device(options.device),
        dtype=DTYPES[options.dtype],
        is_quick=options.quick,
        ends_s=time.monotonic() + OUR_SHARE * options.seconds,
    )


def time_limits(parts: Sequence[str], minutes: float) -> dict[str, float]:
    """Seconds for each part: the whole time, divided by their shares."""
    whole = sum(PARTS[name][1] for name in parts)
    return {name: 60 * minutes * PARTS[name][1] / whole for name in parts}


def run_part(name: str, setup: Setup) -> list[Table]:
    """Measure one part in this process."""
    torch.manual_seed(0)
    return PARTS[name][0](setup)


def run_in_process(name: str, limit_s: float, arguments: Sequence[str]) -> dict[str, object]:
    """Measure one part in a process of its own: its tables, or the error that it ended with."""
    start = time.monotonic()
    with tempfile.TemporaryDirectory() as folder:
        out = Path(folder, "tables.json")
        own = ["--run-part", name, "--seconds", str(limit_s), "--out", str(out)]
        command = [sys.executable, "-m", "bench.gpu", *arguments, *own]
        try:
            done = subprocess.run(command, capture_output=True, text=True, timeout=limit_s)
        except subprocess.TimeoutExpired:
            return {"error": f"not done within {limit_s:.0f} s", "seconds": limit_s}
        took = {"seconds": round(time.monotonic() - start, 1)}
        if done.returncode != 0:
            return {"error": (done.stderr.strip().splitlines() or [f"exit {done.returncode}"])[-1], **took}
        return {"tables": json.loads(out.read_text()), **took}


def describe(options: argparse.Namespace) -> dict[str, str]:
    """Date, device and command: what a figure needs beside it."""
    name = torch.cuda.get_device_name() if options.device == "cuda" else "CPU"
    table = read_table()
    tuned = table.get(str(device_arch()), table["default"])["measured"]
    return {
        "date": datetime.date.today().isoformat(),
        "device": name,
        "torch": torch.__version__,
        "configurations": tuned,
        "command": " ".join(["python", "-m", "bench.gpu", *sys.argv[1:]]),
    }


def markdown(result: dict[str, object]) -> str:
    """One part's tables, or why there are none."""
    if "error" in result:
        return f"failed after {result['seconds']} s: {result['error']}\n"
    tables = result["tables"]
    assert isinstance(tables, list)
    return "\n".join(Table(**{**table, "columns": tuple(table["columns"])}).markdown() for table in tables)


def main() -> None:
    options = parse_arguments()
    if options.run_part is not None:
        tables = run_part(options.run_part, make_setup(options))
        options.out.write_text(json.dumps([asdict(table) for table in tables]))
        return
    facts = describe(options)
    print("\n".join(f"{name}: {fact}" for name, fact in facts.items()), flush=True)
    results: dict[str, dict[str, object]] = {}
    os.environ.setdefault("PYTORCH_CUDA_ALLOC_CONF", "expandable_segments:True")
    for name, limit_s in time_limits(options.parts, options.minutes).items():
        shared = ["--device", options.device, "--dtype", options.dtype, *["--quick"] * options.quick]
        results[name] = run_in_process(name, limit_s, shared)
        print(f"\n## {name}\n\n{markdown(results[name])}", flush=True)
        options.out.write_text(json.dumps({**facts, "parts": results}, indent=2))


if __name__ == "__main__":
    main()
