"""`baton complete`: sends prompts to a running router and prints the text as it streams."""

from __future__ import annotations

import argparse
import sys
from collections import defaultdict
from collections.abc import Iterator
from typing import Any

import grpc

from baton.commands.chat import lines
from baton.commands.openai_server import OpenAIServer
from baton.commands.security_arguments import router_access
from baton.executors.resuming_client import ResumingClient
from baton.executors.router_client import request_error, sampled_request, sampling_fields, wait_until_ready
from baton_core.errors import ErrorCode, InvalidRequestError, RequestError
from baton_proto.v1 import baton_pb2 as pb


def complete(args: argparse.Namespace) -> int:
    """Print the completion of each prompt, or else of each line of the input, and where its time went.

    Raises:
        InvalidRequestError: a prompt is no text.
        RequestError: no router answers, or a request failed.
    """
    for prompt in args.prompt:
        _check(prompt)
    if args.url:
        return _complete_over_http(args)
    access = router_access(args)
    wait_until_ready(args.address, access, args.wait)
    client = ResumingClient((args.address, *args.other_router), access)
    for prompt in _prompts(args):
        _print_one(client, _request(args, prompt))
    return 0


def _prompts(args: argparse.Namespace) -> Iterator[str]:
    """Yield the prompts as they are shown."""
    if not args.prompt:
        yield from filter(None, lines())
    for prompt in args.prompt:
        sys.stdout.write(f"> {prompt}\n")
        yield prompt


def _check(prompt: str) -> None:
    try:
        prompt.encode()
    except UnicodeEncodeError:
        raise InvalidRequestError("prompt", prompt, "text in UTF-8") from None


def _complete_over_http(args: argparse.Namespace) -> int:
    server = OpenAIServer(args)
    model = args.model_name or server.first_model()
    fields = {"model": model, "n": args.n, **sampling_fields(args)}
    for prompt in _prompts(args):
        asked: dict[str, Any] = {"prompt": prompt}
        route = "/completions"
        if args.chat:
            route, asked = "/chat/completions", {"messages": [{"role": "user", "content": prompt}]}
        texts = [""] * args.n
        try:
            for chunk in server.stream(route, {**fields, **asked}):
                for choice in chunk["choices"]:
                    text = choice["delta"].get("content") or "" if args.chat else choice["text"]
                    texts[choice["index"]] += text
                    if not choice["index"]:
                        sys.stdout.write(text)
                        sys.stdout.flush()
        except RequestError:
            sys.stdout.write("\n")
            raise
        others = "".join(f"\n[{index}] {text}" for index, text in enumerate(texts) if index)
        sys.stdout.write(f"{others}\n\n")
    return 0


def _request(args: argparse.Namespace, prompt: str) -> pb.GenerateRequest:
    request = sampled_request(args)
    request.sampling_params.n = args.n
    if args.chat:
        request.chat.messages.add(role="user", content=prompt)
    else:
        request.text = prompt
    return request


def _print_one(client: ResumingClient, request: pb.GenerateRequest) -> None:
    """Stream the first sequence; the others, which come in between, follow whole.

    Raises:
        RequestError: no router answers, or the request failed.
    """
    others: defaultdict[int, str] = defaultdict(str)
    has_begun = False
    try:
        for event in client.generate(request):
            has_begun = True
            _print_event(event, others)
    except grpc.RpcError as error:
        sys.stdout.write("\n")
        failure = request_error(error)
        raise _broken_off(failure) if has_begun else failure from None


def _print_event(event: pb.GenerateEvent, others: dict[int, str]) -> None:
    if event.HasField("finished"):
        texts = "".join(f"\n[{index}] {text}" for index, text in sorted(others.items()))
        sys.stdout.write(f"{texts}\n{breakdown(event.finished)}\n\n")
    elif event.tokens.index:
        others[event.tokens.index] += event.tokens.text
    else:
        sys.stdout.write(event.tokens.text)
        sys.stdout.flush()


def _broken_off(failure: RequestError) -> RequestError:
    """Return the error for an answer that has begun; where another router could go on, it says how."""
    if failure.code is not ErrorCode.UNAVAILABLE:
        return failure
    advice = "another router of the fleet can go on with it, by --other-router"
    return RequestError(failure.code, f"the answer broke off: {failure}; {advice}")


def breakdown(finished: pb.FinishedEvent) -> str:
    """One line: where a request ran and where its time went."""
    times, usage = finished.timings, finished.usage
    where = f"{times.prefill_worker} > {times.decode_worker}" if times.decode_worker else times.prefill_worker
    return (
        f"[{where}: {usage.prompt_tokens} prompt tokens ({usage.cached_tokens} cached), "
        f"{usage.completion_tokens} new | queue {times.queue_s * 1e3:.1f} ms, "
        f"prefill {times.prefill_s * 1e3:.1f} ms, transfer {times.transfer_s * 1e3:.1f} ms, "
        f"first token {times.first_token_s * 1e3:.1f} ms, per token {times.per_token_s * 1e3:.1f} ms]"
    )
