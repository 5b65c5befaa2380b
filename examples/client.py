"""Streams the answer to one prompt. Needs grpcio and the published stubs, nothing else of Baton."""

import argparse
import sys

import grpc

from baton_proto.v1 import baton_pb2, baton_pb2_grpc


def main() -> int:
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("prompt")
    parser.add_argument("--address", default="127.0.0.1:8100")
    parser.add_argument("--max-tokens", type=int, default=64)
    flags = parser.parse_args()
    params = baton_pb2.SamplingParams(max_tokens=flags.max_tokens)
    request = baton_pb2.GenerateRequest(text=flags.prompt, sampling_params=params)
    no_proxy = [("grpc.enable_http_proxy", 0)]  # of the environment: it is not for a fleet
    with grpc.insecure_channel(flags.address, options=no_proxy) as channel:
        try:
            for event in baton_pb2_grpc.BatonStub(channel).Generate(request):
                if event.HasField("tokens"):
                    print(event.tokens.text, end="", flush=True)
                else:
                    report(event.finished)
        except grpc.RpcError as error:
            print(f"{error.code().name}: {error.details()}", file=sys.stderr)
            return 1
    return 0


def report(finished: baton_pb2.FinishedEvent) -> None:
    usage, timings = finished.usage, finished.timings
    print(
        f"\n{usage.prompt_tokens} prompt tokens ({usage.cached_tokens} cached),"
        f" {usage.completion_tokens} new; first token {timings.first_token_s * 1e3:.1f} ms"
        f" (queue {timings.queue_s * 1e3:.1f}, prefill {timings.prefill_s * 1e3:.1f},"
        f" transfer {timings.transfer_s * 1e3:.1f}),"
        f" then {timings.per_token_s * 1e3:.1f} ms each; {timings.total_s:.3f} s in all"
    )


if __name__ == "__main__":
    sys.exit(main())
