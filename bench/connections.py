"""Time to the first token of streams over one kept connection and over a new one for each, of servers in
turns.

    python -m bench.connections baton=127.0.0.1:8000 vllm=127.0.0.1:9000

Each server speaks OpenAI's completions. A stream is one short prompt, different each time, and a few tokens;
nothing else runs meanwhile. A round asks each server over both kinds of connection; the medians of all rounds
are printed.
"""

from __future__ import annotations

import http.client
import json
import statistics
import time
from collections import defaultdict
from contextlib import closing

from bench.command_line import make_parser

NUM_TOKENS = 8
NUM_WARM = 8
TIMEOUT_S = 60.0


def main() -> None:
    parser = make_parser(__doc__)
    parser.add_argument("servers", nargs="+", metavar="NAME=HOST:PORT")
    parser.add_argument(
        "--streams", type=int, default=50, help="streams of each kind in a round; %(default)s"
    )
    parser.add_argument("--rounds", type=int, default=3)
    args = parser.parse_args()
    servers = dict(one.split("=", 1) for one in args.servers)
    models = {name: served_model(address) for name, address in servers.items()}
    ttft_ms: dict[tuple[str, str], list[float]] = defaultdict(list)
    for round_ in range(-1, args.rounds):  # the first warms up
        for name, address in servers.items():
            count = args.streams if round_ >= 0 else NUM_WARM
            prompts = [f"The os module {round_} {number}" for number in range(2 * count)]
            with closing(connect(address)) as connection:
                kept = [first_token_ms(connection, models[name], prompt) for prompt in prompts[:count]]
            new = []
            for prompt in prompts[count:]:
                with closing(connect(address)) as connection:
                    new.append(first_token_ms(connection, models[name], prompt))
            if round_ >= 0:
                ttft_ms[name, "kept"] += kept
                ttft_ms[name, "new"] += new
    print("| server | connection | TTFT p50 | p90 |\n|---|---|---|---|")
    for (name, kind), values in ttft_ms.items():
        p90 = statistics.quantiles(values, n=10)[-1]
        print(f"| {name} | {kind} | {statistics.median(values):.1f} ms | {p90:.1f} ms |")


def connect(address: str) -> http.client.HTTPConnection:
    return http.client.HTTPConnection(address, timeout=TIMEOUT_S)


def served_model(address: str) -> str:
    with closing(connect(address)) as connection:
        connection.request("GET", "/v1/models")
        model: str = json.load(connection.getresponse())["data"][0]["id"]
    return model


def first_token_ms(connection: http.client.HTTPConnection, model: str, prompt: str) -> float:
    """Stream a completion to its end; return milliseconds from the request to its first token.

    Raises:
        RuntimeError: the server answers something else.
    """
    fields = {
        "model": model,
        "prompt": prompt,
        "max_tokens": NUM_TOKENS,
        "temperature": 0,
        "ignore_eos": True,
    }
    body = json.dumps({**fields, "stream": True})
    asked_s = time.perf_counter()
    connection.request("POST", "/v1/completions", body, {"content-type": "application/json"})
    answer = connection.getresponse()
    if answer.status != http.client.OK:
        raise RuntimeError(f"status is {answer.status}: {answer.read().decode()}")
    first_s = 0.0
    while line := answer.readline():
        if not first_s and line.startswith(b"data: {"):
            first_s = time.perf_counter() - asked_s
    return 1e3 * first_s


if __name__ == "__main__":
    main()
