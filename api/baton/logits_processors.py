"""The interface of logits processor classes, for `LLM(logits_processors=[...])` and `--logits-processors`."""

from baton_engine.sampling.processor_interface import (
    AdapterLogitsProcessor,
    BatchUpdate,
    LogitsProcessor,
    MoveDirectionality,
)

__all__ = ["AdapterLogitsProcessor", "BatchUpdate", "LogitsProcessor", "MoveDirectionality"]
