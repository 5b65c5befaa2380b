"""The name of vLLM's export of figures to Ray, which `ray.data.llm` gives its engines unless told not to."""

from __future__ import annotations


class RayPrometheusStatLogger:
    """Exports nothing: an engine that is given this class says so in its log, and goes on."""
