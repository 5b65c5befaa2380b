"""The values of `--kv-events-config`, under the names of vLLM's `KVEventsConfig`."""

from __future__ import annotations

import json
import re
from collections.abc import Mapping
from dataclasses import asdict, dataclass, fields, replace
from typing import Any, Final

from baton_core.errors import InvalidConfigError

FIELD: Final = "kv_events_config"
_MAX_COUNT: Final = 2**31 - 1
_ENDPOINT: Final = re.compile(r"(tcp://.+:([1-9][0-9]{0,4})|(ipc|inproc)://.+)")
_ENDPOINT_WORDS: Final = "tcp://host:port, ipc://path or inproc://name"


@dataclass(frozen=True, slots=True, kw_only=True)
class KVEventsConfig:
    """Settings with which a worker publishes the changes of its cache.

    Raises:
        InvalidConfigError: naming the field, its value and what is allowed.
    """

    enable_kv_cache_events: bool = False
    publisher: str | None = None
    """null or zmq; None is zmq where events are enabled."""
    endpoint: str = "tcp://*:5557"
    """Bound where it has a * or :: for its host, or is no TCP; otherwise connected to."""
    replay_endpoint: str | None = None
    """Always bound."""
    buffer_steps: int = 10_000
    """Batches that can be had again."""
    hwm: int = 100_000
    """Batches that wait for one slow subscriber; with more, it misses some."""
    max_queue_size: int = 100_000
    """Batches that wait to be published; with more, some are not."""
    topic: str = ""
    curve_keyfile: str | None = None
    """ZMQ's secret certificate: both sockets encrypt, for those alone who know its public key."""

    def __post_init__(self) -> None:
        _check("enable_kv_cache_events", self.enable_kv_cache_events, bool, "true or false")
        if self.publisher not in (None, "null", "zmq"):
            raise _refusal("publisher", self.publisher, "null or zmq")
        for name in ("buffer_steps", "hwm", "max_queue_size"):
            value = getattr(self, name)
            if type(value) is not int or not 1 <= value <= _MAX_COUNT:
                raise _refusal(name, value, f"an integer from 1 to {_MAX_COUNT}")
        _check("topic", self.topic, str, "text")
        if self.curve_keyfile is not None:
            _check("curve_keyfile", self.curve_keyfile, str, "a file")
        _check_endpoint("endpoint", self.endpoint)
        if self.replay_endpoint is not None:
            _check_endpoint("replay_endpoint", self.replay_endpoint)
            if self.replay_endpoint == self.endpoint:
                raise _refusal("replay_endpoint", self.replay_endpoint, "another address than endpoint")

    @property
    def is_published(self) -> bool:
        return self.enable_kv_cache_events and self.publisher != "null"

    def for_worker(self, number: int) -> KVEventsConfig:
        """Return the settings of the worker with this number on one machine: ports count up, as by
        data-parallel rank.

        Raises:
            InvalidConfigError: there is no such port.
        """
        replay = self.replay_endpoint and _numbered("replay_endpoint", self.replay_endpoint, number)
        return replace(self, endpoint=_numbered("endpoint", self.endpoint, number), replay_endpoint=replay)

    def as_json(self) -> str:
        return json.dumps(asdict(self))


def read_kv_events_config(given: Mapping[str, Any] | None) -> KVEventsConfig:
    """Read the JSON object; None is the default, which publishes nothing.

    Raises:
        InvalidConfigError: naming the field, its value and what is allowed.
    """
    names = [one.name for one in fields(KVEventsConfig)]
    for name, value in (given or {}).items():
        if name not in names:
            raise InvalidConfigError(f"{FIELD} has {name}: {value!r}; allowed: {', '.join(names)}")
    return KVEventsConfig(**(given or {}))


def _check(name: str, value: object, kind: type, words: str) -> None:
    if type(value) is not kind:
        raise _refusal(name, value, words)


def _check_endpoint(name: str, value: object) -> None:
    match = _ENDPOINT.fullmatch(value) if isinstance(value, str) else None
    if match is None or int(match[2] or 0) > 65_535:
        raise _refusal(name, value, _ENDPOINT_WORDS)


def _numbered(name: str, endpoint: str, number: int) -> str:
    if not number:
        return endpoint
    if not endpoint.startswith("tcp://"):
        return f"{endpoint}_dp{number}"
    host, _, port = endpoint.rpartition(":")
    last = 65_535 - number
    if int(port) > last:
        raise _refusal(name, endpoint, f"a port up to {last}: worker {number} counts up from it")
    return f"{host}:{int(port) + number}"


def _refusal(name: str, value: object, allowed: str) -> InvalidConfigError:
    return InvalidConfigError(f"{FIELD} has {name}: {value!r}; allowed: {allowed}")
