"""How many tokens a request will probably generate: few say, most only bound it."""

from __future__ import annotations

import math
from collections import OrderedDict
from typing import Final

from baton_core.sessions.router_messages import RequestSpec

_FIRST_GUESS: Final = 256.0
"""Tokens of a sequence, where nothing is known of its tenant."""
_WEIGHT: Final = 0.1
"""Of the latest sequence in its tenant's mean."""
_MAX_TENANTS: Final = 4096


class OutputForecast:
    """The mean of what each tenant's sequences generated lately."""

    def __init__(self) -> None:
        self._means: OrderedDict[str, float] = OrderedDict()

    def num_tokens(self, tenant: str, spec: RequestSpec) -> int:
        """Prompt and expected output, all sequences."""
        mean = self._means.get(tenant, _FIRST_GUESS)
        limit = spec.params.max_tokens
        num_each = math.ceil(mean) if limit is None else min(math.ceil(mean), limit)
        return len(spec.prompt_token_ids) + spec.params.n * num_each

    def learn(self, tenant: str, spec: RequestSpec, num_output_tokens: int) -> None:
        """Take in what a finished request generated, all sequences together."""
        mean = self._means.pop(tenant, _FIRST_GUESS)
        self._means[tenant] = mean + _WEIGHT * (num_output_tokens / spec.params.n - mean)
        if len(self._means) > _MAX_TENANTS:
            self._means.popitem(last=False)
