"""Which device a worker's pool may lie on, given how its blocks travel."""

from __future__ import annotations

from dataclasses import replace

import pytest
import torch

from baton_core.errors import InvalidConfigError
from baton_core.kv_layout.kv_spec import KVSpec
from baton_kv.in_process import InProcessConnector, InProcessRegistry
from baton_kv.transport import Transport
from baton_worker.pool_placement import PoolPlacement, choose_device, choose_transport

CPU, GPU = torch.device("cpu"), torch.device("cuda", 0)


@pytest.fixture
def _gpu(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(torch.cuda, "is_available", lambda: True)
    monkeypatch.setattr(torch.cuda, "current_device", lambda: 0)


@pytest.mark.parametrize("transport", Transport)
def test_without_a_gpu_auto_is_the_cpu_and_cuda_is_refused(
    transport: Transport, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(torch.cuda, "is_available", lambda: False)
    assert choose_device("auto", transport) == CPU
    with pytest.raises(InvalidConfigError, match="device is 'cuda'; allowed: auto, cpu"):
        choose_device("cuda", transport)


@pytest.mark.usefixtures("_gpu")
def test_a_pool_in_device_memory_travels_over_tcp() -> None:
    for transport in (Transport.AUTO, Transport.TCP):
        assert choose_device("auto", transport) == choose_device("cuda", transport) == GPU
        assert choose_transport(transport, GPU) is Transport.TCP
        assert choose_transport(transport, CPU) is transport


@pytest.mark.usefixtures("_gpu")
def test_nixl_takes_a_pool_where_it_lies() -> None:
    assert choose_device("auto", Transport.NIXL) == GPU
    assert choose_transport(Transport.NIXL, GPU) is choose_transport(Transport.NIXL, CPU) is Transport.NIXL


@pytest.mark.usefixtures("_gpu")
def test_shared_memory_keeps_auto_on_the_cpu_and_refuses_cuda() -> None:
    assert choose_device("auto", Transport.SHARED_MEMORY) == CPU
    with pytest.raises(InvalidConfigError, match="allowed with transport 'shared_memory': auto, cpu"):
        choose_device("cuda", Transport.SHARED_MEMORY)


def test_on_the_cpu_the_connector_places_the_pool() -> None:
    spec = KVSpec(num_layers=1, num_kv_heads=1, head_dim=8, block_size=4, dtype="float32")
    placement = PoolPlacement(lambda spec: InProcessConnector(spec, 1, InProcessRegistry()))
    pool = placement.allocate(spec, 3)
    assert pool.shape == (3, *spec.block_shape)
    assert placement.connector is not None
    placement.connector.close()


class PinnedConnector(InProcessConnector):
    capabilities = replace(InProcessConnector.capabilities, pins_pool=True)


def test_a_pool_that_devices_know_by_its_address_keeps_its_memory() -> None:
    spec = KVSpec(num_layers=1, num_kv_heads=1, head_dim=8, block_size=4, dtype="float32")
    placement = PoolPlacement(lambda spec: PinnedConnector(spec, 1, InProcessRegistry()))
    pool = placement.allocate(spec, 3).fill_(1.0)
    placement.give_back()
    assert pool.eq(1.0).all()
    assert placement.allocate(spec, 3) is pool
    assert not pool.any()
