"""Asks one engine for every set of parameters, in a process and an environment of its own; writes JSON.

Imports the standard library and that engine alone.
"""

from __future__ import annotations

import json
import sys
from collections.abc import Mapping
from importlib import import_module
from pathlib import Path
from typing import Any, Final

from bench.command_line import make_parser
from bench.peer.differences import is_error
from bench.peer.parameter_sets import PARAMETER_SETS, PROMPTS, REFUSED_SETS

_DEFAULTS: Final = {"temperature": 0.0, "max_tokens": 16}
_NESTED: Final = {
    "structured_outputs": "StructuredOutputsParams",
    "repetition_detection": "RepetitionDetectionParams",
}


class ParameterRun:
    """An engine's answers to the prompts, one set of parameters after the other."""

    def __init__(self, engine: str, model: str) -> None:
        package = import_module(engine)
        self._types = import_module(f"{engine}.sampling_params")
        self._llm = package.LLM(
            model=model,
            dtype="float32",
            kv_cache_memory_bytes=2**28,
            max_model_len=256,
            enforce_eager=True,
            enable_prefix_caching=False,
        )

    def answers(self, given: Mapping[str, Any]) -> Any:
        """Each prompt's outputs, or the kind of error."""
        params = {**_DEFAULTS, **given}
        for name, kind in _NESTED.items():
            if name in params:
                params[name] = getattr(self._types, kind)(**params[name])
        try:
            made = self._types.SamplingParams(**params)
            outputs = self._llm.generate(list(PROMPTS), made, use_tqdm=False)
        except Exception as error:
            return {"error": f"{type(error).__name__}: {error}"[:300]}
        return [_output(one) for one in outputs]


def _output(output: Any) -> dict[str, Any]:
    return {
        "prompt_token_ids": list(output.prompt_token_ids),
        "prompt_logprobs": _positions(output.prompt_logprobs),
        "outputs": [
            {
                "index": one.index,
                "text": one.text,
                "token_ids": list(one.token_ids),
                "cumulative_logprob": one.cumulative_logprob,
                "logprobs": _positions(one.logprobs),
                "finish_reason": one.finish_reason,
                "stop_reason": one.stop_reason,
            }
            for one in output.outputs
        ],
    }


def _positions(logprobs: Any) -> Any:
    """For each position its tokens with log-probability, rank and text."""
    if logprobs is None:
        return None
    return [
        None
        if position is None
        else {
            str(token): [entry.logprob, entry.rank, entry.decoded_token] for token, entry in position.items()
        }
        for position in logprobs
    ]


def main() -> None:
    parser = make_parser(__doc__)
    parser.add_argument("--engine", required=True, choices=("baton", "vllm"))
    parser.add_argument("--model", required=True)
    parser.add_argument("--output", required=True, type=Path)
    args = parser.parse_args()
    run = ParameterRun(args.engine, args.model)
    found = {name: run.answers(params) for name, params in (PARAMETER_SETS | REFUSED_SETS).items()}
    if is_error(last := run.answers({})):
        sys.exit(f"the engine serves no more: {last['error']}")
    args.output.write_text(json.dumps(found))


if __name__ == "__main__":
    main()
