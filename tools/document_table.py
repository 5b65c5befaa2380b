"""A table of docs/models.md between two marks, written row by row."""

from __future__ import annotations

import platform
from collections.abc import Sequence
from dataclasses import dataclass
from datetime import UTC, datetime
from pathlib import Path
from typing import Final

import torch
import transformers

from baton_kernels.cpu.selection import load_build

DOCUMENT: Final = Path(__file__).parents[1] / "docs/models.md"


@dataclass(frozen=True, slots=True, kw_only=True)
class DocumentTable:
    """The table that one command writes; a run that was interrupted, or was of some rows alone, can go on."""

    tool: str
    """Name of its module in tools."""
    heading: Sequence[str]
    keys: Sequence[tuple[str, ...]]
    """The first cells of all rows, in their order."""

    @property
    def _marks(self) -> tuple[str, str]:
        begin, end = (f"<!-- written by tools/{self.tool}.py: {which} -->" for which in ("begin", "end"))
        return begin, end

    def read(self) -> dict[tuple[str, ...], list[str]]:
        """Return the rows that the document has; none, where its table has other columns."""
        begin, end = self._marks
        _, _, rest = DOCUMENT.read_text().partition(begin)
        lines = [line for line in rest.partition(end)[0].splitlines() if line.startswith("|")]
        heading, *rows = ([cell.strip() for cell in line[1:-1].split("|")] for line in lines or ["||"])
        if heading != list(self.heading):
            return {}
        found = {tuple(row[: len(self.keys[0])]): row for row in rows[1:]}
        return {key: found[key] for key in self.keys if key in found}

    def write(self, row: Sequence[str]) -> None:
        """Put a row into the document, in the place of the one that it has."""
        rows = {**self.read(), tuple(row[: len(self.keys[0])]): row}
        lines = [self.heading, ["---"] * len(self.heading), *(rows[key] for key in self.keys if key in rows)]
        table = "\n".join(f"| {' | '.join(cells)} |" for cells in lines)
        begin, end = self._marks
        before, _, rest = DOCUMENT.read_text().partition(begin)
        _, _, after = rest.partition(end)
        made = f"{begin}\n{self._describe_run()}\n\n{table}\n{end}"
        DOCUMENT.write_text(f"{before}{made}{after}")

    def _describe_run(self) -> str:
        """Return the line that says when and with what the table was made."""
        library = load_build()
        cpp = library.variant.name if library else "none"
        return (
            f"Made on {datetime.now(UTC):%Y-%m-%d} by `python -m tools.{self.tool}`: Python "
            f"{platform.python_version()}, torch {torch.__version__}, Transformers "
            f"{transformers.__version__}, float32 on a CPU, C++ kernels `{cpp}`."
        )
