"""CPU time that traces add to a router, for each request and each token.

    python -m bench.tracing_cost --streams 64 --repeats 3

Three routers that are measured in turn (`bench.router_cost`): one without traces, one that traces and
samples nothing, one that exports every request to a receiver which drops what it gets.
"""

from __future__ import annotations

import asyncio
from collections.abc import Iterator
from concurrent.futures import ThreadPoolExecutor
from contextlib import ExitStack, contextmanager

import grpc
from opentelemetry.proto.collector.trace.v1 import trace_service_pb2 as pb
from opentelemetry.proto.collector.trace.v1.trace_service_pb2_grpc import (
    TraceServiceServicer,
    add_TraceServiceServicer_to_server,
)

from bench.command_line import make_parser
from bench.router_cost.servers import CLIENTS, Cost, measure, median_cost, running_router, wait_until_ready


class Sink(TraceServiceServicer):
    """Counts the spans that it is sent."""

    def __init__(self) -> None:
        self.num_spans = 0

    def Export(  # noqa: N802 (name of the protocol)
        self, request: pb.ExportTraceServiceRequest, context: grpc.ServicerContext
    ) -> pb.ExportTraceServiceResponse:
        self.num_spans += sum(
            len(scope.spans) for resource in request.resource_spans for scope in resource.scope_spans
        )
        return pb.ExportTraceServiceResponse()


@contextmanager
def running_sink(sink: Sink) -> Iterator[str]:
    server = grpc.server(ThreadPoolExecutor(1))
    add_TraceServiceServicer_to_server(sink, server)
    port = server.add_insecure_port("127.0.0.1:0")
    server.start()
    try:
        yield f"http://127.0.0.1:{port}"
    finally:
        server.stop(None).wait()


async def compare(num_streams: int, repeats: int) -> None:
    sink = Sink()
    with ExitStack() as stack:
        endpoint = ("--otlp-traces-endpoint", stack.enter_context(running_sink(sink)))
        kinds = {
            "no traces": (),
            "none sampled": (*endpoint, "--trace-sample-ratio", "0"),
            "all sampled": endpoint,
        }
        routers = {kind: stack.enter_context(running_router(*flags)) for kind, flags in kinds.items()}
        for router in routers.values():
            await wait_until_ready(router)
        print(("{:>14}" * 4).format("protocol", "traces", "µs/request", "µs/token"))
        for protocol in CLIENTS:
            costs: dict[str, list[Cost]] = {kind: [] for kind in kinds}
            for _ in range(repeats):
                for kind, router in routers.items():
                    costs[kind].append(await measure(router, protocol, num_streams))
            for kind, measured in costs.items():
                cost = median_cost(measured)
                print(f"{protocol:>14}{kind:>14}{cost.request_us:14.0f}{cost.token_us:14.1f}", flush=True)
    print(f"{sink.num_spans} spans came in")


if __name__ == "__main__":
    parser = make_parser(__doc__)
    parser.add_argument("--streams", type=int, default=64)
    parser.add_argument("--repeats", type=int, default=3)
    asked = parser.parse_args()
    asyncio.run(compare(asked.streams, asked.repeats))
