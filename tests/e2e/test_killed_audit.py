"""The audit of vLLM's items, killed on its way: its servers end with it."""

from __future__ import annotations

import os
import subprocess
import sys
from pathlib import Path

import pytest

from tests.e2e.processes import READY_WITHIN_S, STOP_WITHIN_S, Family, children_of, family_of, until

ROOT = Path(__file__).parents[2]
AUDIT = (sys.executable, "-m", "tools.vllm_audit", "--group", "command line and servers")
SERVER = ("baton serve", "baton router", "baton mixed-worker")


def titles_of(pid: int) -> list[str]:
    """Titles of all descendants."""
    found = children_of(pid)
    return [*found.values(), *(title for child in found for title in titles_of(child))]


@pytest.mark.slow
def test_servers_of_a_killed_audit_end(tmp_path: Path) -> None:
    environment = {**os.environ, "TMPDIR": str(tmp_path)}
    with subprocess.Popen(AUDIT, cwd=ROOT, env=environment, stdout=subprocess.DEVNULL) as audit:
        try:
            until(lambda: {*SERVER} <= {*titles_of(audit.pid)}, READY_WITHIN_S, "a server and its processes")
            with Family(family_of(audit.pid)[1:]) as family:
                assert family.num_sockets > 0
                audit.kill()
                assert audit.wait(STOP_WITHIN_S) != 0
                family.wait_until_gone(STOP_WITHIN_S)
        finally:
            audit.kill()
