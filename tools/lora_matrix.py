"""Compares LoRA adapters of the tests' small models with their deltas merged into Transformers' weights.

Each family serves its adapters and the base model in one batch, in every arrangement, in float32, and the
tokens are compared one by one:

    python -m tools.lora_matrix [--variants llama qwen3] [--arrangements together split] [--adapters 8]

Exits with 1 if any token differs.
"""

from __future__ import annotations

import argparse
import sys
import tempfile
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any, Final

from baton import LLM, LoRARequest, SamplingParams, TokensPrompt
from tests.adapters import MergedReference, make_adapter
from tests.models import VARIANTS, make_model
from tests.reference import Reference

ARRANGEMENTS: Final[Mapping[str, Mapping[str, Any]]] = {
    "together": {},
    "torch": {"cpu_kernels": "torch"},
    "eager": {"enforce_eager": True},
    "batch-invariant": {"batch_invariant": True},
    "split": {"prefill_workers": 1, "decode_workers": 1, "split": "always"},
    "two ranks": {"tensor_parallel_size": 2},
    "two stages": {"pipeline_parallel_size": 2},
    "one at a time": {"max_loras": 1},
}
NUM_TOKENS: Final = 16
PROMPT_LENS: Final = (5, 40)
Case = tuple[LoRARequest | None, tuple[int, ...], list[int]]


def draw(folder: Path, variant: str, num_adapters: int) -> tuple[Path, list[Case]]:
    """Return a model folder, and prompts of the base and of each adapter with Transformers' tokens."""
    model = make_model(folder / "model", variant, max_position_embeddings=256)
    cases: list[Case] = []
    for number in range(num_adapters + 1):
        request, reference = None, Reference(model)
        if number:
            path = make_adapter(
                folder / f"adapter-{number}",
                model,
                seed=number,
                rank=(4, 8, 3)[number % 3],
                is_everywhere=number % 2 == 0,
                use_rslora=number % 3 == 0,
            )
            request = LoRARequest(f"adapter-{number}", number, str(path))
            reference = MergedReference(model, path)
        wanted = [(length, (7,)) for length in PROMPT_LENS]
        cases += [(request, *drawn) for drawn in reference.draw_all_greedy(wanted, NUM_TOKENS)]
    return model, cases


def compare(model: Path, cases: Sequence[Case], options: Mapping[str, Any]) -> int:
    """Serve all cases in one batch; returns how many have other tokens than Transformers."""
    num_adapters = len({request.lora_name for request, _, _ in cases if request})
    given = {"max_loras": num_adapters, "dtype": "float32", "enable_lora": True, **options}
    with LLM(str(model), kv_cache_memory_bytes=64 << 20, skip_tokenizer_init=True, **given) as llm:
        outputs = llm.generate(
            [TokensPrompt(prompt_token_ids=prompt) for _, prompt, _ in cases],
            SamplingParams(temperature=0.0, max_tokens=NUM_TOKENS, ignore_eos=True, detokenize=False),
            lora_request=[request for request, _, _ in cases],
            use_tqdm=False,
        )
    return sum(list(out.outputs[0].token_ids) != case[2] for out, case in zip(outputs, cases, strict=True))


def main() -> int:
    """Print a line for each family and arrangement."""
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--variants", nargs="+", default=list(VARIANTS), choices=list(VARIANTS))
    parser.add_argument("--arrangements", nargs="+", default=list(ARRANGEMENTS), choices=list(ARRANGEMENTS))
    parser.add_argument("--adapters", type=int, default=8)
    args = parser.parse_args()
    num_wrong = 0
    for variant in args.variants:
        with tempfile.TemporaryDirectory() as folder:
            model, cases = draw(Path(folder), variant, args.adapters)
            for name in args.arrangements:
                try:
                    wrong = compare(model, cases, ARRANGEMENTS[name])
                except Exception as error:  # a family that takes no adapters, or cannot be divided
                    print(f"{variant:24} {name:16} {type(error).__name__}: {str(error)[:120]}", flush=True)
                    continue
                num_wrong += wrong
                print(f"{variant:24} {name:16} {len(cases) - wrong} of {len(cases)} equal", flush=True)
    return 1 if num_wrong else 0


if __name__ == "__main__":
    sys.exit(main())
