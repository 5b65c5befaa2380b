"""The two ends of the peer channel, by themselves."""

from __future__ import annotations

import asyncio

import pytest
import zmq.asyncio

from baton_core.blocks.peer_messages import LeaseGone, Release, ToHolder, ToPuller
from baton_decode.puller_endpoint import PullerEndpoint
from baton_kv.curve import CurveKeys
from baton_prefill.holder_endpoint import HolderEndpoint
from tests.ipv6 import needs_ipv6

TIMEOUT_S = 10.0


@pytest.mark.parametrize("is_encrypted", [False, True])
@pytest.mark.parametrize("host", ["127.0.0.1", pytest.param("[::1]", marks=needs_ipv6)])
def test_both_ends_speak_over_either_internet_protocol(host: str, is_encrypted: bool) -> None:
    curve = CurveKeys.make() if is_encrypted else None
    release = Release(transfer_id="t", holder_epoch=1)
    gone = LeaseGone(transfer_id="t", holder_epoch=1, reason="over")

    async def scenario() -> None:
        with zmq.asyncio.Context() as context:
            at_holder: asyncio.Queue[tuple[bytes, ToHolder]] = asyncio.Queue()
            at_puller: asyncio.Queue[ToPuller] = asyncio.Queue()
            holder = HolderEndpoint(context, f"tcp://{host}:0", curve)
            assert holder.address.startswith(f"tcp://{host}:")
            receiving = asyncio.create_task(holder.receive(lambda *heard: at_holder.put_nowait(heard)))
            puller = PullerEndpoint(context, "decode-1", at_puller.put_nowait)
            address = curve.address(holder.address) if curve else holder.address
            if curve:  # who is not told the key is not heard
                stranger = PullerEndpoint(context, "stranger", at_puller.put_nowait)
                for wrong in (holder.address, CurveKeys.make().address(holder.address)):
                    stranger.send(wrong, release)
            puller.send(address, release)
            assert await asyncio.wait_for(at_holder.get(), TIMEOUT_S) == (b"decode-1", release)
            holder.send(b"decode-1", gone)
            assert await asyncio.wait_for(at_puller.get(), TIMEOUT_S) == gone
            if curve:
                await asyncio.sleep(0.1)
                assert at_holder.empty()
                await stranger.close()
            receiving.cancel()
            await asyncio.gather(receiving, return_exceptions=True)
            await puller.close()
            holder.close()

    asyncio.run(scenario())
