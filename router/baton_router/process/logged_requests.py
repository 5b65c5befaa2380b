"""Log lines of requests, where the operator asks for them."""

from __future__ import annotations

import logging
from dataclasses import dataclass, fields
from typing import Final

from baton_core.requests.sampling_params import SamplingParams
from baton_core.sessions.router_messages import RequestSpec

_DEFAULTS: Final = SamplingParams()
_log = logging.getLogger(__name__)


@dataclass(frozen=True, slots=True, kw_only=True)
class LoggedRequests:
    """Settings of these lines, which `--log-level debug` gives the prompt too."""

    is_on: bool = False
    max_length: int | None = None
    """Most token ids of a prompt in a line; None: all."""

    def log(self, spec: RequestSpec) -> None:
        """Write the lines of one request."""
        name = {"request_id": spec.request_id}
        _log.info(
            "received %d prompt tokens, %s", len(spec.prompt_token_ids), _shown(spec.params), extra=name
        )
        if _log.isEnabledFor(logging.DEBUG):
            _log.debug("prompt: %s", list(spec.prompt_token_ids[: self.max_length]), extra=name)


def _shown(params: SamplingParams) -> str:
    """The parameters that are not the defaults."""
    values = {one.name: getattr(params, one.name) for one in fields(params)}
    return ", ".join(
        f"{name}={value!r}" for name, value in values.items() if value != getattr(_DEFAULTS, name)
    )
