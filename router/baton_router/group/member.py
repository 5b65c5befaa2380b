"""The place of one process in a router of several processes."""

from __future__ import annotations

from dataclasses import dataclass
from pathlib import Path

from baton_core.errors import InvalidConfigError


@dataclass(frozen=True, slots=True, kw_only=True)
class Member:
    """One of `size` processes that serve the same ports. They find each other in a folder of their own."""

    index: int
    size: int
    folder: Path

    @classmethod
    def read(cls, text: str, size: int) -> Member:
        """Return the member that `INDEX:FOLDER` names, which the process that starts all of them writes.

        Raises:
            InvalidConfigError: there is no such process.
        """
        index, _, folder = text.partition(":")
        if not (index.isdecimal() and int(index) < size and Path(folder).is_dir()):
            allowed = f"a number below {size}, a colon, and a folder"
            raise InvalidConfigError(f"--group-member is {text!r}; allowed: {allowed}")
        return cls(index=int(index), size=size, folder=Path(folder))

    @property
    def names(self) -> dict[str, str]:
        """Its name in the log, by its field of a line in JSON."""
        return {"process": str(self.index)}

    @property
    def others(self) -> tuple[int, ...]:
        """Numbers of the other processes."""
        return tuple(index for index in range(self.size) if index != self.index)

    @property
    def is_first_start(self) -> bool:
        """True for the process that takes the ports, before any process has."""
        return self.index == 0 and not self.socket(0).exists()

    def socket(self, index: int) -> Path:
        """Return where a process listens for the others."""
        return self.folder / f"{index}.sock"
