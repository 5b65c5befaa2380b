"""`baton complete`: sends prompts to a running router and prints the text as it streams."""

from __future__ import annotations

import argparse
import sys
from collections import defaultdict

import grpc

from baton_proto.v1 import baton_pb2 as pb
from baton_proto.v1.baton_pb2_grpc import BatonStub

_CONNECT_WITHIN_S = 10.0


def complete(args: argparse.Namespace) -> int:
    """Print the completion of each prompt and where its time went; 1 if one failed."""
    with grpc.insecure_channel(args.address) as channel:
        stub = BatonStub(channel)  # type: ignore[no-untyped-call]
        try:
            grpc.channel_ready_future(channel).result(timeout=_CONNECT_WITHIN_S)
            for prompt in args.prompt:
                _print_one(stub, _request(args, prompt))
        except grpc.FutureTimeoutError:
            sys.stderr.write(f"baton complete: no router answers at {args.address}\n")
            return 1
        except grpc.RpcError as error:
            sys.stderr.write(f"\nbaton complete: {error.code().name}: {error.details()}\n")
            return 1
    return 0


def _request(args: argparse.Namespace, prompt: str) -> pb.GenerateRequest:
    given = {
        name: getattr(args, name)
        for name in ("n", "max_tokens", "temperature", "top_p", "top_k", "seed")
        if getattr(args, name) is not None
    }
    request = pb.GenerateRequest(sampling_params=pb.SamplingParams(**given))
    if args.chat:
        request.chat.messages.add(role="user", content=prompt)
    else:
        request.text = prompt
    return request


def _print_one(stub: BatonStub, request: pb.GenerateRequest) -> None:
    """Stream the first sequence; the others, which come in between, follow whole."""
    prompt = request.text or request.chat.messages[0].content
    sys.stdout.write(f"> {prompt}\n")
    others: defaultdict[int, str] = defaultdict(str)
    for event in stub.Generate(request):
        if event.HasField("finished"):
            texts = "".join(f"\n[{index}] {text}" for index, text in sorted(others.items()))
            sys.stdout.write(f"{texts}\n{breakdown(event.finished)}\n\n")
        elif event.tokens.index:
            others[event.tokens.index] += event.tokens.text
        else:
            sys.stdout.write(event.tokens.text)
            sys.stdout.flush()


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
