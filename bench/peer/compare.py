"""Baton's answers beside vLLM's on CPU: to sets of sampling parameters, and to good and bad HTTP requests.

    bash bench/peer/make_environment.sh /tmp/peer
    python -m bench.peer.compare --peer /tmp/peer

Two small float32 models get each set from both engines: token ids, texts, ranks and reasons are the
same, and log-probabilities to 1e-4. Both servers get each request: status, keys, texts, tokens, reasons and
the order of a stream's events are the same. Prints each difference with the decision that explains it; exits
with 1 if one has none.
"""

from __future__ import annotations

import http.client
import json
import os
import subprocess
import sys
import tempfile
import time
from collections.abc import Mapping, Sequence
from contextlib import closing, suppress
from pathlib import Path
from typing import Any, Final

from baton.config.engine_args import BUNDLED_MODEL
from bench.command_line import make_parser
from bench.peer.compare_decisions import decision_of
from bench.peer.differences import Answer, answer_differences, output_differences
from bench.peer.engine_process import EngineFailedError, EngineProcess
from bench.peer.engines import Engines
from bench.peer.http_requests import REQUESTS, Request
from bench.peer.server import POLL_S, Client
from bench.processes import ROOT

ENGINES: Final = ("vllm", "baton")
SERVER_FLAGS: Final = (
    *("--enforce-eager", "--max-model-len", "256"),
    *("--enable-auto-tool-choice", "--tool-call-parser", "hermes"),
)
WITHIN_S: Final = 1200.0
ANSWER_WITHIN_S: Final = 120.0
NUM_SHOWN_NAMES: Final = 4
Differences = Mapping[str, Sequence[str]]
"""The differences of each set of parameters, or of each request."""


def compare_parameters(engines: Engines, model: Path, folder: Path) -> Differences:
    """Run every set of parameters on both engines, one after the other."""
    answers = [_parameter_answers(engines, engine, model, folder) for engine in ENGINES]
    peer, ours = answers
    return {name: list(output_differences(peer[name], ours[name])) for name in peer}


def _parameter_answers(engines: Engines, engine: str, model: Path, folder: Path) -> Mapping[str, Any]:
    output = folder / f"{engine}-{model.name}.json"
    command = [*engines.python(engine), "-m", "bench.peer.parameter_run", "--engine", engine]
    command += ["--model", str(model), "--output", str(output)]
    log = folder / f"{engine}-{model.name}.log"
    environment = {**os.environ, **engines.environment(engine)}
    with log.open("w") as file:
        done = subprocess.run(
            command, check=False, stdout=file, stderr=file, cwd=ROOT, env=environment, timeout=WITHIN_S
        )
    if done.returncode:
        raise EngineFailedError(f"{engine} failed: {log.read_text()[-2000:]}")
    return json.loads(output.read_text())  # type: ignore[no-any-return]


def compare_requests(engines: Engines) -> Differences:
    """Send every request to both servers, of which one runs at a time."""
    peer, ours = (_http_answers(engines, engine) for engine in ENGINES)
    return {name: list(answer_differences(peer[name], ours[name])) for name in REQUESTS}


def _http_answers(engines: Engines, engine: str) -> dict[str, Answer]:
    processes, client = engines.serve(engine, *SERVER_FLAGS)
    assert isinstance(client, Client)
    (process,) = processes
    with process:
        _wait_until_it_serves(process, client.port)
        return {name: _answer(client.port, request) for name, request in REQUESTS.items()}


def _wait_until_it_serves(process: EngineProcess, port: int) -> None:
    while True:
        process.check_alive()
        if process.age_s > WITHIN_S:
            raise process.failure(f"did not serve within {WITHIN_S:g} s")
        with suppress(OSError):
            if _answer(port, REQUESTS["health"]).status == http.client.OK:
                return
        time.sleep(POLL_S)


def _answer(port: int, request: Request) -> Answer:
    headers = {"Content-Type": request.content_type} if request.content_type else {}
    body = request.body if isinstance(request.body, bytes | None) else json.dumps(request.body)
    with closing(http.client.HTTPConnection("127.0.0.1", port, timeout=ANSWER_WITHIN_S)) as connection:
        connection.request(request.method, request.path, body, headers)
        answer = connection.getresponse()
        return Answer(answer.status, answer.headers.get("content-type", ""), answer.read())


def print_differences(title: str, differences: Differences) -> int:
    """Print each with the names that have it; returns the number of those without a decision."""
    names: dict[tuple[str, str], list[str]] = {}
    for name, found in differences.items():
        for difference in found:
            names.setdefault((difference, decision_of(name, difference)), []).append(name)
    num_open = sum(1 for _, why in names if not why)
    num_equal = sum(1 for found in differences.values() if not found)
    print(f"\n{title}: {num_equal} of {len(differences)} alike, {num_open} differences without a decision")
    for (difference, why), having in names.items():
        shown = ", ".join([*having[:NUM_SHOWN_NAMES], *["..."] * (len(having) > NUM_SHOWN_NAMES)])
        print(f"{'' if why else 'OPEN '}{difference}: {len(having)} ({shown}){why and f': {why}'}")
    return num_open


def small_models(folder: Path) -> list[Path]:
    """The bundled model, and one of random numbers with heads of a size that vLLM has on a CPU."""
    from tests.models import make_model

    return [Path(BUNDLED_MODEL), make_model(folder / "random", "llama", head_dim=64)]


def main() -> None:
    parser = make_parser(__doc__)
    parser.add_argument("--peer", type=Path, required=True, help="folder of make_environment.sh")
    parser.add_argument("--only", choices=("parameters", "requests"), help="one half; default: both")
    parser.add_argument("--logs", type=Path, help="folder for answers and logs; default: a temporary one")
    args = parser.parse_args()
    unexplained = 0
    with tempfile.TemporaryDirectory(prefix="compare-") as temporary:
        folder = args.logs or Path(temporary)
        folder.mkdir(parents=True, exist_ok=True)
        engines = Engines(model=Path(BUNDLED_MODEL), peer_folder=args.peer, dtype="float32", logs=folder)
        try:
            for model in small_models(Path(temporary)) if args.only != "requests" else ():
                found = compare_parameters(engines, model, folder)
                unexplained += print_differences(f"parameters, {model.name}", found)
            if args.only != "parameters":
                unexplained += print_differences("requests", compare_requests(engines))
        except EngineFailedError as error:
            sys.exit(str(error))
    sys.exit(f"\n{unexplained} differences have no decision" if unexplained else 0)


if __name__ == "__main__":
    main()
