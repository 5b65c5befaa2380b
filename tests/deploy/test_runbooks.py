"""The commands of runbooks, run against servers of the test."""

from __future__ import annotations

import re
import ssl
import subprocess
import sys
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Final

from tests.certificates import Authority, needs_openssl
from tests.http_threads import Calls, serving_calls
from tools.k8s.manifests import ROOT

BODY: Final = b"no worker decodes: decode-1 drains"
_SCRIPT: Final = re.compile(r'-- python -c "(.*?)"\n', re.DOTALL)


class _NotReady(Calls):
    def do_GET(self) -> None:
        assert self.path == "/health"
        self.reply(503, BODY)


@contextmanager
def not_ready_router(context: ssl.SSLContext | None = None) -> Iterator[int]:
    """Yield the port of a server that answers as a router without workers."""
    with serving_calls(_NotReady, context) as address:
        yield int(address.rpartition(":")[2])


def run_documented(number: int, port: int) -> bytes:
    """Run a script of not_ready.md at another port; returns what it prints."""
    text = re.sub(r"^    ", "", (ROOT / "docs/runbooks/not_ready.md").read_text(), flags=re.MULTILINE)
    script = _SCRIPT.findall(text)[number].replace("8000", str(port))
    return subprocess.run(
        (sys.executable, "-c", script), capture_output=True, timeout=60, check=True
    ).stdout.strip()


def test_the_body_of_a_503_is_printed() -> None:
    with not_ready_router() as port:
        assert run_documented(0, port) == BODY


@needs_openssl
def test_the_body_of_a_503_is_printed_with_tls(tmp_path: Path) -> None:
    pair = Authority.make(tmp_path).issue("router", "DNS:router.baton.svc")
    context = ssl.SSLContext(ssl.PROTOCOL_TLS_SERVER)
    context.load_cert_chain(pair.certfile, pair.keyfile)
    with not_ready_router(context) as port:
        assert run_documented(1, port) == BODY
