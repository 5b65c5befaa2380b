"""The public face of Baton. Names are loaded when they are used: a router must not pay for torch."""

import os
from importlib import import_module
from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    from baton.api.async_llm_engine import AsyncLLMEngine
    from baton.api.beam_search import BeamSearchOutput, BeamSearchParams, BeamSearchSequence
    from baton.api.llm import LLM
    from baton.api.llm_engine import LLMEngine
    from baton.api.logprobs import FlatLogprobs, Logprob
    from baton.api.outputs import CompletionOutput, RequestMetrics, RequestOutput
    from baton.api.prompts import TextPrompt, TokensPrompt
    from baton.config.engine_args import AsyncEngineArgs, EngineArgs
    from baton_core.requests.repetition import RepetitionDetectionParams
    from baton_core.requests.sampling_params import RequestOutputKind, SamplingParams, derived_seed
    from baton_core.requests.structured_outputs import StructuredOutputsParams

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
    "RepetitionDetectionParams",
    "RequestMetrics",
    "RequestOutput",
    "RequestOutputKind",
    "SamplingParams",
    "StructuredOutputsParams",
    "TextPrompt",
    "TokensPrompt",
    "derived_seed",
]

_HOMES = {
    "baton.api.async_llm_engine": ("AsyncLLMEngine",),
    "baton.api.beam_search": ("BeamSearchOutput", "BeamSearchParams", "BeamSearchSequence"),
    "baton.config.engine_args": ("AsyncEngineArgs", "EngineArgs"),
    "baton.api.llm": ("LLM",),
    "baton.api.llm_engine": ("LLMEngine",),
    "baton.api.logprobs": ("FlatLogprobs", "Logprob"),
    "baton.api.outputs": ("CompletionOutput", "RequestMetrics", "RequestOutput"),
    "baton.api.prompts": ("TextPrompt", "TokensPrompt"),
    "baton_core.requests.repetition": ("RepetitionDetectionParams",),
    "baton_core.requests.sampling_params": ("RequestOutputKind", "SamplingParams", "derived_seed"),
    "baton_core.requests.structured_outputs": ("StructuredOutputsParams",),
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
