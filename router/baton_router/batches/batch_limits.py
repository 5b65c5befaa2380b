"""Bounds of the files and batches that one router keeps."""

from __future__ import annotations

import math
from dataclasses import dataclass
from typing import Final

from baton_core.errors import require
from baton_router.core.batches.line_pace import DEFAULT_LINES_BESIDE

MAX_AGE_S: Final = 365 * 24 * 3600.0


@dataclass(frozen=True, slots=True, kw_only=True)
class BatchLimits:
    """Where one router keeps files, and how many; counts and bytes hold for each key.

    Raises:
        InvalidConfigError: a value is out of range; the message names flag, value and what is allowed.
    """

    folder: str = ""
    """Folder of the files; empty: there are none, and no batches."""
    max_file_bytes: int = 200 * 2**20
    """Size of a file that is uploaded."""
    max_files: int = 1000
    max_files_bytes: int = 10 * 2**30
    """Bytes of all files together, with the results of batches that are not over."""
    max_age_s: float = 30 * 24 * 3600.0
    """Age of files and batches; those that are in use stay."""
    max_batches: int = 100
    """Batches that are kept: the oldest that are over go first."""
    max_lines: int = 50_000
    """Requests of a batch."""
    max_inflight: int = 8
    """Requests of all batches together that are answered at a time."""
    lines_beside: float = DEFAULT_LINES_BESIDE
    """Mean number of them beside other requests, for each worker that computes prompts."""

    def __post_init__(self) -> None:
        for flag, value in (
            ("--max-file-bytes", self.max_file_bytes),
            ("--max-files", self.max_files),
            ("--max-files-bytes", self.max_files_bytes),
            ("--max-batches", self.max_batches),
            ("--max-batch-lines", self.max_lines),
            ("--max-batch-inflight", self.max_inflight),
        ):
            require(flag, value, value >= 1, "1 or more")
        is_number = math.isfinite(self.lines_beside) and self.lines_beside >= 0
        require("--batch-lines-beside", self.lines_beside, is_number, "0 or more")
        is_age = math.isfinite(self.max_age_s) and 0 < self.max_age_s <= MAX_AGE_S
        require("--max-file-age", self.max_age_s, is_age, f"seconds, over 0 and up to {MAX_AGE_S:.0f}")
