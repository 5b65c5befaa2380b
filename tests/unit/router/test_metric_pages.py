from __future__ import annotations

from baton_router.group.metric_pages import merge_pages

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
        'a_total{process="0",name="x {y}"} 1.0',
        'a_total{process="2",name="x {y}"} 3.0',
        "# HELP b Is",
        "# TYPE b gauge",
        'b{process="0"} 2.0',
        'b{process="2"} 2.0',
    ]
