"""Names of vLLM's modules that scripts import beside its engine, and that Baton has no other use for.

Each does what vLLM documents, as far as it has a meaning where one process computes a whole model.
"""

from __future__ import annotations

import gc
import logging
import sys
import uuid
from collections.abc import Sequence
from enum import StrEnum
from functools import cache
from importlib.metadata import version
from typing import Final

from baton.vllm_alias import envs
from baton_service.reachability import reachable_host
from baton_service.tcp import listen_at

__version__: Final = version("vllm")
"""The release of vLLM whose documented interfaces Baton has, with `+baton` at its end."""
__version_tuple__: Final = tuple(
    int(part) if part.isdigit() else part for part in __version__.replace("+", ".").split(".")
)
ExternalBlockHash = bytes | int
"""Type of the hashes of blocks in events of the prefix cache."""
_NUM_SHOWN: Final = 4
"""Numbers of a vector that `print_embeddings` shows."""
_FAR_AWAY: Final = "8.8.8.8:53"
"""An address behind the interface that other machines know; nothing is sent to it."""


class UsageContext(StrEnum):
    """The part of vLLM that reports its use; Baton reports to nobody."""

    UNKNOWN_CONTEXT = "UNKNOWN_CONTEXT"
    LLM_CLASS = "LLM_CLASS"
    API_SERVER = "API_SERVER"
    OPENAI_API_SERVER = "OPENAI_API_SERVER"
    OPENAI_BATCH_RUNNER = "OPENAI_BATCH_RUNNER"
    ENGINE_CONTEXT = "ENGINE_CONTEXT"


def is_usage_stats_enabled() -> bool:
    """Return False: no figures of usage leave the machine."""
    return False


class OnceLogger(logging.LoggerAdapter[logging.Logger]):
    """A logger that can also log a message the first time only."""

    def debug_once(self, message: str, *args: object, **_scope: object) -> None:
        _log_once(self.logger, logging.DEBUG, message, args)

    def info_once(self, message: str, *args: object, **_scope: object) -> None:
        _log_once(self.logger, logging.INFO, message, args)

    def warning_once(self, message: str, *args: object, **_scope: object) -> None:
        _log_once(self.logger, logging.WARNING, message, args)


def init_logger(name: str) -> OnceLogger:
    """Return the logger of a module."""
    return OnceLogger(logging.getLogger(name), {})


@cache
def _log_once(logger: logging.Logger, level: int, message: str, args: tuple[object, ...]) -> None:
    logger.log(level, message, *args)


class Platform:
    """The device that computes."""

    @property
    def device_type(self) -> str:
        return "cuda" if self.is_cuda() else "cpu"

    device_name = device_type

    def is_cuda(self) -> bool:
        import torch  # scripts ask for the platform rarely, and torch takes seconds to load

        return torch.cuda.is_available()

    is_cuda_alike = is_cuda

    def is_cpu(self) -> bool:
        return not self.is_cuda()

    def is_rocm(self) -> bool:
        return False

    is_tpu = is_xpu = is_rocm


current_platform: Final = Platform()


def get_tensor_model_parallel_world_size() -> int:
    """Return the number of devices that compute a model."""
    return 1


def get_tensor_model_parallel_rank() -> int:
    """Return the number of this device among them."""
    return 0


def destroy_model_parallel() -> None:
    """Do nothing: one device computes a model, and no group of processes is there to end."""


destroy_distributed_environment = destroy_model_parallel


def cleanup_dist_env_and_memory(shutdown_ray: bool = False) -> None:
    """Free the memory of engines that nothing refers to."""
    gc.collect()


def random_uuid() -> str:
    """Return 16 random hexadecimal digits."""
    return uuid.uuid4().hex[:16]


def get_ip() -> str:
    """Return this machine's address as other machines see it."""
    return envs.VLLM_HOST_IP or reachable_host("tcp://0.0.0.0:0", "", _FAR_AWAY)


def get_open_port() -> int:
    """Return a port of this machine that was free a moment ago."""
    with listen_at("127.0.0.1", 0) as listener:
        return int(listener.getsockname()[1])


def print_embeddings(embeds: Sequence[float], prefix: str = "Embeddings") -> None:
    """Print the first numbers of a vector, and how many it has."""
    numbers = [str(one) for one in embeds[:_NUM_SHOWN]] + ["..."] * (len(embeds) > _NUM_SHOWN)
    sys.stdout.write(f"{prefix}: [{', '.join(numbers)}] (size={len(embeds)})\n")
