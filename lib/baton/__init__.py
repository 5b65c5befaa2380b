"""The public face of Baton. Names are loaded when they are used: a router must not pay for torch."""

import os
from importlib import import_module
from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    from baton.llm import LLM, TextPrompt, TokensPrompt
    from baton.outputs import CompletionOutput, RequestOutput
    from baton_core.sampling_params import SamplingParams

__all__ = ["LLM", "CompletionOutput", "RequestOutput", "SamplingParams", "TextPrompt", "TokensPrompt"]

_HOMES = {
    "LLM": "baton.llm",
    "TextPrompt": "baton.llm",
    "TokensPrompt": "baton.llm",
    "CompletionOutput": "baton.outputs",
    "RequestOutput": "baton.outputs",
    "SamplingParams": "baton_core.sampling_params",
}

PASSIVE_OPENMP = ("OMP_WAIT_POLICY", "passive")
"""Read when torch is loaded: idle threads sleep instead of spinning on cores that others need."""


def __getattr__(name: str) -> Any:
    if name not in _HOMES:
        raise AttributeError(f"module 'baton' has no attribute {name!r}")
    if name == "LLM":
        os.environ.setdefault(*PASSIVE_OPENMP)
    return getattr(import_module(_HOMES[name]), name)
