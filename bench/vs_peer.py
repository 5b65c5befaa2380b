"""Baton beside vLLM on CPU and Transformers: the same model, requests, cores and type of numbers, in turns.

    bash bench/peer/make_environment.sh /tmp/peer
    python -m bench.vs_peer --peer /tmp/peer --dtype float32 --repeats 3

Each engine is a process of its own, restarted for each round and paused while another one computes. Prints
a table of medians, by how much Baton is better, and how near each engine is to what this machine reads and
multiplies at most, measured in the same run; `--output` keeps every single figure.
"""

from __future__ import annotations

import argparse
import json
import subprocess
import sys
import tempfile
from collections.abc import Callable, Iterator, Sequence
from contextlib import ExitStack, contextmanager
from dataclasses import dataclass, field, replace
from pathlib import Path
from typing import Any, Final

from bench.command_line import make_parser
from bench.peer.engine_process import EngineFailedError, EngineProcess, OfflineEngine
from bench.peer.engines import ENGINES, RUN_WITHIN_S, Engines
from bench.peer.figures import BASE, Limits, Weights, agreement, figures_of
from bench.peer.model import num_parameters, num_stored_bytes
from bench.peer.quantized_model import FORMATS
from bench.peer.scenarios import DISAGGREGATED, FIRST_TOKEN, FULL_STEP, OFFLINE, Scenario
from bench.peer.server import run, wait_for_first_token
from bench.peer.table import Results, table

START_WITHIN_S: Final = 1200.0
DTYPE_BYTES: Final = {"float32": 4, "bfloat16": 2}
WITHOUT_SERVER: Final = "transformers"
"""Has no prefix cache either."""
SCENARIOS: Final = (*OFFLINE, "start", "serve", *DISAGGREGATED)


def parse_arguments() -> argparse.Namespace:
    parser = make_parser(__doc__)
    parser.add_argument("--peer", type=Path, required=True, help="folder of make_environment.sh")
    parser.add_argument("--model", type=Path, help="folder of bench.peer.model, made if it is not there")
    parser.add_argument("--logs", type=Path, help="folder for the engines' logs; default: a temporary one")
    parser.add_argument("--dtype", choices=DTYPE_BYTES, default="float32")
    parser.add_argument("--quantization", choices=FORMATS, default="", help="format of both engines' model")
    parser.add_argument("--scenarios", nargs="+", choices=SCENARIOS, default=SCENARIOS)
    parser.add_argument("--engines", nargs="+", choices=ENGINES, default=ENGINES)
    parser.add_argument(
        "--repeats", type=int, default=3, help="rounds, in each of which every engine has a turn"
    )
    parser.add_argument("--output", type=Path, help="file for all figures, as JSON")
    return parser.parse_args()


@dataclass(slots=True, kw_only=True)
class Comparison:
    """Runs scenarios on engines in turns."""

    engines: Engines
    names: Sequence[str]
    num_rounds: int
    measure_limits: Callable[[], Limits]
    results: Results = field(default_factory=Results)

    def run_offline(self, scenarios: Sequence[str]) -> None:
        """Run scenarios of an engine without a server; each round is one of new processes."""
        for number in range(self.num_rounds):
            with ExitStack() as stack:
                running: dict[str, OfflineEngine] = {}
                for name in self.names:
                    engine = running[name] = stack.enter_context(self.engines.offline(name))
                    engine.wait_until_ready(START_WITHIN_S)
                    ask(engine, FULL_STEP, "warm-up")
                    engine.pause()
                for scenario in scenarios:
                    self.results.limits.append(self.measure_limits())
                    self._round(scenario, f"{scenario} {number}", running)

    def _round(self, name: str, seed: str, running: dict[str, OfflineEngine]) -> None:
        scenario, tokens = OFFLINE[name], {}
        for engine_name, engine in running.items():
            if engine_name == WITHOUT_SERVER and scenario.num_shared_tokens:
                continue
            engine.resume()
            if scenario.is_warm:
                ask(engine, replace(scenario, num_requests=1, num_output_tokens=1), seed)
            answer = ask(engine, scenario, seed, turn=1)
            engine.pause()
            tokens[engine_name] = answer["token_ids"]
            self._add(name, engine_name, figures_of(scenario, answer))
        self._compare_tokens(name, tokens)

    def run_starts(self) -> None:
        """Start engines over and over until their first token, and then until they have all their memory."""
        for _ in range(self.num_rounds):
            for name in self.names:
                with self.engines.offline(name) as engine:
                    engine.wait_until_ready(START_WITHIN_S)
                    ask(engine, FIRST_TOKEN, "first token")
                    self._add("start", name, {"first_token_s": engine.age_s})
                    ask(engine, FULL_STEP, "memory")
                    self._add_memory("start", name, engine)

    def run_servers(self) -> None:
        """The same of servers."""
        for _ in range(self.num_rounds):
            for name in self._serving:
                processes, client = self.engines.serve(name)
                with ended(processes):
                    first_token_s = wait_for_first_token(processes, client, START_WITHIN_S)
                    self._add("serve", name, {"first_token_s": first_token_s})
                    run(client, FULL_STEP, "memory")
                    self._add_memory("serve", name, processes[0])

    def run_pairs(self, scenarios: Sequence[str]) -> None:
        """Run scenarios of one server that computes prompts and one that decodes."""
        for number in range(self.num_rounds):
            tokens: dict[tuple[str, str], Any] = {}
            for name in self._serving:
                processes, client = self.engines.serve_pair(name)
                with ended(processes):
                    wait_for_first_token(processes, client, START_WITHIN_S)
                    run(client, DISAGGREGATED["pair-1"], "warm-up")
                    for scenario in scenarios:
                        answer = run(client, DISAGGREGATED[scenario], f"{scenario} {number}")
                        tokens[scenario, name] = answer["token_ids"]
                        self._add(scenario, name, figures_of(DISAGGREGATED[scenario], answer))
            for scenario in scenarios:
                self._compare_tokens(scenario, {name: tokens[scenario, name] for name in self._serving})

    @property
    def _serving(self) -> list[str]:
        return [name for name in self.names if name != WITHOUT_SERVER]

    def _add_memory(self, scenario: str, name: str, engine: EngineProcess) -> None:
        memory = engine.memory()
        figures = {"peak_bytes": memory.peak_bytes, "shared_once_bytes": memory.shared_once_bytes}
        self._add(scenario, name, {measure: float(value) for measure, value in figures.items()})

    def _compare_tokens(self, scenario: str, tokens: dict[str, Any]) -> None:
        for engine in tokens.keys() - {BASE}:
            if BASE in tokens:
                shares = self.results.agreements.setdefault(scenario, {}).setdefault(engine, [])
                shares.append(agreement(tokens[BASE], tokens[engine]))

    def _add(self, scenario: str, engine: str, figures: dict[str, float]) -> None:
        shown = ", ".join(f"{measure} {value:.4g}" for measure, value in figures.items())
        print(f"  {scenario}, {engine}: {shown}", file=sys.stderr, flush=True)
        self.results.add(scenario, engine, figures)


@contextmanager
def ended(processes: Sequence[EngineProcess]) -> Iterator[None]:
    """End running servers on the way out.

    Raises:
        EngineFailedError: one of them did not answer.
    """
    with ExitStack() as stack:
        for process in processes:
            stack.enter_context(process)
        try:
            yield
        except OSError as error:
            raise processes[-1].failure(f"did not answer: {error}") from error


def ask(engine: OfflineEngine, scenario: Scenario, seed: str, turn: int = 0) -> Any:
    """Have an engine run a scenario once."""
    command = {
        "prompts": scenario.prompts(seed, turn),
        "num_tokens": scenario.num_output_tokens,
        "reads_cache": scenario.reads_cache,
    }
    return engine.ask(command, RUN_WITHIN_S)


def run_module(*command: str) -> str:
    """Run a module of bench in a process of its own and return its output."""
    done = subprocess.run(
        [sys.executable, "-m", *command],
        check=True,
        stdout=subprocess.PIPE,
        timeout=START_WITHIN_S,
        text=True,
    )
    return done.stdout


def compare(arguments: argparse.Namespace, folder: Path) -> None:
    model = arguments.model or folder / "model"
    if not (model / "config.json").exists():
        run_module("bench.peer.model", str(model))
    num_params = num_parameters(model)
    num_bytes = num_params * DTYPE_BYTES[arguments.dtype]
    if name := arguments.quantization:
        model, plain = model.with_name(f"{model.name}-{name}"), model
        if not model.exists():
            run_module("bench.peer.quantized_model", str(plain), str(model), "--format", name)
        num_bytes = num_stored_bytes(model)

    def measure_limits() -> Limits:
        return Limits(**json.loads(run_module("bench.peer.limits", str(num_bytes), arguments.dtype)))

    engines = Engines(
        model=model,
        peer_folder=arguments.peer,
        dtype=arguments.dtype,
        logs=arguments.logs or folder,
    )
    engines.logs.mkdir(parents=True, exist_ok=True)
    comparison = Comparison(
        engines=engines, names=arguments.engines, num_rounds=arguments.repeats, measure_limits=measure_limits
    )
    if offline := [name for name in arguments.scenarios if name in OFFLINE]:
        comparison.run_offline(offline)
    if "start" in arguments.scenarios:
        comparison.run_starts()
    if "serve" in arguments.scenarios:
        comparison.run_servers()
    if pairs := [name for name in arguments.scenarios if name in DISAGGREGATED]:
        comparison.run_pairs(pairs)
    results = comparison.results
    results.limits.append(measure_limits())
    if arguments.output is not None:
        arguments.output.write_text(json.dumps(results.as_json(), indent=1))
    print_results(arguments, results, Weights(num_parameters=num_params, num_bytes=num_bytes))


def print_results(arguments: argparse.Namespace, results: Results, weights: Weights) -> None:
    limits = results.best_limits()
    print(
        f"{arguments.quantization or arguments.dtype}, {weights.num_parameters / 1e6:.0f} M parameters, "
        f"{weights.num_bytes / 1e6:.0f} MB; limits: {limits.bytes_per_s / 1e9:.1f} GB/s, "
        f"{limits.flops / 1e9:.0f} GFLOP/s; {arguments.repeats} rounds\n"
    )
    print(table(results, OFFLINE, weights))
    for scenario, by_engine in results.agreements.items():
        for engine, shares in by_engine.items():
            print(f"{scenario}: {min(shares):.0%} of the requests or more got the same tokens from {engine}")


def main() -> None:
    arguments = parse_arguments()
    with tempfile.TemporaryDirectory(prefix="vs-peer-") as folder:
        try:
            compare(arguments, Path(folder))
        except (EngineFailedError, ValueError) as error:
            sys.exit(str(error))


if __name__ == "__main__":
    main()
