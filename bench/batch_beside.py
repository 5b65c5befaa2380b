"""Time to the first token of requests with and without a batch that runs beside them.

    python -m bench.batch_beside --model MODEL --requests 100 --rounds 3
    python -m bench.batch_beside --prefill-workers 1 --decode-workers 1 --max-batch-inflight 4

One `baton serve` is asked at even distances, in turns without a batch and with one of `/v1/batches`, whose
lines never end before the round does. Printed are the median and the 99th percentile of the time to the first
token, and of the time between two tokens, in milliseconds; their ratio; and lines of the batch a second.
"""

from __future__ import annotations

import argparse
import asyncio
import json
import statistics
import tempfile
import uuid
from collections.abc import AsyncIterator, Awaitable, Callable, Sequence
from contextlib import asynccontextmanager
from dataclasses import dataclass, field
from random import Random
from typing import Any, Final

from baton.config.engine_args import BUNDLED_MODEL
from baton.processes.child import running
from baton_bench.answers import Answer, BenchRequest
from baton_bench.completion_stream import CompletionStream
from baton_bench.figures import percentile
from baton_bench.http_client import HttpClient, Origin
from bench.command_line import make_parser

NUM_LINES: Final = 20_000
ANSWER_WITHIN_S: Final = 120.0
STOP_WITHIN_S: Final = 30.0
URL: Final = "/v1/completions"


@dataclass(slots=True)
class Times:
    """Milliseconds of the requests of one kind of round."""

    ttft_ms: list[float] = field(default_factory=list)
    itl_ms: list[float] = field(default_factory=list)
    lines_per_s: list[float] = field(default_factory=list)


def parse_arguments() -> argparse.Namespace:
    parser = make_parser(__doc__)
    parser.add_argument("--model", default=BUNDLED_MODEL, help="default: the bundled model")
    parser.add_argument("--dtype", choices=("float32", "bfloat16"), default="bfloat16")
    parser.add_argument("--prefill-workers", type=int, default=0)
    parser.add_argument("--decode-workers", type=int, default=0)
    parser.add_argument("--mixed", type=int, default=None, help="default: 1 where there is no other worker")
    parser.add_argument("--scheduling-policy", choices=("fcfs", "priority"), default="priority")
    parser.add_argument("--max-batch-inflight", type=int, default=8)
    parser.add_argument("--batch-lines-beside", type=float, default=0.1)
    parser.add_argument("--requests", type=int, default=100, help="of a round")
    parser.add_argument("--distance", type=float, default=0.25, help="seconds between two requests")
    parser.add_argument("--prompt", type=int, default=256, help="tokens of a request")
    parser.add_argument("--tokens", type=int, default=16, help="tokens of an answer")
    parser.add_argument("--line-prompt", type=int, default=256, help="tokens of a line of the batch")
    parser.add_argument("--line-tokens", type=int, default=64, help="tokens of its answer")
    parser.add_argument("--rounds", type=int, default=3)
    return parser.parse_args()


def body_of(random: Random, num_prompt_tokens: int, num_tokens: int, **more: object) -> dict[str, Any]:
    """Return a request whose prompt nobody has cached."""
    prompt = [random.randrange(10, 500) for _ in range(num_prompt_tokens)]
    return {"prompt": prompt, "max_tokens": num_tokens, "ignore_eos": True, **more}


async def ask_json(client: HttpClient, method: str, path: str, body: bytes = b"", **headers: str) -> Any:
    """Return the JSON that a route replies with.

    Raises:
        RuntimeError: it refuses.
    """
    whole = bytearray()
    status = await client.request(method, path, body, lambda piece, _: whole.extend(piece), headers or None)
    if status != 200:
        raise RuntimeError(f"{method} {path}: HTTP {status} {whole.decode(errors='replace')[:500]}")
    return json.loads(whole)


async def ask(client: HttpClient, body: dict[str, Any], times: Times) -> None:
    """Send one request as a stream, and note when its tokens come.

    Raises:
        ValueError: it is refused, or its answer is not whole.
    """
    now_s, prompt = asyncio.get_running_loop().time(), body["prompt"]
    request = BenchRequest(prompt=prompt, num_prompt_tokens=len(prompt), num_tokens=body["max_tokens"])
    answer = Answer(request=request, due_s=now_s, allowed_s=now_s, sent_s=now_s)
    stream = CompletionStream(answer)
    async with asyncio.timeout(ANSWER_WITHIN_S):
        stream.end(await client.request("POST", URL, json.dumps(body).encode(), stream.take))
    times.ttft_ms.append(answer.ttft_s * 1e3)
    times.itl_ms += [itl_s * 1e3 for itl_s in answer.itls_s]


async def ask_all(client: HttpClient, arguments: argparse.Namespace, times: Times, random: Random) -> None:
    async with asyncio.TaskGroup() as group:
        for _ in range(arguments.requests):
            body = body_of(random, arguments.prompt, arguments.tokens, stream=True)
            group.create_task(ask(client, body, times))
            await asyncio.sleep(arguments.distance)


@asynccontextmanager
async def batch_beside(
    client: HttpClient, arguments: argparse.Namespace, times: Times
) -> AsyncIterator[None]:
    """A batch that runs as long as the block; notes how many of its lines were answered a second."""
    random = Random(1)
    lines = (
        {
            "custom_id": str(number),
            "method": "POST",
            "url": URL,
            "body": body_of(random, arguments.line_prompt, arguments.line_tokens),
        }
        for number in range(NUM_LINES)
    )
    boundary = uuid.uuid4().hex
    head = f"--{boundary}\r\nContent-Disposition: form-data; name="
    parts = [f'{head}"purpose"\r\n\r\nbatch\r\n{head}"file"; filename="lines"\r\n\r\n']
    content = "".join((*parts, "\n".join(map(json.dumps, lines)), f"\r\n--{boundary}--\r\n")).encode()
    kind = {"content-type": f"multipart/form-data; boundary={boundary}"}
    file = await ask_json(client, "POST", "/v1/files", content, **kind)
    wanted = {"input_file_id": file["id"], "endpoint": URL, "completion_window": "24h"}
    batch = await ask_json(client, "POST", "/v1/batches", json.dumps(wanted).encode())
    path = f"/v1/batches/{batch['id']}"
    await until(lambda: is_begun(client, path))
    began_s = asyncio.get_running_loop().time()
    before = (await ask_json(client, "GET", path))["request_counts"]["completed"]
    yield
    batch = await ask_json(client, "POST", f"{path}/cancel")
    taken_s = asyncio.get_running_loop().time() - began_s
    times.lines_per_s.append((batch["request_counts"]["completed"] - before) / taken_s)
    await until(lambda: is_cancelled(client, path))


async def is_begun(client: HttpClient, path: str) -> bool:
    return bool((await ask_json(client, "GET", path))["request_counts"]["completed"])


async def is_cancelled(client: HttpClient, path: str) -> bool:
    return bool((await ask_json(client, "GET", path))["status"] == "cancelled")


async def is_healthy(client: HttpClient) -> bool:
    return await client.request("GET", "/health", b"", lambda *_: None) == 200


async def until(condition: Callable[[], Awaitable[bool]]) -> None:
    """Ask again and again until a condition holds."""
    while not await condition():  # noqa: ASYNC110 (what is waited for raises no event)
        await asyncio.sleep(0.1)


def print_rows(kinds: dict[str, Times]) -> None:
    print(f"{'':14}" + "".join(f"{name:>12}" for name in ("TTFT p50", "p99", "ITL p50", "p99", "lines/s")))
    rows = {}
    for kind, times in kinds.items():
        figures = (times.ttft_ms, times.itl_ms)
        rows[kind] = [percentile(sorted(values), percent) for values in figures for percent in (50, 99)]
        lines_per_s = statistics.mean(times.lines_per_s or [0.0])
        print_row(kind, [*rows[kind], lines_per_s])
    print_row("ratio", [beside / alone for alone, beside in zip(*rows.values(), strict=True)])


def print_row(name: str, figures: Sequence[float]) -> None:
    print(f"{name:14}" + "".join(f"{figure:12.2f}" for figure in figures), flush=True)


async def compare(arguments: argparse.Namespace) -> None:
    has_others = arguments.prefill_workers + arguments.decode_workers > 0
    mixed = arguments.mixed if arguments.mixed is not None else int(not has_others)
    kinds = {"alone": Times(), "with a batch": Times()}
    with tempfile.TemporaryDirectory(prefix="baton-bench-batch-") as folder:
        numbers: dict[str, float] = {
            "prefill-workers": arguments.prefill_workers,
            "decode-workers": arguments.decode_workers,
            "mixed": mixed,
            "max-batch-inflight": arguments.max_batch_inflight,
            "batch-lines-beside": arguments.batch_lines_beside,
            "max-body-bytes": 2**30,
            "port": 0,
            "grpc-port": 0,
        }
        flags = [f"--{name}={value}" for name, value in numbers.items()]
        flags += [f"--files-directory={folder}/files", f"--scheduling-policy={arguments.scheduling_policy}"]
        flags += [f"--dtype={arguments.dtype}", "--log-level=warning"]
        async with running("serve", (arguments.model, *flags), stop_within_s=STOP_WITHIN_S) as child:
            report = await child.next_report() or {}
            client = HttpClient(Origin.parse(f"http://{report.get('http_address')}"), {})
            try:
                await until(lambda: is_healthy(client))
                random = Random(0)
                await ask_all(client, arguments, Times(), random)  # warms up
                for _ in range(arguments.rounds):
                    await ask_all(client, arguments, kinds["alone"], random)
                    async with batch_beside(client, arguments, kinds["with a batch"]):
                        await ask_all(client, arguments, kinds["with a batch"], random)
            finally:
                await client.close()
    print_rows(kinds)


if __name__ == "__main__":
    asyncio.run(compare(parse_arguments()))
