from __future__ import annotations

from baton_router.group.metric_pages import LABEL, merge_pages
from baton_router.metrics import router_metrics

PAGE = """# HELP a_total Counts
# TYPE a_total counter
a_total{{name="x {{y}}"}} {}
# HELP b Is
# TYPE b gauge
b 2.0
"""


def test_samples_of_all_processes_stand_together_each_with_its_process() -> None:
    assert merge_pages({0: PAGE.format(1.0), 2: PAGE.format(3.0)}).splitlines() == [
        "# HELP a_total Counts",
        "# TYPE a_total counter",
        'a_total{router_process="0",name="x {y}"} 1.0',
        'a_total{router_process="2",name="x {y}"} 3.0',
        "# HELP b Is",
        "# TYPE b gauge",
        'b{router_process="0"} 2.0',
        'b{router_process="2"} 2.0',
    ]


def test_no_metric_has_the_label_of_processes_already() -> None:
    assert [one.name for one in router_metrics.FAMILIES if LABEL in one.labels] == []
