"""Exports the figures of this process's engines with `prometheus_client`, as vLLM's engines do.

One collector has all engines, for a page of metrics names each family once.
"""

from __future__ import annotations

import logging
from collections.abc import Callable, Iterator
from contextlib import suppress
from itertools import count
from threading import Lock
from typing import Final, TypeAlias
from weakref import WeakMethod

from prometheus_client.core import HistogramMetricFamily
from prometheus_client.registry import REGISTRY, Collector, CollectorRegistry

from baton.api import metrics
from baton_service.exposition import Family, PageFamily, new_metric
from baton_service.vllm_metrics import REPORTED_FAMILIES, REQUEST_FAMILIES

FAMILIES: Final = {family.name: family for family in (*REQUEST_FAMILIES, *REPORTED_FAMILIES)}
ReadMetrics: TypeAlias = Callable[[], list[metrics.Metric]]
_log = logging.getLogger(__name__)


class EngineCollector(Collector):
    """Collects the figures of engines that live; it is in the registry while it has some.

    The label `engine` tells them apart: each has the lowest number that is free when it comes.
    """

    def __init__(self, registry: CollectorRegistry) -> None:
        self._registry = registry
        self._lock = Lock()
        self._engines: dict[int, WeakMethod[ReadMetrics]] = {}

    def add(self, read: ReadMetrics) -> int:
        """Take an engine by its method that reads its figures, from any thread; returns its number."""
        with self._lock:
            self._drop_dead()
            number = next(number for number in count() if number not in self._engines)
            self._engines[number] = WeakMethod(read)
            self._unregister()
            try:
                self._registry.register(self)
            except ValueError as error:
                _log.warning("figures of engines are not exported with prometheus_client: %s", error)
            return number

    def remove(self, number: int) -> None:
        """Forget an engine; one that is gone is ignored."""
        with self._lock:
            self._engines.pop(number, None)
            self._drop_dead()
            if not self._engines:
                self._unregister()

    def describe(self) -> list[PageFamily]:
        return [new_metric(family) for family in FAMILIES.values()]

    def collect(self) -> Iterator[PageFamily]:
        """Yield each family once, of those that an engine has; an engine that cannot be read is left out."""
        with self._lock:
            engines = sorted(self._engines.items())
        found: dict[str, PageFamily] = {}
        for number, method in engines:
            if (read := method()) is None:
                continue
            try:
                figures = read()
            except Exception:  # of an application's page that has more to show than this engine
                _log.debug("the figures of engine %d cannot be read", number, exc_info=True)
                continue
            for figure in figures:
                family = FAMILIES[figure.name]
                if figure.name not in found:
                    found[figure.name] = new_metric(family)
                _add(found[figure.name], family, figure, str(number))
        yield from found.values()

    def _drop_dead(self) -> None:
        self._engines = {number: one for number, one in self._engines.items() if one() is not None}

    def _unregister(self) -> None:
        with suppress(KeyError):  # an application may have taken it out
            self._registry.unregister(self)


def _add(page: PageFamily, family: Family, figure: metrics.Metric, engine: str) -> None:
    known = {**figure.labels, "engine": engine}
    labels = [known[name] for name in family.labels if name in known]
    if isinstance(page, HistogramMetricFamily):
        assert isinstance(figure, metrics.Histogram), f"{family.name} is a {family.kind}"
        page.add_metric(labels, list(figure.buckets.items()), figure.sum)
        return
    assert not isinstance(figure, metrics.Histogram), f"{family.name} is a {family.kind}"
    if isinstance(figure, metrics.Vector):
        for position, value in enumerate(figure.values):
            page.add_metric([*labels, str(position)], value)
    else:
        page.add_metric(labels, figure.value)


ENGINES: Final = EngineCollector(REGISTRY)
"""The engines of this process, in the registry that `make_asgi_app` and its like show."""
