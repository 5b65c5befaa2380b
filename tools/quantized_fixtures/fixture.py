"""Writes what a fixture holds beside the checkpoint: the producer, its dequantized weights, greedy tokens."""

from __future__ import annotations

import argparse
import hashlib
import json
import shutil
from collections.abc import Callable, Mapping
from dataclasses import asdict, dataclass
from importlib.metadata import version
from pathlib import Path
from typing import Any, Final

import torch
from torch import Tensor

from tools.quantized_fixtures.base_models import SEED, VOCAB_SIZE

NUM_SAMPLES: Final = 8
NUM_PROMPTS: Final = 8
PROMPT_LEN: Final = 32
NUM_TOKENS: Final = 12
# Everything else that producers save, such as tokenizers, recipes and generation settings, is deleted.
KEPT: Final = frozenset(
    {
        "config.json",
        "model.safetensors",
        "quantize_config.json",
        "quantization_config.json",
        "hf_quant_config.json",
    }
)


@dataclass(frozen=True, slots=True)
class Greedy:
    """Greedy tokens after one prompt, and how clear they are.

    `min_gap` is the smallest difference between the two largest logits; `dtype` is that of the model which
    computed them, and `activations` says how its inputs of quantized layers were rounded.
    """

    prompt: list[int]
    tokens: list[int]
    min_gap: float
    dtype: str
    activations: str


@torch.inference_mode()
def greedy_tokens(model: torch.nn.Module, activations: str) -> Greedy:
    """Return the clearest greedy continuation of a few random prompts, each run whole, without a KV cache."""
    generator = torch.Generator().manual_seed(SEED)
    prompts = torch.randint(3, VOCAB_SIZE, (NUM_PROMPTS, PROMPT_LEN), generator=generator).tolist()
    results = []
    for prompt in prompts:
        tokens: list[int] = []
        gap = float("inf")
        for _ in range(NUM_TOKENS):
            logits = model(torch.tensor([prompt + tokens]), use_cache=False).logits[0, -1].float()
            largest = logits.topk(2)
            gap = min(gap, float(largest.values[0] - largest.values[1]))
            tokens.append(int(largest.indices[0]))
        dtype = str(next(model.parameters()).dtype).removeprefix("torch.")
        results.append(Greedy(prompt, tokens, round(gap, 6), dtype, activations))
    return max(results, key=lambda result: result.min_gap)


def _describe(weight: Tensor) -> dict[str, Any]:
    # A sum with zero makes negative zeros positive: formats without a sign of zero must give the same bytes.
    values = weight.detach().cpu().float().contiguous() + 0.0
    flat = values.flatten()
    positions = [index * (flat.numel() - 1) // (NUM_SAMPLES - 1) for index in range(NUM_SAMPLES)]
    return {
        "shape": list(values.shape),
        "sha256": hashlib.sha256(values.numpy().tobytes()).hexdigest(),
        "samples": flat[positions].tolist(),
    }


def write_expected(
    folder: Path,
    package: str,
    scheme: str,
    weights: Mapping[str, Tensor],
    greedy: Greedy | None = None,
    inputs: Mapping[str, Any] | None = None,
) -> None:
    """Write expected.json beside a checkpoint and delete what no reader needs.

    Args:
        folder: The checkpoint's folder.
        package: The distribution that wrote the checkpoint; its installed version is recorded.
        scheme: The producer's name for the quantization.
        weights: The library's dequantized weights by layer name, [out features, in features], all in the
            dtype to which the library rounds.
        greedy: Greedy tokens of the library's model.
        inputs: A layer's name, `values` of inputs, and those to which the library rounds them.

    Raises:
        ValueError: if a weight is missing, or weights differ in dtype.
    """
    dtypes = {str(weight.dtype).removeprefix("torch.") for weight in weights.values()}
    if len(dtypes) != 1:
        raise ValueError(
            f"dtypes of the dequantized weights of {folder.name} are {sorted(dtypes)}; allowed: one"
        )
    expected: dict[str, Any] = {
        "producer": {
            "package": package,
            "version": version(package),
            "scheme": scheme,
            "torch": torch.__version__,
            "transformers": version("transformers"),
        },
        "dtype": dtypes.pop(),
        "weights": {name: _describe(weight) for name, weight in sorted(weights.items())},
    }
    if greedy is not None:
        expected["greedy"] = asdict(greedy)
    if inputs is not None:
        expected["inputs"] = dict(inputs)
    (folder / "expected.json").write_text(_compact(expected))
    for path in folder.iterdir():
        if path.is_dir():
            shutil.rmtree(path)
        elif path.name not in KEPT | {"expected.json"} and path.suffix not in {".gguf", ".bin"}:
            path.unlink()


def _compact(expected: dict[str, Any]) -> str:
    """Return JSON with one line per weight and per setting."""
    lines = ["{"]
    for name, value in expected.items():
        if isinstance(value, dict):
            entries = [f"    {json.dumps(key)}: {json.dumps(entry)}" for key, entry in value.items()]
            lines.append(f"  {json.dumps(name)}: {{\n" + ",\n".join(entries) + "\n  },")
        else:
            lines.append(f"  {json.dumps(name)}: {json.dumps(value)},")
    lines[-1] = lines[-1].removesuffix(",")
    return "\n".join([*lines, "}", ""])


def produce(makers: Mapping[str, Callable[[Path], None]]) -> None:
    """Make the fixtures of one producer, each in a folder of its own: `OUTPUT [NAME ...]`."""
    parser = argparse.ArgumentParser()
    parser.add_argument("output", type=Path)
    parser.add_argument("names", nargs="*", choices=[*makers, []])
    arguments = parser.parse_args()
    torch.set_num_threads(2)
    for name in arguments.names or makers:
        folder = arguments.output / name
        shutil.rmtree(folder, ignore_errors=True)
        folder.mkdir(parents=True)
        makers[name](folder)
        print(f"made {name}", flush=True)
