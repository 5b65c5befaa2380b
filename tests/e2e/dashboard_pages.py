"""The dashboard of a cluster in a browser, at the sizes of some devices."""

from __future__ import annotations

from contextlib import AbstractContextManager
from typing import Any, Final

from playwright.sync_api import Browser, Page

from tests.e2e.browsing import opened
from tests.e2e.processes import Cluster

PHONE: Final = {"width": 390, "height": 844}
TABLET: Final = {"width": 768, "height": 1024}
DESKTOP: Final = {"width": 1440, "height": 900}


def visiting(browser: Browser, cluster: Cluster, **options: Any) -> AbstractContextManager[Page]:
    """Open the dashboard in a tab of its own, on a desktop unless `options` say otherwise."""
    return opened(browser, f"http://{cluster.http_address}/dashboard", **{"viewport": DESKTOP, **options})
