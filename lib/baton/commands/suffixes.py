"""Numbers with a unit behind them, such as 16k tokens or 1.5GiB.

A single letter is decimal in lower case and binary in upper case, as in vLLM: 1k is 1000, 1K is 1024. Bytes
also take the units of SI and IEC: 1KB is 1000, 1KiB and 1Ki are 1024.
"""

from __future__ import annotations

import re
from dataclasses import dataclass
from fractions import Fraction
from typing import Final

_NUMBER: Final = r"([0-9]{1,12}(?:\.[0-9]{1,12})?)"
_COUNT: Final = re.compile(rf"{_NUMBER}([kKmMgGtT])()")
_BYTES: Final = re.compile(rf"{_NUMBER} ?(?=[a-zA-Z])([kKmMgGtT]?)((?<=[a-zA-Z])iB?|B|)")
_POWERS: Final = {"": 0, "k": 1, "m": 2, "g": 3, "t": 4}


@dataclass(frozen=True, slots=True)
class Suffixes:
    """Units that a flag takes."""

    words: str
    """Examples, for errors."""
    pattern: re.Pattern[str]
    rounds_down: bool = False
    """A part of a whole number is left out; otherwise the number stays a fraction, which no integer is."""

    def read(self, text: str) -> int | float | None:
        """The number that a text with a unit means; None for a text without one."""
        match = self.pattern.fullmatch(text)
        if match is None:
            return None
        digits, prefix, unit = match.groups()
        is_binary = unit.startswith("i") or (unit == "" and prefix.isupper())
        number = Fraction(digits) * (1024 if is_binary else 1000) ** _POWERS[prefix.lower()]
        return int(number) if self.rounds_down or number.denominator == 1 else float(number)


COUNT: Final = Suffixes("16k or 16K", _COUNT)
BYTES: Final = Suffixes("500M, 1.5GiB or 2GB", _BYTES, rounds_down=True)
