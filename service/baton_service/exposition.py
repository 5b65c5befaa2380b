"""One scrape: metric families in Prometheus' text format, with the process's own."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from enum import StrEnum
from typing import Final, TypeAlias

from prometheus_client.core import CounterMetricFamily, GaugeMetricFamily, HistogramMetricFamily, Metric
from prometheus_client.exposition import CONTENT_TYPE_LATEST, generate_latest
from prometheus_client.process_collector import ProcessCollector
from prometheus_client.registry import Collector, CollectorRegistry

from baton_core.distribution import Distribution
from baton_service.logs import num_lines_lost

CONTENT_TYPE: Final = CONTENT_TYPE_LATEST
PageFamily: TypeAlias = GaugeMetricFamily | CounterMetricFamily | HistogramMetricFamily


class Kind(StrEnum):
    """The value is what the text format calls it."""

    GAUGE = "gauge"
    COUNTER = "counter"
    HISTOGRAM = "histogram"


@dataclass(frozen=True, slots=True, kw_only=True)
class Family:
    """A metric family: all samples of one name."""

    name: str
    """Without the `_total` that the text format adds to counters."""
    kind: Kind
    text: str
    """The help text, one line."""
    labels: tuple[str, ...] = ()


def gauge(name: str, text: str, *labels: str) -> Family:
    """Return a family of values that go up and down."""
    return Family(name=name, kind=Kind.GAUGE, text=text, labels=labels)


def counter(name: str, text: str, *labels: str) -> Family:
    """Return a family of counts since the start of the process."""
    return Family(name=name, kind=Kind.COUNTER, text=text, labels=labels)


def histogram(name: str, text: str, *labels: str) -> Family:
    """Return a family of distributions."""
    return Family(name=name, kind=Kind.HISTOGRAM, text=text, labels=labels)


_LOG_LINES_LOST: Final = counter(
    "baton_log_lines_lost", "Log lines of this process that were not written.", "reason"
)


class Exposition(Collector):
    """The metrics of one scrape. Every family of `families` is in it, with or without samples."""

    def __init__(self, families: Sequence[Family]) -> None:
        self._metrics = {family.name: new_metric(family) for family in (*families, _LOG_LINES_LOST)}
        for reason, number in num_lines_lost().items():
            self.add(_LOG_LINES_LOST, number, reason)

    def add(self, family: Family, value: float | Distribution, *labels: str) -> None:
        """Add a sample; `labels` are the values of the family's labels, in order."""
        metric = self._metrics[family.name]
        if isinstance(value, Distribution):
            assert isinstance(metric, HistogramMetricFamily), f"{family.name} is a {family.kind}"
            metric.add_metric(labels, buckets=value.cumulative(), sum_value=value.total)
        else:
            assert isinstance(metric, GaugeMetricFamily | CounterMetricFamily), (
                f"{family.name} is a {family.kind}"
            )
            metric.add_metric(labels, value)

    def collect(self) -> Iterator[Metric]:
        return iter(self._metrics.values())

    def text(self) -> bytes:
        registry = CollectorRegistry()
        registry.register(self)
        ProcessCollector(registry=registry)
        return generate_latest(registry)


def new_metric(family: Family) -> PageFamily:
    """Return the family without samples, as `prometheus_client` has it."""
    match family.kind:
        case Kind.GAUGE:
            return GaugeMetricFamily(family.name, family.text, labels=family.labels)
        case Kind.COUNTER:
            return CounterMetricFamily(family.name, family.text, labels=family.labels)
        case Kind.HISTOGRAM:
            return HistogramMetricFamily(family.name, family.text, labels=family.labels)
