"""Starts the tracing of a process: OpenTelemetry is loaded where spans go somewhere, and only there."""

from __future__ import annotations

from baton_core.errors import InvalidConfigError
from baton_service.tracing import NO_TRACING, Tracing, TracingSettings


def start_tracing(settings: TracingSettings, *, service: str, instance_id: str) -> Tracing:
    """Begin to export what the process named `service` does.

    Raises:
        InvalidConfigError: what exports is not installed.
    """
    if not settings.endpoint:
        return NO_TRACING
    try:
        # Optional, and a fifth of a second to import.
        from baton_service.otlp_tracing import OtlpTracing

        return OtlpTracing(settings, service=service, instance_id=instance_id)
    except ImportError as error:
        raise InvalidConfigError(
            f"--otlp-traces-endpoint is {settings.endpoint!r}, but {error.name} is not installed; "
            "allowed: an endpoint after pip install 'baton[tracing]'"
        ) from None
