"""Starts a router, a prefill worker and a decode worker with the bundled model and streams some answers."""

import json
import os
import subprocess
import sys
import time
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path

import grpc
from grpc_health.v1 import health_pb2, health_pb2_grpc

NO_PROXY = (("grpc.enable_http_proxy", 0),)
"""Option of a channel: a proxy that the environment names is not for this machine."""
QUESTIONS = ("What does os.path.join do?", "What is the json module?", "What does str.split do?")


@contextmanager
def cluster() -> Iterator[str]:
    """Run `baton serve`; every request is split, so that each one shows a transfer. Gives the address."""
    read_fd, write_fd = os.pipe()
    command = [sys.executable, "-m", "baton", "serve", "--port", "0", "--grpc-port", "0", "--split", "always"]
    command += ["--report-fd", str(write_fd), "--log-level", "error"]
    process = subprocess.Popen(command, pass_fds=(write_fd,))
    os.close(write_fd)
    try:
        with os.fdopen(read_fd) as pipe:
            report = pipe.readline()
            if not report:
                sys.exit(f"baton serve ended with exit code {process.wait()}; its lines above say why")
            yield json.loads(report)["address"]
    finally:
        process.terminate()
        process.wait()


def wait_until_ready(address: str) -> None:
    with grpc.insecure_channel(address, options=NO_PROXY) as channel:
        health = health_pb2_grpc.HealthStub(channel)
        for reply in health.Watch(health_pb2.HealthCheckRequest(), timeout=120, wait_for_ready=True):
            if reply.status == health_pb2.HealthCheckResponse.SERVING:
                return


def main() -> int:
    print("starting a router, a prefill worker and a decode worker", flush=True)
    began = time.monotonic()
    with cluster() as address:
        wait_until_ready(address)
        print(
            f"ready after {time.monotonic() - began:.1f} s; three questions to baton-docs-5m:\n", flush=True
        )
        command = [sys.executable, "-m", "baton", "complete", "--address", address, "--chat"]
        status = subprocess.call([*command, "--temperature", "0", "--max-tokens", "80", *QUESTIONS])
    if status == 0:
        command = os.path.relpath(Path(sys.executable).with_name("baton"))
        print(f"To go on: `{command} serve`, then chat at http://127.0.0.1:8000/")
    return status


if __name__ == "__main__":
    sys.exit(main())
