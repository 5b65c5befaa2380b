"""The banner of `baton serve` when everything is ready."""

from __future__ import annotations

import pytest

from baton.processes.banner import Place, banner


def test_the_banner_tells_every_address_and_the_workers_of_each_kind() -> None:
    place = Place(http="127.0.0.1:8000", grpc="127.0.0.1:8100")
    assert banner("docs", {"decode": 2, "prefill": 1, "mixed": 3}, place, 4.04).splitlines() == [
        "serving docs with 1 prefill worker, 2 decode workers and 3 mixed workers, ready after 4.0 s",
        "  chat page        http://127.0.0.1:8000/",
        "  dashboard        http://127.0.0.1:8000/dashboard",
        "  OpenAI base URL  http://127.0.0.1:8000/v1",
        "  API docs         http://127.0.0.1:8000/docs",
        "  gRPC             127.0.0.1:8100",
    ]


@pytest.mark.parametrize(
    ("bound", "shown"),
    [("0.0.0.0:80", "127.0.0.1:80"), ("[::]:80", "[::1]:80"), ("[::1]:80", "[::1]:80"), ("box:80", "box:80")],
)
def test_addresses_can_be_followed_from_this_machine(bound: str, shown: str) -> None:
    text = banner("m", {"mixed": 1}, Place(http=bound, grpc=bound, scheme="https"), 1.0)
    assert f"https://{shown}/v1" in text
    assert text.endswith(f"gRPC             {shown}")
    assert "with 1 mixed worker, ready" in text
