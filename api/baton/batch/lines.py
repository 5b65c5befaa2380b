"""The input file of `baton run-batch`, and the requests to the server that answers it."""

from __future__ import annotations

import hashlib
import shutil
from pathlib import Path
from typing import Final

from baton_bench.http_client import HttpClient, RedirectError
from baton_core.errors import ErrorCode, InvalidConfigError, RequestError, shown_briefly
from baton_router.batches.batch_run import Ask
from baton_router.batches.partial_results import read_lines

WITH_PRIORITY: Final = ("/v1/chat/completions", "/v1/completions")
"""Routes whose bodies get a priority at servers of Baton."""


def count_lines(path: Path, name: str) -> int:
    """Return how many lines a file has, without the empty ones.

    Args:
        name: what errors call it.

    Raises:
        InvalidConfigError: it cannot be read, has none, or two of one custom_id.
    """
    seen: set[str | int] = set()
    try:
        for line in read_lines(path):
            if line.key in seen:
                raise InvalidConfigError(
                    f"--input-file is {name!r}, where custom_id is {shown_briefly(line.key)} on two "
                    "lines; allowed: another one on each line"
                )
            seen.add(line.key)
    except OSError as error:
        raise _not_read(name, error) from None
    if not seen:
        raise InvalidConfigError(f"--input-file is {name!r}; allowed: a file with requests")
    return len(seen)


def file_of(name: str, copy: Path) -> Path:
    """Return the file of a name; of what can be read once alone, such as a pipe, a copy at a path.

    Raises:
        InvalidConfigError: it cannot be read.
    """
    path = Path(name)
    try:
        if path.is_file():
            return path
        with path.open("rb") as source, copy.open("wb") as target:
            shutil.copyfileobj(source, target)
    except OSError as error:
        raise _not_read(name, error) from None
    return copy


def _not_read(name: str, error: OSError) -> InvalidConfigError:
    return InvalidConfigError(f"--input-file is {name!r}; allowed: a file of requests ({error.strerror})")


def digest_of(path: Path) -> str:
    """Return 8 hexadecimal digits that tell a file from others."""
    with path.open("rb") as file:
        return hashlib.file_digest(file, "sha256").hexdigest()[:8]


def asking(client: HttpClient) -> Ask:
    """Return what sends the requests of a batch to a client's server; one that redirects ends the batch."""

    async def ask(url: str, content: bytes, request_id: str) -> tuple[int, bytes]:
        whole = bytearray()
        headers = {"x-request-id": request_id}
        try:
            status = await client.request("POST", url, content, lambda piece, _: whole.extend(piece), headers)
        except RedirectError as error:
            text = f"{error}; allowed: the --url of a server that answers {url} itself"
            raise RequestError(ErrorCode.INVALID_REQUEST, text) from None
        return status, bytes(whole)

    return ask
