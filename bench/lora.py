"""Throughput with LoRA adapters beside the base model alone:

    python -m bench.lora [--model FOLDER] [--adapters 1 8] [--rank 16] [--peer FOLDER]

A process serves the same prompts in one batch with every number of adapters; the best of several rounds
counts. A row has output tokens per second, and their share of what the base model alone does in that process.
With `--peer`, the folder of make_environment.sh, vLLM on CPU comes after Baton.
"""

from __future__ import annotations

import argparse
import json
import tempfile
from collections.abc import Sequence
from pathlib import Path
from typing import Final

import torch
from safetensors.torch import save_file

from baton.config.engine_args import BUNDLED_MODEL
from baton_engine.checkpoint.weight_files import find_weight_files, read_entries
from bench.command_line import make_parser
from bench.peer.engine_process import OfflineEngine
from bench.peer.engines import RUN_WITHIN_S, Engines

_LAYERS: Final = ("q_proj", "k_proj", "v_proj", "o_proj", "gate_proj", "up_proj", "down_proj")
"""Linear layers that adapters change: those of Llama and the families built like it."""


def write_adapter(folder: Path, model: Path, rank: int, seed: int) -> str:
    """Write a random adapter of every linear layer of a model folder."""
    generator, tensors = torch.Generator().manual_seed(seed), {}
    for path in find_weight_files(model):
        for name, entry in read_entries(path).items():
            layer = name.removesuffix(".weight")
            if layer.rpartition(".")[2] in _LAYERS:
                out_size, in_size = entry.shape
                prefix = f"base_model.model.{layer}"
                down, up = (rank, in_size), (out_size, rank)
                tensors[f"{prefix}.lora_A.weight"] = torch.randn(down, generator=generator) / in_size**0.5
                tensors[f"{prefix}.lora_B.weight"] = torch.randn(up, generator=generator) / rank**0.5
    folder.mkdir()
    config = {"peft_type": "LORA", "r": rank, "lora_alpha": rank, "target_modules": _LAYERS}
    (folder / "adapter_config.json").write_text(json.dumps(config))
    save_file(tensors, folder / "adapter_model.safetensors")
    return str(folder)


def main() -> None:
    """Print one row for each engine and number of adapters."""
    args = _parse()
    vocab_size = json.loads((args.model / "config.json").read_text())["vocab_size"]
    shape = (1 + args.rounds, args.requests, args.prompt_tokens)
    prompts = torch.randint(vocab_size, shape, generator=torch.Generator().manual_seed(0)).tolist()
    with tempfile.TemporaryDirectory(prefix="baton-bench-lora-") as made:
        most = max(args.adapters)
        folders = [write_adapter(Path(made) / f"{n}", args.model, args.rank, n) for n in range(most)]
        engines = Engines(
            model=args.model, peer_folder=args.peer or Path(), dtype=args.dtype, logs=Path(made)
        )
        lora = {"enable_lora": True, "max_loras": most, "max_lora_rank": args.rank}
        print(f"{'':6} {'adapters':>8} {'tokens/s':>9} {'of the base':>11}")
        for name in ("baton", "vllm") if args.peer else ("baton",):
            with engines.offline(name, "--engine-arguments", json.dumps(lora)) as engine:
                engine.wait_until_ready(RUN_WITHIN_S)
                base = _rate(engine, args.output_tokens, prompts, ())
                print(f"{name:6} {0:8} {base:9.1f}", flush=True)
                for number in args.adapters:
                    rate = _rate(engine, args.output_tokens, prompts, folders[:number])
                    print(f"{name:6} {number:8} {rate:9.1f} {rate / base:11.2f}", flush=True)


def _rate(
    engine: OfflineEngine, num_tokens: int, rounds: Sequence[Sequence[list[int]]], folders: Sequence[str]
) -> float:
    """Return output tokens per second of the best round of prompts; the first one loads the adapters."""
    command = {"num_tokens": num_tokens, "reads_cache": False, "adapters": folders}
    first, *others = rounds
    engine.ask({**command, "num_tokens": 1, "prompts": first}, RUN_WITHIN_S)
    seconds = [engine.ask({**command, "prompts": prompts}, RUN_WITHIN_S)["wall_s"] for prompts in others]
    return len(first) * num_tokens / min(seconds)


def _parse() -> argparse.Namespace:
    parser = make_parser(__doc__)
    parser.add_argument("--model", type=Path, default=Path(BUNDLED_MODEL))
    parser.add_argument("--adapters", type=int, nargs="+", default=[1, 8])
    parser.add_argument("--rank", type=int, default=16)
    parser.add_argument("--requests", type=int, default=16)
    parser.add_argument("--prompt-tokens", type=int, default=32)
    parser.add_argument("--output-tokens", type=int, default=64)
    parser.add_argument("--rounds", type=int, default=3)
    parser.add_argument("--dtype", default="bfloat16")
    parser.add_argument("--peer", type=Path, help="folder of make_environment.sh, for vLLM")
    return parser.parse_args()


if __name__ == "__main__":
    main()
