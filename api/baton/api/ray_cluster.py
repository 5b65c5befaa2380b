"""`initialize_ray_cluster`: connects to a Ray cluster and finds places for the ranks of an engine."""

from __future__ import annotations

from dataclasses import replace

from baton.config.vllm_config import ParallelConfig
from baton.config.worker_parts import executor_settings
from baton_engine.device import resolve_device


def initialize_ray_cluster(
    parallel_config: ParallelConfig, ray_address: str | None = None, require_gpu_on_driver: bool = True
) -> None:
    """Connect to a Ray cluster and create a placement group with a bundle for each rank, or check one.

    The group is `parallel_config.placement_group` afterwards. An engine of the same configuration uses it,
    with `distributed_executor_backend` "ray"; it stays when that engine ends. A bundle has one GPU, or one
    CPU where ranks compute on CPUs.

    Args:
        ray_address: the cluster's address; None: Ray's default, which may start a cluster on this machine.
        require_gpu_on_driver: True if this node must have the device that ranks compute on, and the first
            bundle is to be here, where an engine's first rank computes in its own process.

    Raises:
        ImportError: Ray is not installed.
        ValueError: the cluster or the group that exists has too few bundles, or one with several devices,
            or the group has not been ready in time.
        RuntimeError: the group that exists has no bundle on this node, which is required.
        InvalidConfigError: there is no cluster at the address.
    """
    from baton_worker.ranks import ray_cluster  # Ray is optional, and slow to import.

    args = parallel_config.engine_args
    settings = replace(executor_settings(args).ray, address=ray_address or args.ray_address)
    ray_cluster.connect(settings.address, parallel_config.ray_runtime_env)
    resource = ray_cluster.RESOURCES[resolve_device(args.device).type]
    world_size = parallel_config.world_size
    group, _ = ray_cluster.find_group(settings, world_size, resource, needs_driver=require_gpu_on_driver)
    places = ray_cluster.places(group, world_size, resource)
    if require_gpu_on_driver and places[0][1] != ray_cluster.own_node():
        text = "placement_group has no bundle on the node of this process"
        raise RuntimeError(f"{text}; allowed: one there, or require_gpu_on_driver False")
    ray_cluster.warn_of_spread([node for _, node in places], parallel_config.tensor_parallel_size)
    parallel_config.use_placement_group(group, ray_cluster.name_of(group))
