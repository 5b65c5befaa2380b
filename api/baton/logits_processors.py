"""The interface of logits processor classes, for `LLM(logits_processors=[...])` and `--logits-processors`."""

from baton_engine.sampling.processor_interface import (
    AdapterLogitsProcessor,
    BatchUpdate,
    LogitsProcessor,
    MoveDirectionality,
    process_dict_updates,
)

__all__ = [
    "AdapterLogitsProcessor",
    "BatchUpdate",
    "LogitsProcessor",
    "MoveDirectionality",
    "process_dict_updates",
]
