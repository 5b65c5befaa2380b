"""The model that a router serves, as its folder tells; workers of another one may not join."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Final

from baton_core.errors import IncompatibleWorkerError
from baton_core.model.model_description import ModelDescription, require_equal
from baton_core.sessions.worker_info import WorkerInfo

_WHERE: Final = "the router's model folder"


@dataclass(frozen=True, slots=True, kw_only=True)
class ServedModel:
    """The model that a router serves, as far as it is known."""

    description: ModelDescription
    vocab_size: int
    has_chosen_tokenizer: bool = False
    """True where an operator gave it a tokenizer, which may be another one than the model's."""
    logits_processors: tuple[str, ...] = ()
    """Names that it lets requests ask for."""

    def require_same(self, info: WorkerInfo) -> None:
        """Refuse a worker of another model.

        Tokenizers are compared where both have one, unless an operator chose the router's.

        Raises:
            IncompatibleWorkerError: names what differs, its value and what is allowed; for good, because
                the router's folder stays the same.
        """
        try:
            self._compare(info)
        except IncompatibleWorkerError as error:
            raise IncompatibleWorkerError(str(error), is_permanent=True) from None

    def reads_otherwise(self, info: WorkerInfo) -> bool:
        """True if a worker that may join has another tokenizer than the one an operator chose."""
        return info.identity.description.tokenizer not in ("", self.description.tokenizer)

    def _compare(self, info: WorkerInfo) -> None:
        theirs = info.identity.description
        compares = bool(theirs.tokenizer) and not self.has_chosen_tokenizer
        self.description.require_same(theirs, _WHERE, with_tokenizer=compares)
        require_equal("vocab_size", info.vocab_size, self.vocab_size, _WHERE)
        if lacking := sorted({*self.logits_processors} - {*info.identity.logits_processors}):
            names = info.identity.logits_processors
            raise IncompatibleWorkerError(
                f"logits_processors is {names!r}; allowed: with {', '.join(lacking)}, as at the router"
            )
