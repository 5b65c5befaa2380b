"""`baton run-batch`: answers a file of requests, at a running server or one of its own."""

from __future__ import annotations

import argparse
import asyncio
import os
import sys
import tempfile
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from http import HTTPStatus
from pathlib import Path
from typing import Any, Final

import msgspec

from baton.batch.lines import WITH_PRIORITY, asking, count_lines, digest_of, file_of
from baton.batch.web_files import download, is_url, upload
from baton.commands import cli_arguments as arguments
from baton.commands.security_arguments import key_of_environment
from baton.config.environment import KEY_VARIABLES
from baton.processes.child import Child, running
from baton_bench.http_client import HttpClient, Origin
from baton_bench.progress import Progress
from baton_core.errors import ErrorCode, InvalidConfigError, RequestError
from baton_router.batches.batch_run import BatchRun
from baton_router.batches.partial_results import PartialResults, read_lines
from baton_service.process import EXIT_BAD_CONFIG, run_until_signal

_POLL_S: Final = 0.2
_STOPPED: Final = 130
_PORTS: Final[dict[str, Any]] = {"port": 0, "grpc_port": 0}


def run_batch(args: argparse.Namespace) -> int:
    """Write an answer or an error for each request; a run that was ended before goes on.

    Raises:
        BatonError: the flags or the input are wrong, or the server is lost.
    """
    for name, value in (("--input-file", args.input_file), ("--output-file", args.output_file)):
        if not value:
            raise InvalidConfigError(f"{name} is not given; allowed: a path or a URL")
    of_server = (*args.serve_words, *args.serve_values)
    if args.url and of_server:
        raise InvalidConfigError(
            f"{of_server[0]} is given with --url; allowed: MODEL and flags of baton serve without it"
        )
    serve_args = None if args.url else _serve_args(args)
    done = asyncio.run(run_until_signal(_run(args, serve_args)))
    return _STOPPED if done is None else 0


def _serve_args(args: argparse.Namespace) -> argparse.Namespace:
    """Read the words and values that are of `serve`; it has one engine unless they say otherwise."""
    values = {"log_format": args.log_format, "log_level": args.log_level, **args.serve_values}
    served = arguments.parse(
        ["serve", *args.serve_words],
        lambda given: {**_PORTS, **arguments.one_engine(given | values.keys()), **values},
    )
    for name in ("uds", "ssl_certfile", "ssl_ca_certs"):
        if value := getattr(served, name) or getattr(args, name, None):
            name = f"--{name.replace('_', '-')}"
            raise InvalidConfigError(f"{name} is {value!r}; allowed: none where a server is started")
    if args.api_key:
        served.api_key = (args.api_key,)
    return served


async def _run(args: argparse.Namespace, serve_args: argparse.Namespace | None) -> bool:
    with tempfile.TemporaryDirectory() as folder:
        source = Path(folder) / "input"
        if is_url(args.input_file):
            await download(args.input_file, source)
        else:
            source = await asyncio.to_thread(file_of, args.input_file, source)
        num_lines = await asyncio.to_thread(count_lines, source, args.input_file)
        with PartialResults(_partial_path(args, digest_of(source))) as results:
            if len(results.done) < num_lines:
                await _answer_all(args, serve_args, source, results, num_lines)
            if len(results.done) < num_lines:
                raise InvalidConfigError(
                    f"--input-file is {args.input_file!r}, which has lost lines; allowed: a file that stays "
                    "as it is until all have a result"
                )
            if is_url(args.output_file):
                await upload(results.path, args.output_file)
                results.path.unlink()
            else:
                results.rename(_target_of(Path(args.output_file)))
    sys.stderr.write(f"{num_lines} requests, {results.num_errors} with an error: {args.output_file}\n")
    return True


def _partial_path(args: argparse.Namespace, digest: str) -> Path:
    """The file of results so far: beside the output, of one input alone."""
    given = Path(args.output_file)
    if os.path.exists(given) and not os.path.isfile(given):
        raise InvalidConfigError(f"--output-file is {args.output_file!r}; allowed: a file, or a new name")
    output = given if is_url(args.output_file) else _target_of(given)
    folder = Path(args.output_tmp_dir) if is_url(args.output_file) else output.parent
    if not os.path.isdir(folder):
        name = "--output-tmp-dir" if is_url(args.output_file) else "--output-file"
        value = args.output_tmp_dir if is_url(args.output_file) else args.output_file
        raise InvalidConfigError(f"{name} is {value!r}; allowed: in a folder that is there")
    return folder / f"{output.name.partition('?')[0]}.{digest}.partial"


def _target_of(output: Path) -> Path:
    """The path of a file behind its symbolic links."""
    return Path(os.path.realpath(output))


async def _answer_all(
    args: argparse.Namespace,
    serve_args: argparse.Namespace | None,
    source: Path,
    results: PartialResults,
    num_lines: int,
) -> None:
    async with _server(args, serve_args) as client:
        defaults = {"priority": args.priority} if await _is_batons(client) else {}
        run = BatchRun(asking(client), results, dict.fromkeys(WITH_PRIORITY, defaults))
        with Progress(num_lines, "req", is_shown=sys.stderr.isatty()) as progress:
            for _ in results.done:
                progress.add()
            await run.run(read_lines(source), args.max_inflight, progress.add)


@asynccontextmanager
async def _server(
    args: argparse.Namespace, serve_args: argparse.Namespace | None
) -> AsyncIterator[HttpClient]:
    """A client of the server; one that is started here has loaded its model, and ends with the block."""
    key = args.api_key or key_of_environment(*KEY_VARIABLES)
    headers = {"authorization": f"Bearer {key}"} if key else {}
    if serve_args is None:
        client = HttpClient(Origin.parse(args.url, args.ssl_ca_certs, "--url"), headers)
        try:
            yield client
        finally:
            await client.close()
        return
    stop_within_s = arguments.shutdown_timeout_s(serve_args) + 10.0
    async with running("serve", arguments.serve_flags(serve_args), stop_within_s=stop_within_s) as child:
        report = await child.next_report() or {}
        client = HttpClient(Origin.parse(f"http://{report.get('http_address')}"), headers)
        try:
            await _wait_until_ready(child, client)
            yield client
        finally:
            await client.close()


async def _wait_until_ready(child: Child, client: HttpClient) -> None:
    """Wait for the model; raises InvalidConfigError or RequestError where the process ends instead."""
    while child.process.returncode is None:
        try:
            if await client.request("GET", "/health", b"", lambda *_: None) == HTTPStatus.OK:
                return
        except (OSError, ValueError):
            pass
        await asyncio.sleep(_POLL_S)
    text = f"baton serve ended with exit code {child.process.returncode}"
    if child.process.returncode == EXIT_BAD_CONFIG:
        raise InvalidConfigError(text)
    raise RequestError(ErrorCode.UNAVAILABLE, text)


async def _is_batons(client: HttpClient) -> bool:
    """Return whether the server is one of Baton's.

    Raises:
        RequestError: UNAVAILABLE, no server answers with its models, such as without its key.
    """
    body = bytearray()
    try:
        status = await client.request("GET", "/v1/models", b"", lambda piece, _: body.extend(piece))
        if status == HTTPStatus.OK:
            return any(model.get("owned_by") == "baton" for model in msgspec.json.decode(body)["data"])
        reason = f"HTTP {status}"
    except (OSError, ValueError, KeyError, TypeError, AttributeError) as error:
        reason = str(error) or type(error).__name__
    raise RequestError(ErrorCode.UNAVAILABLE, f"the server does not list its models: {reason}")
