"""Settings of all suites: a loaded machine is slow, and that alone fails no property."""

from __future__ import annotations

from hypothesis import HealthCheck, settings

settings.register_profile("baton", settings(deadline=None, suppress_health_check=[HealthCheck.too_slow]))
settings.load_profile("baton")
