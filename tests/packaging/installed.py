"""A wheel of this tree, and virtual environments that it is installed into, outside the repository."""

from __future__ import annotations

import os
import shutil
import subprocess
import sys
from dataclasses import dataclass
from pathlib import Path
from typing import Final

import pytest

ROOT: Final = Path(__file__).parents[2]
SOURCES: Final = (
    *("proto", "core", "sandbox", "service", "kernels", "kv_transfer", "engine", "prefill_worker"),
    *("decode_worker", "worker", "router", "simulator", "bench", "api"),
)
_BUILT_FROM: Final = ("pyproject.toml", "README.md", "LICENSE", *SOURCES)
_UNREACHABLE: Final = ("dns error", "error sending request", "Failed to fetch", "Could not connect")
"""Messages of uv where there is no index."""
_WITHIN_S: Final = 600.0


@dataclass(frozen=True, slots=True)
class Installed:
    """An environment with Baton in it; its commands run in a folder of their own, without this tree."""

    folder: Path

    @property
    def python(self) -> Path:
        return self.folder / "bin" / "python"

    @property
    def environment(self) -> dict[str, str]:
        """The environment of its commands; warnings are shown."""
        kept = {name: value for name, value in os.environ.items() if not name.startswith("PYTHON")}
        return {**kept, "PYTHONWARNINGS": "default"}

    @property
    def cwd(self) -> Path:
        folder = self.folder.with_name(f"{self.folder.name}-cwd")
        folder.mkdir(exist_ok=True)
        return folder

    def baton(self, *args: str) -> subprocess.CompletedProcess[str]:
        """Run the `baton` command that was installed."""
        return self.run(str(self.folder / "bin" / "baton"), *args)

    def run(self, *command: str, within_s: float = 60.0) -> subprocess.CompletedProcess[str]:
        """Run a command without input."""
        return subprocess.run(
            command,
            cwd=self.cwd,
            env=self.environment,
            stdin=subprocess.DEVNULL,
            capture_output=True,
            text=True,
            timeout=within_s,
        )

    def install(self, *requirements: str) -> None:
        """Add packages."""
        uv("pip", "install", "--python", str(self.python), *requirements)


def build_wheel(folder: Path) -> Path:
    """Build it from a copy of the tree, which stays as it is."""
    source = folder / "source"
    source.mkdir()
    skipped = shutil.ignore_patterns("__pycache__", "*.egg-info", "build")
    for name in _BUILT_FROM:
        if (ROOT / name).is_dir():
            shutil.copytree(ROOT / name, source / name, ignore=skipped)
        else:
            shutil.copy(ROOT / name, source)
    uv("build", "--wheel", "--out-dir", str(folder / "dist"), str(source))
    (wheel,) = (folder / "dist").glob("*.whl")
    return wheel


def make_environment(folder: Path, python: str = sys.executable) -> Installed:
    """An environment with nothing in it."""
    uv("venv", "--python", python, str(folder))
    return Installed(folder)


def uv(*args: str) -> None:
    """Run uv; skips the test where it is missing or reaches no package index."""
    beside = Path(sys.executable).with_name("uv")
    command = str(beside) if beside.exists() else shutil.which("uv")
    if command is None:
        pytest.skip("uv is not installed")
    done = subprocess.run(
        [command, "--quiet", *args], cwd="/", capture_output=True, text=True, timeout=_WITHIN_S
    )
    if done.returncode and any(sign in done.stderr for sign in _UNREACHABLE):
        pytest.skip(f"no package index can be reached: {done.stderr.strip().splitlines()[-1]}")
    assert done.returncode == 0, done.stderr
