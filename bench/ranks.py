"""A model in one process, over ranks and in stages, on the same cores: prompt, step, rate, start, memory.

    python -m bench.ranks --model /tmp/model --dtype bfloat16 --sizes 1x1 2x1 1x2
    python -m bench.ranks --model /tmp/model --dtype bfloat16 --peer /tmp/peer --engines vllm
    python -m bench.ranks --model /tmp/model --sizes 1x1 1x2 --prompt 1024 --chunk 256

Sizes are tensor ranks x pipeline stages. *first* is the time to the first token of one sequence, whose prompt
is computed in chunks of `--chunk` tokens; *step* the median time between its tokens; *tokens/s*
the rate of several sequences at once, prompts included, which the stages of a pipeline divide; *start* until
the model is loaded; *memory* that of the largest process and of all of them, shared pages divided among those
that have them. The bundled model, which is the default, computes little, so that the difference of
two steps is about what ranks cost: telling them of a step, and what they exchange.
"""

from __future__ import annotations

import argparse
import json
import statistics
import tempfile
from collections.abc import Sequence
from itertools import pairwise
from pathlib import Path
from typing import Final

from baton.config.engine_args import BUNDLED_MODEL
from bench.command_line import make_parser
from bench.peer.engines import RUN_WITHIN_S, Engines

MIB: Final = 1 << 20
COLUMNS: Final = ("first ms", "step ms", "tokens/s", "start s", "largest MiB", "all MiB")
WARM_TOKENS: Final = 8
KV_BYTES: Final = 128 * MIB


def parse_arguments() -> argparse.Namespace:
    parser = make_parser(__doc__)
    parser.add_argument(
        "--model", type=Path, default=Path(BUNDLED_MODEL), help="folder; default: the bundled model"
    )
    parser.add_argument("--dtype", choices=("float32", "bfloat16"), default="bfloat16")
    parser.add_argument("--sizes", nargs="+", default=["1x1", "2x1", "1x2"])
    parser.add_argument("--engines", nargs="+", choices=("baton", "vllm"), default=["baton"])
    parser.add_argument("--peer", type=Path, default=Path(), help="folder of make_environment.sh, for vllm")
    parser.add_argument("--prompt", type=int, default=64, help="tokens")
    parser.add_argument("--chunk", type=int, default=2048, help="tokens of a step at most")
    parser.add_argument("--tokens", type=int, default=128, help="tokens after the prompt")
    parser.add_argument("--sequences", type=int, default=8, help="sequences at once for the rate")
    parser.add_argument("--repeats", type=int, default=3, help="processes of each; medians are printed")
    parser.add_argument("--threads", type=int, default=2, help="cores, shared out among the ranks")
    return parser.parse_args()


def measure(engines: Engines, engine: str, size: str, arguments: argparse.Namespace) -> list[float]:
    """Return the figures of one engine's process, in the order of `COLUMNS`."""
    tensor, pipeline = map(int, size.split("x"))
    flags = ["--kv-bytes", str(KV_BYTES), "--tensor-parallel-size", str(tensor), "--pipeline-parallel-size"]
    flags += [str(pipeline), "--engine-arguments", json.dumps({"max_num_batched_tokens": arguments.chunk})]
    cores = list(map(str, range(arguments.threads)))
    each = max(1, len(cores) // (tensor * pipeline))
    bound = "|".join(",".join(cores[at : at + each]) for at in range(0, len(cores), each))
    variables = {"VLLM_CPU_OMP_THREADS_BIND": bound} if engine == "vllm" else {}
    with engines.offline(engine, *flags, bound=variables) as process:
        process.wait_until_ready(RUN_WITHIN_S)
        start_s = process.age_s
        starts = range(10, 10 + arguments.sequences)
        prompts = [list(range(start, start + arguments.prompt)) for start in starts]
        command = {"prompts": prompts, "num_tokens": WARM_TOKENS, "reads_cache": False}
        process.ask(command, RUN_WITHIN_S)
        command["num_tokens"] = arguments.tokens
        answer = process.ask({**command, "prompts": prompts[:1]}, RUN_WITHIN_S)
        together = process.ask(command, RUN_WITHIN_S)
        sizes = process.process_bytes()
    rate = len(prompts) * arguments.tokens / together["wall_s"]
    times_s = answer["times_s"][0]
    return [1000 * times_s[0], 1000 * step_s(times_s), rate, start_s, sizes[0] / MIB, sum(sizes) / MIB]


def step_s(times_s: Sequence[float]) -> float:
    return statistics.median(after - before for before, after in pairwise(times_s))


def main() -> None:
    arguments = parse_arguments()
    with tempfile.TemporaryDirectory(prefix="baton-bench-ranks-") as folder:
        engines = Engines(
            model=arguments.model, peer_folder=arguments.peer, dtype=arguments.dtype, logs=Path(folder)
        )
        print(f"{'':12}" + "".join(f"{name:>13}" for name in COLUMNS))
        for engine in arguments.engines:
            for size in arguments.sizes:
                runs = [measure(engines, engine, size, arguments) for _ in range(arguments.repeats)]
                figures = [statistics.median(column) for column in zip(*runs, strict=True)]
                cells = "".join(f"{figure:13.3f}" for figure in figures)
                print(f"{f'{engine} {size}':12}{cells}", flush=True)


if __name__ == "__main__":
    main()
