"""The start of `baton serve` until its first token, beside reading the files, of which nothing is in memory.

    python -m bench.peer.model /tmp/model
    python -m bench.cold_start /tmp/model /tmp/model-8b [--peer FOLDER]

A folder that is not there is made, of Llama 3 8B's shape: random numbers, 15 GiB. Before each read and each
start the kernel forgets what it has cached of the files. *read* is the time to read them once, *start* that
from the command to a token over HTTP, of one worker that does both. With `--peer`, the folder of
make_environment.sh, vLLM on CPU comes after Baton.
"""

from __future__ import annotations

import argparse
import json
import os
import tempfile
from math import prod
from pathlib import Path
from typing import Final

import torch
from transformers import AutoModelForCausalLM, LlamaConfig

from bench.command_line import make_parser
from bench.loading import read_files
from bench.peer.engines import RUN_WITHIN_S, Engines
from bench.peer.server import wait_for_first_token
from tests.models import make_tokenizer

LLAMA_3_8B: Final = LlamaConfig(
    architectures=["LlamaForCausalLM"],
    dtype="bfloat16",
    vocab_size=128_256,
    hidden_size=4096,
    intermediate_size=14_336,
    num_hidden_layers=32,
    num_attention_heads=32,
    num_key_value_heads=8,
    max_position_embeddings=2048,
    bos_token_id=0,
    eos_token_id=1,
    pad_token_id=0,
)
NUM_REPEATED: Final = 1 << 22
"""Random numbers that the file repeats."""
COLUMNS: Final = ("file MiB", "read s", "start s")


def write_model(folder: Path) -> None:
    """Write a folder of that shape, without ever having all of it in memory."""
    with torch.device("meta"):
        tensors = AutoModelForCausalLM.from_config(LLAMA_3_8B).state_dict()
    header, end = {}, 0
    for name, tensor in tensors.items():
        begin, end = end, end + 2 * prod(tensor.shape)
        header[name] = {"dtype": "BF16", "shape": list(tensor.shape), "data_offsets": [begin, end]}
    text = json.dumps(header).encode()
    repeated = memoryview(torch.randn(NUM_REPEATED).mul(0.02).bfloat16().view(torch.uint8).numpy())
    folder.mkdir()
    LLAMA_3_8B.save_pretrained(folder)
    make_tokenizer(LLAMA_3_8B.vocab_size, LLAMA_3_8B.max_position_embeddings).save_pretrained(folder)
    with (folder / "model.safetensors").open("wb") as file:
        file.write(len(text).to_bytes(8, "little") + text)
        for left in range(end, 0, -len(repeated)):
            file.write(repeated[:left])


def forget_files(folder: Path) -> None:
    """Have the kernel forget what it has cached of a folder's files."""
    os.sync()
    for path in folder.iterdir():
        descriptor = os.open(path, os.O_RDONLY)
        os.posix_fadvise(descriptor, 0, 0, os.POSIX_FADV_DONTNEED)
        os.close(descriptor)


def start_s(engines: Engines, engine: str) -> float:
    """Return the seconds until a server of an engine gives its first token."""
    forget_files(engines.model)
    processes, client = engines.serve(engine)
    (process,) = processes
    with process:
        return wait_for_first_token(processes, client, RUN_WITHIN_S)


def main() -> None:
    parser = make_parser(__doc__)
    parser.add_argument("models", type=Path, nargs="+", help="folders")
    parser.add_argument("--dtype", default="bfloat16")
    parser.add_argument("--repeats", type=int, default=1)
    parser.add_argument("--peer", type=Path, help="folder of make_environment.sh, for vLLM")
    args: argparse.Namespace = parser.parse_args()
    print(f"{'':24}" + "".join(f"{name:>11}" for name in COLUMNS))
    for folder in args.models:
        if not folder.exists():
            write_model(folder)
        for name in ("baton", "vllm") if args.peer else ("baton",):
            for _ in range(args.repeats):
                forget_files(folder)
                num_bytes, read_s = read_files(folder)
                with tempfile.TemporaryDirectory(prefix="baton-bench-start-") as logs:
                    peer = args.peer or Path()
                    engines = Engines(model=folder, peer_folder=peer, dtype=args.dtype, logs=Path(logs))
                    figures = (num_bytes / 2**20, read_s, start_s(engines, name))
                cells = "".join(f"{figure:11.2f}" for figure in figures)
                print(f"{f'{folder.name}, {name}':24}{cells}", flush=True)


if __name__ == "__main__":
    main()
