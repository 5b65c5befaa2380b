"""`--kv-events-config` and `baton kv-events`: what they take, and what is printed."""

from __future__ import annotations

import json
from collections.abc import Coroutine
from typing import Any

import pytest

from baton.cli import main
from baton.commands.kv_events import event_lines
from baton.processes.launcher import LocalCluster
from baton_core.errors import InvalidConfigError
from baton_core.kv_events.cache_delta import CacheDelta
from baton_core.kv_events.encoding import KVEventBatch
from baton_core.kv_events.event_stream import FollowedChange
from baton_core.kv_events.events import AllBlocksCleared, BlockStored
from baton_worker.kv_events.kv_events_config import KVEventsConfig, read_kv_events_config

ON = {"enable_kv_cache_events": True}


def test_nothing_is_published_unless_it_is_asked_for() -> None:
    assert not read_kv_events_config(None).is_published
    assert not read_kv_events_config({}).is_published
    assert not read_kv_events_config({**ON, "publisher": "null"}).is_published
    assert read_kv_events_config(ON).is_published
    assert read_kv_events_config({**ON, "publisher": "zmq", "topic": "kv"}).is_published


def test_the_defaults_are_those_of_vllm() -> None:
    config = read_kv_events_config(ON)
    assert (config.endpoint, config.replay_endpoint, config.topic) == ("tcp://*:5557", None, "")
    assert (config.buffer_steps, config.hwm, config.max_queue_size) == (10_000, 100_000, 100_000)


@pytest.mark.parametrize(
    ("given", "said"),
    [
        ({"enable": True}, "kv_events_config has enable: True; allowed: enable_kv_cache_events, publisher, "),
        ({"enable_kv_cache_events": 1}, "has enable_kv_cache_events: 1; allowed: true or false"),
        ({"publisher": "nats"}, "has publisher: 'nats'; allowed: null or zmq"),
        ({"endpoint": "localhost:5557"}, "has endpoint: 'localhost:5557'; allowed: tcp://host:port, "),
        ({"endpoint": "tcp://*:70000"}, "has endpoint: 'tcp://*:70000'; allowed: tcp://host:port, "),
        ({"endpoint": "tcp://*:*"}, "has endpoint: 'tcp://*:*'; allowed: tcp://host:port, "),
        ({"replay_endpoint": 7}, "has replay_endpoint: 7; allowed: tcp://host:port, "),
        ({"replay_endpoint": "tcp://*:5557"}, "has replay_endpoint: 'tcp://*:5557'; allowed: another "),
        ({"buffer_steps": 0}, "has buffer_steps: 0; allowed: an integer from 1 to "),
        ({"hwm": 2.5}, "has hwm: 2.5; allowed: an integer from 1 to "),
        ({"max_queue_size": True}, "has max_queue_size: True; allowed: an integer from 1 to "),
        ({"topic": None}, "has topic: None; allowed: text"),
    ],
)
def test_what_is_wrong_is_refused_by_field(given: dict[str, Any], said: str) -> None:
    with pytest.raises(InvalidConfigError) as refused:
        read_kv_events_config(given)
    assert said in str(refused.value)


def test_each_worker_of_a_machine_has_ports_of_its_own() -> None:
    config = KVEventsConfig(endpoint="tcp://*:5557", replay_endpoint="tcp://[::]:6000")
    assert config.for_worker(0) == config
    third = config.for_worker(2)
    assert (third.endpoint, third.replay_endpoint) == ("tcp://*:5559", "tcp://[::]:6002")
    assert KVEventsConfig(endpoint="ipc:///run/kv").for_worker(1).endpoint == "ipc:///run/kv_dp1"
    assert read_kv_events_config(json.loads(third.as_json())) == third


def test_workers_without_a_port_are_refused_before_anything_is_started() -> None:
    with pytest.raises(InvalidConfigError, match="allowed: a port up to 65533: worker 2 counts up from it"):
        LocalCluster(
            router_args=(),
            worker_args=(),
            num_prefill_workers=1,
            num_decode_workers=2,
            num_mixed_workers=0,
            kv_events=KVEventsConfig(**ON, endpoint="tcp://*:65534"),  # type: ignore[arg-type]
        )


def test_an_event_is_printed_as_one_json_object() -> None:
    stored = BlockStored(
        block_hashes=(b"\x0a\xff", 7),
        parent_block_hash=None,
        token_ids=(1, 2),
        block_size=1,
        lora_id=None,
        medium="GPU",
        lora_name=None,
        extra_keys=(("salt", b"\x01"), None),
        epoch=3,
    )
    batch = KVEventBatch(ts=1.5, events=(AllBlocksCleared(epoch=3), stored))
    change = FollowedChange(sequence=4, batch=batch, delta=CacheDelta(number=5, is_snapshot=True))
    first, second = map(json.loads, event_lines(change))
    head = {"sequence": 4, "ts": 1.5, "is_snapshot": True}
    assert first == {**head, "type": "AllBlocksCleared", "epoch": 3}
    assert second == {
        **head,
        "type": "BlockStored",
        "block_hashes": ["0aff", 7],
        "parent_block_hash": None,
        "token_ids": [1, 2],
        "block_size": 1,
        "lora_id": None,
        "medium": "GPU",
        "lora_name": None,
        "extra_keys": [["salt", "01"], None],
        "group_idx": None,
        "epoch": 3,
    }


def test_the_command_says_what_it_waits_for(
    monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    async def end_at_once(work: Coroutine[Any, Any, None]) -> None:
        work.close()

    monkeypatch.setattr("baton.commands.kv_events.run_until_signal", end_at_once)
    assert main(["kv-events", "tcp://127.0.0.1:1"]) == 0
    assert capsys.readouterr().err == "baton kv-events: waiting for events from tcp://127.0.0.1:1\n"
