"""An update of the weights: begun, checked at every worker, then made; one at a time."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass

from baton_core.errors import ErrorCode, RequestError


@dataclass(frozen=True, slots=True, kw_only=True)
class WeightVersion:
    """A version of the weights."""

    path: str
    """Folder of its files."""
    weights: str
    """Hash of all bytes of the weights."""


class WeightUpdate:
    """The steps of an update, in order: `start`, `stage`, `finish`. One that is begun again starts anew."""

    def __init__(self) -> None:
        self._is_open = False
        self._staged: WeightVersion | None = None

    def start(self) -> None:
        """Begin an update, and forget one that was begun before."""
        self._is_open, self._staged = True, None

    def require_open(self) -> None:
        """Refuse weights without an update.

        Raises:
            RequestError: INVALID_REQUEST, none was begun.
        """
        if not self._is_open:
            text = "no weight update is open; allowed: start_weight_update first"
            raise RequestError(ErrorCode.INVALID_REQUEST, text)

    def stage(self, path: str, weights_by_worker: Mapping[str, str]) -> WeightVersion:
        """Note the version that all workers have checked, in the place of one staged before.

        Raises:
            RequestError: INVALID_REQUEST, no update was begun, or workers see different files at the path.
        """
        self.require_open()
        (first, weights), *others = weights_by_worker.items()
        for name, other in others:
            if other != weights:
                text = f"path is {path!r}, where {first} sees weights {weights} and {name} sees {other}"
                raise RequestError(ErrorCode.INVALID_REQUEST, f"{text}; allowed: the same files everywhere")
        self._staged = WeightVersion(path=path, weights=weights)
        return self._staged

    @property
    def staged(self) -> WeightVersion:
        """The version to switch to.

        Raises:
            RequestError: INVALID_REQUEST, there is none.
        """
        self.require_open()
        if self._staged is None:
            text = "the weight update is without weights; allowed: update_weights before finish_weight_update"
            raise RequestError(ErrorCode.INVALID_REQUEST, text)
        return self._staged

    def finish(self) -> None:
        """End the update: its version is in place."""
        self._is_open, self._staged = False, None
