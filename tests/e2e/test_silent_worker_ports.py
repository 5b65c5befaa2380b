"""Silent connections at every port of a worker, more than it may have files, stop none of its work."""

from __future__ import annotations

import http.client
import re
import resource
from contextlib import closing
from pathlib import Path

import pytest

from tests.e2e.calls import answer, ask, draw_prompt, greedy
from tests.e2e.processes import FLOAT32, NO_GRAMMARS, SMALL, listening_ports, serving
from tests.silent_connections import NUM_DESCRIPTORS, many_descriptors, silent_connections

MAX_LOG_BYTES = 32_000


def health(port: int) -> int:
    with closing(http.client.HTTPConnection("127.0.0.1", port, timeout=20)) as connection:
        connection.request("GET", "/health")
        return connection.getresponse().status


@pytest.mark.exhaustive
@pytest.mark.timeout(300)
def test_a_split_request_is_answered_beside_silent_connections(tmp_path: Path) -> None:
    flags = ("--metrics-port", "0", "--kv-transport", "tcp")
    with many_descriptors(), serving(tmp_path, *SMALL, *FLOAT32, *NO_GRAMMARS, *flags) as cluster:
        workers = [*cluster.pids_of("baton prefill-worker"), *cluster.pids_of("baton decode-worker")]
        assert len(workers) == 2
        metrics_ports = [int(port) for port in re.findall(r"metrics at .*:(\d+)/", cluster.log.read_text())]
        expected, _ = answer(cluster.stub.Generate(ask(draw_prompt(40, seed=0), greedy(8))))
        for pid in workers:
            resource.prlimit(pid, resource.RLIMIT_NOFILE, (NUM_DESCRIPTORS, NUM_DESCRIPTORS))
        ports = [port for pid in workers for port in listening_ports(pid)]
        assert set(metrics_ports) < set(ports)
        for port in ports:
            with silent_connections(port):
                assert [health(one) for one in metrics_ports] == [200, 200]
                outputs, _ = answer(cluster.stub.Generate(ask(draw_prompt(40, seed=0), greedy(8))))
                assert outputs == expected
        cluster.wait_until_idle()
        text = cluster.log.read_text()
        assert len(text) < MAX_LOG_BYTES
        assert "Traceback" not in text
