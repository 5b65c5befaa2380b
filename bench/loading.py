"""Time and memory of loading a model's weights, beside reading their files and beside what is kept of them.

    python -m bench.peer.model /tmp/model
    python -m bench.peer.quantized_model /tmp/model /tmp/model-gptq --format gptq
    python -m bench.loading /tmp/model /tmp/model-gptq

Each folder is loaded in a process of its own, after its files were read once, so that they are in memory.
*kept* is the size of the weights that the engine keeps, *peak* the most that the process took above what it
took before, *limit* what is kept and the largest layer of the file.
"""

from __future__ import annotations

import argparse
import json
import os
import subprocess
import sys
import time
from pathlib import Path
from typing import Final

from baton.config.engine_args import BUNDLED_MODEL
from baton_engine.checkpoint.weight_files import read_entries
from bench.command_line import make_parser
from bench.processes import kilobytes

MIB: Final = 1 << 20
CHUNK_BYTES: Final = 16 << 20
COLUMNS: Final = ("file MiB", "read s", "load s", "kept MiB", "peak MiB", "limit MiB")


def parse_arguments() -> argparse.Namespace:
    parser = make_parser(__doc__)
    parser.add_argument("models", type=Path, nargs="+", help="folders")
    parser.add_argument("--dtype", default="bfloat16")
    parser.add_argument("--quantization", default=None, help="while they are loaded")
    parser.add_argument("--repeats", type=int, default=3, help="processes for each; the fastest counts")
    parser.add_argument("--in-process", action="store_true", help=argparse.SUPPRESS)
    return parser.parse_args()


def read_files(folder: Path) -> tuple[int, float]:
    """Return the bytes of a folder's weights, and the seconds in which they are read."""
    num_bytes, buffer = 0, bytearray(CHUNK_BYTES)
    began = time.perf_counter()
    for path in sorted(folder.glob("*.safetensors")):
        with path.open("rb", buffering=0) as file:
            while num_read := file.readinto(buffer):
                num_bytes += num_read
    return num_bytes, time.perf_counter() - began


def largest_layer(folder: Path) -> int:
    """Return the bytes of the largest layer: the tensors whose names differ in their last part alone."""
    sizes: dict[str, int] = {}
    for path in folder.glob("*.safetensors"):
        for name, entry in read_entries(path).items():
            layer = name.rpartition(".")[0]
            sizes[layer] = sizes.get(layer, 0) + entry.num_bytes
    return max(sizes.values())


def load(arguments: argparse.Namespace) -> None:
    """Load one folder in this process and print what it took."""
    from baton_engine.engine_settings import EngineSettings
    from baton_engine.loading import load_model

    (folder,) = arguments.models
    settings = EngineSettings(model=str(folder), dtype=arguments.dtype, quantization=arguments.quantization)
    load_model(EngineSettings(model=BUNDLED_MODEL))  # builds kernels
    before, began = kilobytes(os.getpid(), "status")["VmRSS"] << 10, time.perf_counter()
    Path("/proc/self/clear_refs").write_text("5")  # the peak begins anew
    loaded = load_model(settings)
    seconds, peak = time.perf_counter() - began, (kilobytes(os.getpid(), "status")["VmHWM"] << 10) - before
    print(json.dumps({"seconds": seconds, "peak": peak, "kept": loaded.weight_bytes}))


def measure(folder: Path, arguments: argparse.Namespace) -> list[float]:
    """Return the figures of one folder in the order of `COLUMNS`."""
    num_bytes, _ = read_files(folder)
    command = [sys.executable, "-m", "bench.loading", str(folder), "--in-process", "--dtype", arguments.dtype]
    if arguments.quantization:
        command += ["--quantization", arguments.quantization]
    runs = []
    for _ in range(arguments.repeats):
        _, read_s = read_files(folder)
        done = subprocess.run(command, check=True, stdout=subprocess.PIPE, text=True)
        runs.append((json.loads(done.stdout.splitlines()[-1]), read_s))
    fastest, _ = min(runs, key=lambda run: run[0]["seconds"])
    peak, kept = min(run["peak"] for run, _ in runs), fastest["kept"]
    limit = kept + largest_layer(folder)
    sizes = [size / MIB for size in (kept, peak, limit)]
    return [num_bytes / MIB, min(read_s for _, read_s in runs), fastest["seconds"], *sizes]


def compare(arguments: argparse.Namespace) -> None:
    """Print a table of the folders."""
    widest = max(len(folder.name) for folder in arguments.models)
    print(" " * widest + "".join(f"{name:>11}" for name in COLUMNS))
    for folder in arguments.models:
        figures = measure(folder, arguments)
        print(f"{folder.name:{widest}}" + "".join(f"{figure:11.2f}" for figure in figures))


def main() -> None:
    arguments = parse_arguments()
    if arguments.in_process:
        load(arguments)
    else:
        compare(arguments)


if __name__ == "__main__":
    main()
