"""The public face of Baton. Names are loaded when they are used: a router must not pay for torch."""

import os
from importlib import import_module
from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    from baton.api.async_llm_engine import AsyncLLMEngine
    from baton.api.beam_search import BeamSearchOutput, BeamSearchSequence
    from baton.api.llm import LLM
    from baton.api.llm_engine import LLMEngine
    from baton.config.engine_args import AsyncEngineArgs, EngineArgs
    from baton.inputs import PromptType, TextPrompt, TokensPrompt
    from baton.logprobs import FlatLogprobs, Logprob
    from baton.outputs import CompletionOutput, RequestOutput, RequestStateStats
    from baton.sampling_params import (
        BeamSearchParams,
        RepetitionDetectionParams,
        RequestOutputKind,
        SamplingParams,
        SamplingType,
        StructuredOutputsParams,
    )
    from baton_core.requests.sampling_params import derived_seed

__all__ = [
    "LLM",
    "AsyncEngineArgs",
    "AsyncLLMEngine",
    "BeamSearchOutput",
    "BeamSearchParams",
    "BeamSearchSequence",
    "CompletionOutput",
    "EngineArgs",
    "FlatLogprobs",
    "LLMEngine",
    "Logprob",
    "PromptType",
    "RepetitionDetectionParams",
    "RequestOutput",
    "RequestOutputKind",
    "RequestStateStats",
    "SamplingParams",
    "SamplingType",
    "StructuredOutputsParams",
    "TextPrompt",
    "TokensPrompt",
    "derived_seed",
]

_HOMES = {
    "baton.api.async_llm_engine": ("AsyncLLMEngine",),
    "baton.api.beam_search": ("BeamSearchOutput", "BeamSearchSequence"),
    "baton.config.engine_args": ("AsyncEngineArgs", "EngineArgs"),
    "baton.api.llm": ("LLM",),
    "baton.api.llm_engine": ("LLMEngine",),
    "baton.inputs": ("PromptType", "TextPrompt", "TokensPrompt"),
    "baton.logprobs": ("FlatLogprobs", "Logprob"),
    "baton.outputs": ("CompletionOutput", "RequestMetrics", "RequestOutput", "RequestStateStats"),
    "baton.sampling_params": (
        *("BeamSearchParams", "RepetitionDetectionParams", "RequestOutputKind", "SamplingParams"),
        *("SamplingType", "StructuredOutputsParams"),
    ),
    "baton_core.requests.sampling_params": ("derived_seed",),
}
_HOME_OF = {name: home for home, names in _HOMES.items() for name in names}
_COMPUTING = ("LLM", "LLMEngine", "AsyncLLMEngine")

PASSIVE_OPENMP = ("OMP_WAIT_POLICY", "passive")
"""Read when torch is loaded: its idle threads sleep instead of spinning on cores that others need. Those of
the C++ kernels give way by themselves."""


def __getattr__(name: str) -> Any:
    if name not in _HOME_OF:
        raise AttributeError(f"module 'baton' has no attribute {name!r}")
    if name in _COMPUTING:
        from baton.config.extras import require_extras  # reads packages' metadata, which clients do without

        require_extras(f"baton.{name}", "router", "worker")
        os.environ.setdefault(*PASSIVE_OPENMP)
    return getattr(import_module(_HOME_OF[name]), name)
