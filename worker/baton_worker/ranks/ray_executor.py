"""Ranks as actors of a Ray cluster: Ray places and watches them, and carries nothing of a step."""

from __future__ import annotations

import os
import secrets
from collections.abc import Callable, Iterable, Mapping, Sequence
from contextlib import closing, suppress
from fnmatch import fnmatchcase
from importlib import import_module
from typing import Any, ClassVar, Final, Self

import ray
from ray.exceptions import GetTimeoutError, RayError
from ray.util.placement_group import remove_placement_group
from ray.util.scheduling_strategies import PlacementGroupSchedulingStrategy

from baton_core.errors import ErrorCode, RequestError
from baton_core.ranks.rank_layout import ParallelSizes
from baton_engine.device import resolve_device
from baton_engine.engine_settings import EngineSettings
from baton_worker.ranks import ray_cluster
from baton_worker.ranks.executor_settings import ExecutorSettings, RaySettings
from baton_worker.ranks.rank_channel import RankChannel
from baton_worker.ranks.rank_listener import RankListener
from baton_worker.ranks.rank_starter import RankStarter, StartedRank

_CONNECTS_WITHIN_S: Final = 60.0
_END_WITHIN_S: Final = 5.0
"""Time for Ray to notice the end of an actor, or the loss of its node."""


class RayExecutor(RankStarter):
    """Starts ranks in the bundles of a placement group. The leader, this process, takes the first bundle.

    Args:
        resource: the resource of which each rank has one.
    """

    supports_pp: ClassVar[bool] = True

    def __init__(self, settings: RaySettings, sizes: ParallelSizes, resource: str) -> None:
        self._settings = settings
        self._sizes = sizes
        self._resource = resource
        self._group: Any = None
        self._actors: list[Any] = []

    @classmethod
    def of(cls, executor: ExecutorSettings, settings: EngineSettings) -> Self:
        resource = ray_cluster.RESOURCES[resolve_device(settings.device).type]
        return cls(executor.ray, settings.parallel, resource)

    def start(self, ranks: Sequence[int]) -> list[StartedRank]:
        """Start these ranks.

        Raises:
            InvalidConfigError: there is no cluster, or no place in it.
            RequestError: UNAVAILABLE, an actor has not started.
        """
        settings, sizes = self._settings, self._sizes
        ray_cluster.connect(settings.address)
        group, is_new = ray_cluster.find_group(settings, sizes.num_ranks, self._resource)
        self._group = group if is_new else None
        try:
            places = ray_cluster.places(group, sizes.num_ranks, self._resource)
            nodes = [node for _, node in places]
            ray_cluster.warn_of_spread(nodes, sizes.tensor)
            self.host = ray.util.get_node_ip_address()
            self.num_on_host = max(1, nodes.count(ray_cluster.own_node()))
            bundle_of = {rank: bundle for rank, (bundle, _) in zip(sizes.leader_first, places, strict=True)}
            if self._resource == ray_cluster.RESOURCES["cuda"]:
                self.device_index = ray_cluster.own_gpu(group, bundle_of[sizes.leader], settings.timeout_s)
            return self._start_actors(group, {rank: bundle_of[rank] for rank in ranks})
        except BaseException:
            self.close()
            raise

    def close(self) -> None:
        """End the actors, and give the placement group back if it was made for them."""
        if ray.is_initialized():
            with suppress(RayError, TimeoutError, ValueError):
                ray_cluster.within(_END_WITHIN_S, self._give_back)
        self._actors, self._group = [], None

    def _give_back(self) -> None:
        for actor in self._actors:
            ray.kill(actor, no_restart=True)
        if self._group is not None:
            remove_placement_group(self._group)

    def _start_actors(self, group: Any, bundles: Mapping[int, int]) -> list[StartedRank]:
        token = secrets.token_hex(16)
        environment = chosen_environment(self._settings.environment)
        with closing(RankListener(self.host, 0, {}, token=token)) as listener:
            calls: dict[int, tuple[Any, Any]] = {}
            for rank, bundle in bundles.items():
                actor = _actor_in(group, bundle, self._resource)
                self._actors.append(actor)
                call = actor.follow.remote(listener.address, rank, token, _CONNECTS_WITHIN_S, environment)
                calls[rank] = actor, call
            check = _checking({rank: call for rank, (_, call) in calls.items()})
            channels = listener.accept(set(bundles), self._settings.timeout_s, check)
        return [RayRank(rank, channels[rank], *calls[rank]) for rank in bundles]


class RankActor:
    """The actor of one rank."""

    def follow(
        self,
        address: tuple[str, int],
        rank: int,
        token: str,
        within_s: float,
        environment: Mapping[str, str],
    ) -> None:
        """Follow the leader at an address to its end; variables that the node has stay as they are."""
        for name, value in environment.items():
            os.environ.setdefault(name, value)
        # By its name, as other ranks are started: this package is below it.
        import_module("baton_worker.rank_process").follow(address, rank, {}, token, within_s)


class RayRank(StartedRank):
    """A rank that is an actor, which ends when Ray is shut down.

    Calls of Ray would start another cluster then.
    """

    def __init__(self, rank: int, channel: RankChannel, actor: Any, call: Any) -> None:
        super().__init__(rank, channel)
        self._actor = actor
        self._call = call

    def kill(self) -> None:
        if ray.is_initialized():
            with suppress(RayError, ValueError):  # an actor of a cluster that was left is no actor here
                ray.kill(self._actor, no_restart=True)

    def has_ended(self, within_s: float) -> bool:
        if not ray.is_initialized():
            return True
        ended, _ = ray.wait([self._call], timeout=within_s)
        return bool(ended)

    def why_ended(self) -> str:
        return why_ended(self._call, _END_WITHIN_S) or "its actor has closed the channel"


def why_ended(call: Any, within_s: float) -> str:
    """Return how an actor's call ended; empty where it goes on for longer."""
    if not ray.is_initialized():
        return "Ray was shut down"
    try:
        ray.get(call, timeout=within_s)
    except GetTimeoutError:
        return ""
    except RayError as error:
        lines = [line.strip() for line in str(error).splitlines() if line.strip()]
        return f"its actor failed: {type(error).__name__}: {lines[-1] if lines else ''}"
    return "its actor has ended"


def chosen_environment(names: Iterable[str]) -> dict[str, str]:
    """Return the environment variables of these names; a name may end in an asterisk."""
    patterns = tuple(names)
    return {
        name: value
        for name, value in os.environ.items()
        if any(fnmatchcase(name, pattern) for pattern in patterns)
    }


def _actor_in(group: Any, bundle: int, resource: str) -> Any:
    place = PlacementGroupSchedulingStrategy(
        placement_group=group,
        placement_group_bundle_index=bundle,
        placement_group_capture_child_tasks=True,
    )
    num_gpus = int(resource == ray_cluster.RESOURCES["cuda"])
    return ray.remote(num_cpus=0, num_gpus=num_gpus, scheduling_strategy=place)(RankActor).remote()


def _checking(calls: Mapping[int, Any]) -> Callable[[], None]:
    def check() -> None:
        for rank, call in calls.items():
            if why := why_ended(call, 0):
                text = f"rank {rank} of the model's ranks has not started: {why}"
                raise RequestError(ErrorCode.UNAVAILABLE, text)

    return check
