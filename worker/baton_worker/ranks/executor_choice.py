"""The choice of how ranks are started."""

from __future__ import annotations

import sys
from importlib import import_module

from baton_core.errors import InvalidConfigError
from baton_engine.engine_settings import EngineSettings
from baton_worker.ranks.executor_settings import ExecutorSettings
from baton_worker.ranks.node_ranks import NodeRanks
from baton_worker.ranks.rank_starter import LocalRanks, RankStarter


def rank_starter(executor: ExecutorSettings, settings: EngineSettings) -> RankStarter:
    """Return what starts the ranks of a group whose leader this process is.

    Raises:
        InvalidConfigError: there is no such executor here.
    """
    return _starter_class(executor).of(executor, settings)


def default_backend() -> str:
    """Return ray for a process in a placement group of Ray's, else mp."""
    ray = sys.modules.get("ray")
    is_placed = ray and ray.is_initialized() and ray.util.get_current_placement_group() is not None
    return "ray" if is_placed else "mp"


def _starter_class(executor: ExecutorSettings) -> type[RankStarter]:
    match executor.backend:
        case "mp":
            return LocalRanks if executor.nnodes == 1 else NodeRanks
        case "ray":
            return _ray_executor()
        case name:
            return _named_executor(name)


def _ray_executor() -> type[RankStarter]:
    try:
        from baton_worker.ranks.ray_executor import RayExecutor  # Ray is optional, and slow to import.
    except ImportError as error:
        text = f"distributed_executor_backend is 'ray' without Ray ({error})"
        raise InvalidConfigError(f"{text}; allowed: ray after pip install 'baton[ray]', or mp") from error
    return RayExecutor


def _named_executor(name: str) -> type[RankStarter]:
    module, _, of_class = name.replace(":", ".").rpartition(".")
    try:
        found = getattr(import_module(module), of_class)
    except (ImportError, AttributeError, ValueError) as error:
        raise _no_executor(name, f" ({error})") from error
    if not (isinstance(found, type) and issubclass(found, RankStarter)):
        raise _no_executor(name, "")
    return found


def _no_executor(name: str, reason: str) -> InvalidConfigError:
    allowed = "mp, ray, or a class of baton_worker.ranks.rank_starter.RankStarter, as package.module.Class"
    return InvalidConfigError(f"distributed_executor_backend is {name!r}{reason}; allowed: {allowed}")
