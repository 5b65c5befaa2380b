"""One request that pools, from its events to its output."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

from baton.pooling_outputs import PoolingOutput, PoolingRequestOutput
from baton_core.sessions.router_messages import RequestSpec
from baton_core.worker.step_plan import PooledValues
from baton_router.requests.generation import Finished, GenerationEvent


class PooledOutputBuilder:
    """The counterpart of `OutputBuilder`: it has one output, at the end, and none if it is aborted."""

    num_tokens = 0
    """Tokens that were generated."""
    num_longest = 0
    """Tokens of the longest sequence."""
    token_gaps: Sequence[tuple[float, int]] = ()
    """Seconds between tokens."""

    def __init__(self, spec: RequestSpec) -> None:
        self.spec = spec
        self.finished: Finished | None = None
        self.is_over = False
        self.finish_reasons: list[str] = []
        self._is_shown = False

    @property
    def request_id(self) -> str:
        return self.spec.request_id

    def push(self, event: GenerationEvent) -> None:
        """Take the next event."""
        assert isinstance(event, Finished), "a request that pools has no other event"
        self.finished, self.is_over = event, True

    def abort(self) -> None:
        """End the request."""
        self.is_over = True

    def take(self) -> PoolingRequestOutput[PoolingOutput] | None:
        """Return the output once, when the request has finished."""
        if self.finished is None or self.finished.pooled is None or self._is_shown:
            return None
        self._is_shown = True
        return PoolingRequestOutput(
            request_id=self.request_id,
            outputs=PoolingOutput(_tensor(self.finished.pooled)),
            prompt_token_ids=list(self.spec.prompt_token_ids),
            num_cached_tokens=self.finished.num_cached_tokens,
            finished=True,
        )


def _tensor(pooled: PooledValues) -> Any:
    import torch  # Here alone: clients of a router need no torch until they pool.

    if not pooled.values:
        return torch.empty(pooled.shape)
    return torch.frombuffer(bytearray(pooled.values), dtype=torch.float32).reshape(pooled.shape)
