"""A Ray cluster and the placement group in which the ranks of a model have their places.

Ray is optional: whoever imports this has asked for it.
"""

from __future__ import annotations

import logging
import os
import threading
from collections.abc import Callable, Mapping, Sequence
from concurrent.futures import Future
from functools import partial
from typing import Any, Final
from uuid import uuid4

import ray
from ray.exceptions import RayError
from ray.util.placement_group import (
    PlacementGroup,
    get_current_placement_group,
    get_placement_group,
    placement_group,
    placement_group_table,
    remove_placement_group,
)
from ray.util.scheduling_strategies import PlacementGroupSchedulingStrategy

from baton_core.errors import InvalidConfigError
from baton_worker.ranks.executor_settings import RaySettings, visible_gpus

RESOURCES: Final = {"cpu": "CPU", "cuda": "GPU"}
"""Ray's resources by types of devices."""
_CONNECTS_WITHIN_S: Final = 60.0
_NODE_LABEL: Final = "ray.io/node-id"
_TRIES_S: Final = (10.0, 20.0, 40.0)
"""First waits for a placement group, after each of which the log says so; the last is repeated."""
_log = logging.getLogger(__name__)


class RayPlacementError(InvalidConfigError):
    """A Ray cluster, or a placement group of it, that cannot take the ranks."""


def connect(address: str | None, runtime_env: Mapping[str, Any] | None = None) -> None:
    """Connect this process to a Ray cluster, unless it is connected; None is Ray's own default.

    Raises:
        InvalidConfigError: there is no cluster, or it is reached by a Ray client.
    """
    os.environ.setdefault("RAY_USAGE_STATS_ENABLED", "0")
    if not ray.is_initialized():
        try:
            within(_CONNECTS_WITHIN_S, partial(ray.init, address=address, runtime_env=runtime_env))
        except (ConnectionError, TimeoutError, ValueError) as error:
            allowed = "the address of a Ray cluster that runs, as host:port, or auto"
            raise InvalidConfigError(f"ray_address is {address!r} ({error}); allowed: {allowed}") from error
    if ray.util.client.ray.is_connected():
        allowed = "a cluster that this machine is a node of: the leader of the ranks computes here"
        raise InvalidConfigError(f"ray_address is {address!r}, a Ray client's; allowed: {allowed}")


def within(timeout_s: float, action: Callable[[], object]) -> None:
    """Do something on a thread that is left alone once the time is up: Ray waits for its servers without end.

    Raises:
        TimeoutError: it takes longer.
        Exception: whatever it raises.
    """
    done: Future[None] = Future()

    def run() -> None:
        try:
            action()
            done.set_result(None)
        except BaseException as error:
            done.set_exception(error)

    threading.Thread(target=run, name="ray", daemon=True).start()
    try:
        done.result(timeout_s)
    except TimeoutError as error:
        raise TimeoutError(str(error) or f"no answer within {timeout_s:g} s") from error


def own_node() -> str:
    """Return the id of the node that this process runs on."""
    return str(ray.get_runtime_context().get_node_id())


def find_group(
    settings: RaySettings, world_size: int, resource: str, *, needs_driver: bool = True
) -> tuple[PlacementGroup, bool]:
    """Return the placement group of the ranks, and True if it is a new one.

    Args:
        resource: the resource of which each rank has one.
        needs_driver: True if a new group has its first bundle on this node.

    Raises:
        RayPlacementError: the cluster has no place for it, or the group that exists is too small.
    """
    group = _existing(settings)
    if group is None:
        return _new_group(settings, world_size, resource, needs_driver=needs_driver), True
    bundles = [one.get(resource, 0.0) for one in group.bundle_specs]
    if any(number > 1 for number in bundles):
        text = f"placement_group has a bundle with {max(bundles):g} {resource}"
        raise RayPlacementError(f"{text}; allowed: at most 1 in each, one for each rank")
    if sum(number == 1 for number in bundles) < world_size:
        text = f"placement_group has {sum(number == 1 for number in bundles)} bundles with 1 {resource}"
        raise RayPlacementError(f"{text}; allowed: at least {world_size}, one for each rank")
    return group, False


def name_of(group: PlacementGroup) -> str | None:
    """Return the name of a placement group; None where it has none."""
    return placement_group_table(group)["name"] or None


def places(group: PlacementGroup, world_size: int, resource: str) -> list[tuple[int, str]]:
    """Return a bundle for each rank with its node, in the order of `ParallelSizes.leader_first`.

    Bundles of this node come first, then node by node, those with fewer bundles first.

    Raises:
        RayPlacementError: a bundle is on a node that is lost.
    """
    nodes: dict[int, str] = placement_group_table(group)["bundles_to_node_id"]
    if lost := sorted(set(nodes.values()) - {one["NodeID"] for one in _nodes()}):
        raise RayPlacementError(f"placement_group has bundles on {lost[0]}; allowed: nodes that are alive")
    usable = [number for number, bundle in enumerate(group.bundle_specs) if bundle.get(resource, 0.0) == 1]
    counts = {node: sum(nodes[one] == node for one in usable) for node in nodes.values()}
    here = own_node()
    ordered = sorted(usable, key=lambda one: (nodes[one] != here, counts[nodes[one]], nodes[one], one))
    return [(one, nodes[one]) for one in ordered[:world_size]]


def own_gpu(group: PlacementGroup, bundle: int, within_s: float) -> int:
    """Return the GPU of a bundle on this node, by its number among those that this process sees.

    An actor sees its bundle's alone. A program that is none sees all: the bundle is asked for its own.

    Raises:
        RayPlacementError: the bundle does not answer, or its GPU is not among them.
    """
    if ray.get_runtime_context().get_actor_id() is not None:
        return 0
    place = PlacementGroupSchedulingStrategy(placement_group=group, placement_group_bundle_index=bundle)
    asked = ray.remote(num_cpus=0, num_gpus=1, scheduling_strategy=place)(_gpus_here).remote()
    try:
        (gpu,) = ray.get(asked, timeout=within_s)
    except (RayError, TimeoutError, ValueError) as error:
        text = f"bundle {bundle} of the placement group, the leader's"
        raise RayPlacementError(
            f"{text}, has not told its GPU ({error}); allowed: one that is free"
        ) from error
    seen = visible_gpus()
    if seen is not None and gpu not in seen:
        text = f"bundle {bundle} of the placement group has GPU {gpu}"
        raise RayPlacementError(f"{text}; allowed: those that this process sees, {', '.join(seen)}")
    return int(gpu) if seen is None else seen.index(gpu)


def _gpus_here() -> list[str]:
    return list(ray.get_runtime_context().get_accelerator_ids()["GPU"])


def warn_of_spread(nodes: Sequence[str], tensor_size: int) -> None:
    """Name in the log what is slow: parts of the same layers on several nodes. `nodes` are by place."""
    for start in range(0, len(nodes), tensor_size):
        if len(set(nodes[start : start + tensor_size])) > 1:
            _log.warning(
                "tensor_parallel_size is %d, over several nodes: each layer waits for the network",
                tensor_size,
            )
            return


def _existing(settings: RaySettings) -> PlacementGroup | None:
    if settings.placement_group is None:
        return get_current_placement_group()
    try:
        return get_placement_group(settings.placement_group)
    except ValueError as error:
        text = f"ray_placement_group is {settings.placement_group!r} ({error})"
        raise RayPlacementError(f"{text}; allowed: the name of a placement group that exists") from None


def _new_group(
    settings: RaySettings, world_size: int, resource: str, *, needs_driver: bool
) -> PlacementGroup:
    labels: list[dict[str, str]] = [{} for _ in range(world_size)]
    if needs_driver:
        labels[0] = {_NODE_LABEL: own_node()}
        if _resources_of(own_node()).get(resource, 0) < 1:
            text = f"the node of this process has no {resource}, with require_gpu_on_driver True"
            raise RayPlacementError(f"{text}; allowed: a node with one, or False")
    group = placement_group(
        [{resource: 1.0}] * world_size,
        strategy=settings.strategy,
        name=f"baton-{uuid4().hex}",
        bundle_label_selector=labels,
    )
    waited_s, tries_s = 0.0, list(_TRIES_S)
    while waited_s < settings.timeout_s:
        next_s = min(tries_s.pop(0) if len(tries_s) > 1 else tries_s[0], settings.timeout_s - waited_s)
        if group.wait(next_s):
            return group
        waited_s += next_s
        _log.warning(
            "waiting for a placement group of %d x 1 %s since %.0f s", world_size, resource, waited_s
        )
    remove_placement_group(group)
    has = ", ".join(f"{_resources_of(node['NodeID']).get(resource, 0):g}" for node in _nodes())
    text = f"placement group of {world_size} bundles with 1 {resource}, {settings.strategy}"
    where = ", the first of them on this node" if needs_driver else ""
    raise RayPlacementError(
        f"{text}{where}, is not ready within {settings.timeout_s:g} s; allowed: what the cluster has free; "
        f"its nodes have {has} {resource}, and {ray.available_resources().get(resource, 0):g} are free"
    )


def _nodes() -> list[dict[str, Any]]:
    return [one for one in ray.nodes() if one["Alive"]]


def _resources_of(node_id: str) -> dict[str, float]:
    return next((one["Resources"] for one in _nodes() if one["NodeID"] == node_id), {})
