from __future__ import annotations

import re
import urllib.request

from tests.e2e.processes import Cluster, until

LINE = re.compile(
    r"first blocks of worker prefill-0 came over shared_memory: [\d.]+ MiB in [\d.]+ ms, [\d.]+ GB/s; "
    r"this machine's best for as much as a block is [\d.]+ GB/s"
)


def test_workers_are_tried_when_they_join_and_tell_how_fast_blocks_come(cluster: Cluster) -> None:
    until(lambda: bool(LINE.search(cluster.log.read_text())), 60.0, "the bandwidth of the pair")
    assert "do not arrive" not in cluster.log.read_text()
    with urllib.request.urlopen(f"http://{cluster.http_address}/health", timeout=30.0) as answer:
        assert (answer.status, answer.read()) == (200, b"")
    with urllib.request.urlopen(f"http://{cluster.http_address}/metrics", timeout=30.0) as answer:
        assert b"baton_broken_pairs 0.0\n" in answer.read()
