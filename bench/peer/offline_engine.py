"""One engine in a process of its own: computes the given prompts, and reports the time of each token.

Runs in the engine's environment, so it imports the standard library and that engine alone. Requests come, and
answers go, as JSON lines over the socket `--control-fd`; the end of the former ends the process.
"""

from __future__ import annotations

import argparse
import json
import socket
import time
from collections.abc import Sequence
from importlib import import_module
from itertools import cycle
from typing import Any, Protocol

from bench.command_line import make_parser


class Engine(Protocol):
    """An engine under comparison."""

    def run(
        self, prompts: list[list[int]], num_tokens: int, *, reads_cache: bool, adapters: Sequence[str] = ()
    ) -> dict[str, Any]:
        """Continue all prompts at once by exactly `num_tokens` of the likeliest tokens.

        Requests have LoRA adapters, which are folders, in turn.

        Returns:
            `wall_s`, and for each prompt `times_s` of its tokens since the start, and `token_ids`.
        """
        ...


class SteppingEngine:
    """Baton or vLLM: `LLM`, and the engine behind it, have the same names."""

    def __init__(self, args: argparse.Namespace) -> None:
        self._package = import_module(args.engine)
        self._llm = self._package.LLM(
            model=args.model,
            dtype=args.dtype,
            kv_cache_memory_bytes=args.kv_bytes,
            tensor_parallel_size=args.tensor_parallel_size,
            pipeline_parallel_size=args.pipeline_parallel_size,
            **args.engine_arguments,
        )
        self._num_runs = 0
        self._adapter_numbers: dict[str, int] = {}

    def run(
        self, prompts: list[list[int]], num_tokens: int, *, reads_cache: bool, adapters: Sequence[str] = ()
    ) -> dict[str, Any]:
        cache = {} if reads_cache else {"skip_reading_prefix_cache": True}
        params = self._package.SamplingParams(
            temperature=0.0, max_tokens=num_tokens, ignore_eos=True, **cache
        )
        self._num_runs += 1
        names = [f"{self._num_runs}-{number}" for number in range(len(prompts))]
        times: dict[str, list[float]] = {name: [] for name in names}
        tokens: dict[str, list[int]] = {}
        engine = self._llm.llm_engine
        start = time.perf_counter()
        lora = [self._lora_request(folder) for folder in adapters] or [None]
        for name, prompt, adapter in zip(names, prompts, cycle(lora), strict=False):
            engine.add_request(name, {"prompt_token_ids": prompt}, params, lora_request=adapter)
        while engine.has_unfinished_requests():
            for output in engine.step():
                name = output.request_id
                tokens[name] = list(output.outputs[0].token_ids)
                now = time.perf_counter() - start
                times[name] += [now] * (len(tokens[name]) - len(times[name]))
        return {
            "wall_s": time.perf_counter() - start,
            "times_s": [times[name] for name in names],
            "token_ids": [tokens[name] for name in names],
        }

    def _lora_request(self, folder: str) -> Any:
        number = self._adapter_numbers.setdefault(folder, 1 + len(self._adapter_numbers))
        module = import_module("vllm.lora.request") if self._package.__name__ == "vllm" else self._package
        return module.LoRARequest(f"adapter-{number}", number, folder)


class TransformersEngine:
    """`generate` of Transformers over a batch of prompts of one length."""

    def __init__(self, args: argparse.Namespace) -> None:
        import torch
        from transformers import AutoModelForCausalLM

        self._torch = torch
        self._model = AutoModelForCausalLM.from_pretrained(
            args.model, dtype=getattr(torch, args.dtype)
        ).eval()
        self._model.generation_config.eos_token_id = None

    def run(
        self, prompts: list[list[int]], num_tokens: int, *, reads_cache: bool, adapters: Sequence[str] = ()
    ) -> dict[str, Any]:
        assert not adapters, "only the other engines have them"
        ids = self._torch.tensor(prompts)
        clock = _Clock()
        start = time.perf_counter()
        output = self._model.generate(
            ids,
            attention_mask=self._torch.ones_like(ids),
            max_new_tokens=num_tokens,
            do_sample=False,
            streamer=clock,
        )
        return {
            "wall_s": time.perf_counter() - start,
            "times_s": [[at - start for at in clock.times[1:]]] * len(prompts),
            "token_ids": output[:, ids.shape[1] :].tolist(),
        }


class _Clock:
    """A streamer of Transformers that keeps the time of each call: the prompts, then each token."""

    def __init__(self) -> None:
        self.times: list[float] = []

    def put(self, _: Any) -> None:
        self.times.append(time.perf_counter())

    def end(self) -> None:
        pass


def main() -> None:
    parser = make_parser(__doc__)
    parser.add_argument("--engine", required=True, choices=("baton", "vllm", "transformers"))
    parser.add_argument("--model", required=True)
    parser.add_argument("--dtype", required=True)
    parser.add_argument("--kv-bytes", required=True, type=int)
    parser.add_argument("--tensor-parallel-size", type=int, default=1)
    parser.add_argument("--pipeline-parallel-size", type=int, default=1)
    parser.add_argument(
        "--engine-arguments", type=json.loads, default={}, help="more arguments of LLM, as JSON"
    )
    parser.add_argument("--control-fd", required=True, type=int)
    args = parser.parse_args()
    make = TransformersEngine if args.engine == "transformers" else SteppingEngine
    with socket.socket(fileno=args.control_fd) as control, control.makefile("rw") as lines:
        engine: Engine = make(args)
        print(json.dumps({"is_ready": True}), file=lines, flush=True)
        while line := lines.readline():
            print(json.dumps(engine.run(**json.loads(line))), file=lines, flush=True)


if __name__ == "__main__":
    main()
