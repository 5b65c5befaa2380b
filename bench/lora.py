"""Throughput with LoRA adapters beside the base model alone, in one process:

    python -m bench.lora [--model FOLDER] [--adapters 1 8] [--rank 16] [--requests 16]

Every arrangement serves the same prompts in one batch, in turns; the best of several rounds counts. Each line
has output tokens per second, and the time of the base model over that of the arrangement.
"""

from __future__ import annotations

import argparse
import json
import tempfile
import time
from collections.abc import Sequence
from pathlib import Path

import torch
from safetensors.torch import save_file

from baton import LLM, LoRARequest, SamplingParams, TokensPrompt
from baton.config.engine_args import BUNDLED_MODEL
from baton_engine.checkpoint.weight_files import find_weight_files, read_entries

_LAYERS = ("q_proj", "k_proj", "v_proj", "o_proj", "gate_proj", "up_proj", "down_proj")
"""Linear layers that adapters change: those of Llama and the families built like it."""


def write_adapter(folder: Path, model: Path, rank: int, seed: int) -> LoRARequest:
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
    (folder / "adapter_config.json").write_text(
        json.dumps({"peft_type": "LORA", "r": rank, "lora_alpha": rank})
    )
    save_file(tensors, folder / "adapter_model.safetensors")
    return LoRARequest(folder.name, seed + 1, str(folder))


def run(llm: LLM, lora: Sequence[LoRARequest | None], args: argparse.Namespace) -> float:
    """Return the seconds of one batch, request `i` with the adapter `i` modulo their number."""
    vocab_size = llm.model_config.get_vocab_size()
    generator = torch.Generator().manual_seed(args.requests)
    prompts = torch.randint(vocab_size, (args.requests, args.prompt_tokens), generator=generator).tolist()
    params = SamplingParams(temperature=0.0, max_tokens=args.output_tokens, ignore_eos=True, detokenize=False)
    llm.reset_prefix_cache()
    began_s = time.perf_counter()
    llm.generate(
        [TokensPrompt(prompt_token_ids=prompt) for prompt in prompts],
        params,
        lora_request=[lora[number % len(lora)] for number in range(args.requests)],
        use_tqdm=False,
    )
    return time.perf_counter() - began_s


def main() -> None:
    """Print one line for each number of adapters."""
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--model", default=BUNDLED_MODEL)
    parser.add_argument("--adapters", type=int, nargs="+", default=[1, 8])
    parser.add_argument("--rank", type=int, default=16)
    parser.add_argument("--requests", type=int, default=16)
    parser.add_argument("--prompt-tokens", type=int, default=32)
    parser.add_argument("--output-tokens", type=int, default=64)
    parser.add_argument("--rounds", type=int, default=3)
    parser.add_argument("--dtype", default="auto")
    args = parser.parse_args()
    most = max(args.adapters)
    with tempfile.TemporaryDirectory() as folder:
        made = [write_adapter(Path(folder) / f"a{n}", Path(args.model), args.rank, n) for n in range(most)]
        with LLM(
            args.model, enable_lora=True, max_loras=most, max_lora_rank=args.rank, dtype=args.dtype
        ) as llm:
            ways: dict[str, list[LoRARequest | None]] = {"base": [None]}
            ways |= {f"{number} adapters": list(made[:number]) for number in args.adapters}
            seconds = {name: [run(llm, lora, args) for _ in range(1)][1:] for name, lora in ways.items()}
            for _ in range(args.rounds):
                for name, lora in ways.items():
                    seconds[name].append(run(llm, lora, args))
    for name, measured in seconds.items():
        rate = args.requests * args.output_tokens / min(measured)
        print(f"{name:14} {rate:9.1f} tokens/s {min(seconds['base']) / min(measured):6.2f} of the base")


if __name__ == "__main__":
    main()
