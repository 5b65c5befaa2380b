"""The output files of a batch that is over: its answers, and the lines without one."""

from __future__ import annotations

from collections.abc import Iterable, Iterator
from contextlib import suppress
from itertools import count
from pathlib import Path
from typing import Any, NamedTuple

import msgspec

from baton_router.batches.batch_run import new_result_id
from baton_router.batches.partial_results import read_lines
from baton_router.batches.record_folder import write_whole
from baton_router.core.batches.batch_lines import BatchRequest
from baton_router.core.batches.batch_results import BatchError, BatchResult


class _Outcome(msgspec.Struct):
    custom_id: str | None
    error: Any


class Written(NamedTuple):
    """The size of a file that is written."""

    num_bytes: int
    num_lines: int


def write_outputs(
    partial: Path, source: Path, output: Path, errors: Path, *, lacking: BatchError | None
) -> tuple[Written, Written]:
    """Write the answers of a partial file to `output`, and its other lines to `errors`; blocks.

    Lines of the input `source` that have no result get the error `lacking`, if there is one and the input is
    still there. A file without lines is not made. Returns the sizes of both files.

    Raises:
        OSError: a file cannot be read or written.
    """
    done: set[str | None] = set()

    def failed() -> Iterator[bytes]:
        for outcome, line in _results(partial):
            done.add(outcome.custom_id)
            if outcome.error is not None:
                yield line
        if lacking is None:
            return
        with suppress(FileNotFoundError):
            for request in read_lines(source):
                if isinstance(request, BatchRequest) and request.custom_id not in done:
                    name = request.custom_id
                    done.add(name)
                    result = BatchResult(id=new_result_id(), custom_id=name, response=None, error=lacking)
                    yield msgspec.json.encode(result) + b"\n"

    answers = (line for outcome, line in _results(partial) if outcome.error is None)
    return _write(output, answers), _write(errors, failed())


def _results(partial: Path) -> Iterator[tuple[_Outcome, bytes]]:
    """Yield what the lines of a partial file say; a line that is torn ends it."""
    try:
        file = partial.open("rb")
    except FileNotFoundError:
        return
    with file:
        for line in file:
            try:
                yield msgspec.json.decode(line, type=_Outcome), line
            except (msgspec.DecodeError, UnicodeDecodeError):
                return


def _write(path: Path, lines: Iterable[bytes]) -> Written:
    numbers = count()
    size = write_whole(path, (line for line, _ in zip(lines, numbers, strict=False))).st_size
    if not size:
        path.unlink()
    return Written(size, next(numbers))
