"""`baton collect-env`: a report of this machine and its packages, for reports of errors.

Loads nothing heavy and never fails: what cannot be found out is said to be unknown. Secrets are left out.
"""

from __future__ import annotations

import os
import platform
import re
import shutil
import subprocess
import sys
from collections.abc import Callable, Iterator, Mapping
from importlib.metadata import PackageNotFoundError, version
from pathlib import Path
from typing import Final

_PACKAGES: Final = (
    *("baton", "torch", "triton", "transformers", "tokenizers", "safetensors", "numpy", "huggingface-hub"),
    *("grpcio", "protobuf", "msgspec", "pyzmq", "nixl", "redis", "xxhash", "jinja2", "pyyaml"),
)
_COMPILERS: Final = ("g++", "gcc", "clang++", "nvcc", "ninja")
_CPU_FLAGS: Final = (
    *("avx", "avx2", "fma", "f16c", "avx512f", "avx512bw", "avx512vl", "avx512_vnni", "avx512_bf16"),
    *("avx512_fp16", "avx_vnni", "amx_tile", "amx_bf16", "amx_int8", "asimd", "sve", "bf16", "i8mm"),
)
_CGROUP_FILES: Final = {
    "memory": ("memory.max", "memory/memory.limit_in_bytes"),
    "memory in use": ("memory.current", "memory/memory.usage_in_bytes"),
    "cpu quota": ("cpu.max", "cpu/cpu.cfs_quota_us"),
    "cpus": ("cpuset.cpus.effective", "cpuset/cpuset.cpus"),
}
_VARIABLES: Final = re.compile(
    r"(BATON|VLLM|OMP|MKL|KMP|OPENBLAS|CUDA|NVIDIA|NCCL|UCX|TORCH|PYTORCH|TRITON|HF|GRPC)_\w+|LD_LIBRARY_PATH|LD_PRELOAD"
)
_SECRET_NAME: Final = re.compile(r"TOKEN|KEY|SECRET|PASSWORD|PASSWD|CREDENTIAL|AUTH|COOKIE", re.IGNORECASE)
_SECRET_VALUE: Final = re.compile(r"(?<=//)[^/@\s]+(?=@)|\b(hf|sk|ghp|xox\w)[-_]\w{8,}")
_WITHIN_S: Final = 5.0


def environment_report() -> str:
    """Return the report, section by section."""
    sections: dict[str, Callable[[], Iterator[str]]] = {
        "system": _system,
        "cpu": _cpu,
        "memory and limits": _memory,
        "packages": _packages,
        "cuda": _cuda,
        "compilers": _compilers,
        "environment": lambda: environment_lines(os.environ),
    }
    return "\n".join(f"{title}\n{_indented(lines)}" for title, lines in sections.items())


def environment_lines(environment: Mapping[str, str]) -> Iterator[str]:
    """The variables that change what Baton does, without secrets."""
    for name in sorted(filter(_VARIABLES.fullmatch, environment)):
        hidden = "(redacted)" if _SECRET_NAME.search(name) else None
        yield f"{name}: {hidden or _SECRET_VALUE.sub('(redacted)', environment[name])}"


def _indented(lines: Callable[[], Iterator[str]]) -> str:
    """A section's text; what breaks it becomes its last line."""
    found: list[str] = []
    try:
        for line in lines():
            found.append(line)  # one by one: what came before an error is kept
    except Exception as error:  # whatever a strange machine answers, the other sections are wanted
        found.append(f"unknown ({type(error).__name__}: {error})")
    return "".join(f"  {line}\n" for line in found or ["none"])


def _system() -> Iterator[str]:
    yield f"python: {platform.python_version()} ({sys.executable})"
    yield f"os: {platform.platform()}"
    yield f"libc: {' '.join(platform.libc_ver())}"
    yield f"distribution: {platform.freedesktop_os_release().get('PRETTY_NAME', 'unknown')}"


def _cpu() -> Iterator[str]:
    facts: dict[str, str] = {}
    for line in Path("/proc/cpuinfo").read_text().partition("\n\n")[0].splitlines():
        name, _, value = line.partition(":")
        facts[name.strip()] = value.strip()
    yield f"model: {facts.get('model name') or platform.processor() or platform.machine()}"
    yield f"cores: {os.cpu_count()}, usable: {len(os.sched_getaffinity(0))}"
    flags = (facts.get("flags") or facts.get("Features") or "").split()
    yield f"flags: {' '.join(flag for flag in _CPU_FLAGS if flag in flags)}"


def _memory() -> Iterator[str]:
    for line in Path("/proc/meminfo").read_text().splitlines():
        name, _, value = line.partition(":")
        if name in ("MemTotal", "MemAvailable", "SwapTotal", "Hugepagesize", "HugePages_Total"):
            yield f"{name}: {value.strip()}"
    shared = shutil.disk_usage("/dev/shm")  # noqa: S108 (asked for its size)
    yield f"shared memory: {shared.total} bytes, {shared.free} free"
    for what, names in _CGROUP_FILES.items():
        paths = [path for name in names if (path := Path("/sys/fs/cgroup", name)).is_file()]
        if paths:
            yield f"cgroup {what}: {paths[0].read_text().strip()}"


def _packages() -> Iterator[str]:
    for name in _PACKAGES:
        try:
            yield f"{name}: {version(name)}"
        except PackageNotFoundError:
            yield f"{name}: not installed"


def _cuda() -> Iterator[str]:
    """Asks the driver's own tool: torch takes seconds to load, and memory on every device."""
    fields = "name,memory.total,driver_version,compute_cap"
    yield from _output_of("nvidia-smi", f"--query-gpu={fields}", "--format=csv,noheader")


def _compilers() -> Iterator[str]:
    for name in _COMPILERS:
        said = list(_output_of(name, "--version"))
        if said:
            release = next((line for line in said if "release" in line), said[0])
            yield f"{name}: {release}"


def _output_of(name: str, *arguments: str) -> Iterator[str]:
    """Lines that a program prints; none if it is not installed."""
    path = shutil.which(name)
    if path is None:
        return
    try:
        command = [path, *arguments]
        ended = subprocess.run(command, capture_output=True, text=True, timeout=_WITHIN_S, check=False)
    except (OSError, subprocess.SubprocessError) as error:
        yield f"{name} failed: {error}"
        return
    yield from (ended.stdout or ended.stderr).strip().splitlines()
