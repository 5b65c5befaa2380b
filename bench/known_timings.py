"""Profiles of machines that come with the benchmarks, by name."""

from __future__ import annotations

from pathlib import Path

from baton_core.errors import InvalidConfigError
from baton_simulator.capacity.step_timing import TimingProfile, read_profile

FOLDER = Path(__file__).parent / "timings"


def named_profile(name: str) -> TimingProfile:
    """Read one of `bench/timings`, or a file.

    Raises:
        InvalidConfigError: there is none, or it is no profile.
    """
    known = sorted(path.stem for path in FOLDER.glob("*.json"))
    path = FOLDER / f"{name}.json" if name in known else Path(name)
    if not path.is_file():
        raise InvalidConfigError(f"timing is {name!r}; allowed: a file, or {', '.join(known)}")
    return read_profile(path)
