"""The configuration of a router's core, and of its connections, as its settings say it."""

from __future__ import annotations

import logging

from baton_router.core.fleet.role_balance import BalanceConfig
from baton_router.core.fleet.role_pressure import Limits
from baton_router.core.fleet.scaling import ScalingConfig
from baton_router.core.flow.flow_limits import FlowLimits
from baton_router.core.flow.migration import MigrationLimits
from baton_router.core.flow.router_core import RouterConfig
from baton_router.core.placement.placement_config import PlacementConfig
from baton_router.process.router_settings import RouterSettings
from baton_service.descriptors import DescriptorShares

_log = logging.getLogger(__name__)


def log_shares(shares: DescriptorShares, max_http: int) -> None:
    """Log how many connections each protocol may have."""
    level = logging.INFO if shares.max_http == max_http else logging.WARNING
    text = (
        "at most %d HTTP and %d gRPC connections: %d files may be open (ulimit -n), --max-connections is %d"
    )
    _log.log(level, text, shares.max_http, shares.max_grpc, shares.num_allowed, max_http)


def core_config(settings: RouterSettings, epoch: int) -> RouterConfig:
    """Return the core's configuration; `epoch` names the router's requests at their workers."""
    placement = PlacementConfig(
        policy=settings.routing_policy, split=settings.split, min_split_tokens=settings.min_split_tokens
    )
    limits = FlowLimits(
        router_name=f"{epoch:x}",
        placement=placement,
        timeout_s=settings.request_timeout_s,
        queue_s=settings.admission.queue_timeout_s,
        decode_wait_s=settings.move_timeout_s,
        migrations=MigrationLimits(wait_s=settings.move_timeout_s),
    )
    slo = settings.admission.slo
    return RouterConfig(
        limits=limits,
        admission=settings.admission.config(settings.http.api_keys, settings.num_processes),
        adaptive_roles=BalanceConfig(limits=Limits(step_s=slo.tpot_s)) if settings.adaptive_roles else None,
        scaling=ScalingConfig(slo=slo),
    )
