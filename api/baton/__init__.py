"""The public face of Baton. Names are loaded when they are used: a router must not pay for torch."""

import os
from importlib import import_module
from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    from baton.api.async_llm_engine import AsyncLLMEngine
    from baton.api.beam_search import BeamSearchOutput, BeamSearchSequence
    from baton.api.llm import LLM
    from baton.api.llm_engine import LLMEngine
    from baton.api.ray_cluster import initialize_ray_cluster
    from baton.config.engine_args import AsyncEngineArgs, EngineArgs
    from baton.config.vllm_config import VllmConfig
    from baton.inputs import EmbedsPrompt, PromptType, TextPrompt, TokensPrompt
    from baton.logprobs import FlatLogprobs, Logprob
    from baton.lora import LoRARequest
    from baton.outputs import CompletionOutput, RequestOutput, RequestStateStats
    from baton.pooling_outputs import (
        ClassificationOutput,
        ClassificationRequestOutput,
        EmbeddingOutput,
        EmbeddingRequestOutput,
        PoolingOutput,
        PoolingRequestOutput,
        ScoringOutput,
        ScoringRequestOutput,
    )
    from baton.pooling_params import PoolingParams
    from baton.sampling_params import (
        BeamSearchParams,
        RepetitionDetectionParams,
        RequestOutputKind,
        SamplingParams,
        SamplingType,
        StructuredOutputsParams,
    )
    from baton_core.requests.sampling_params import derived_seed
    from baton_engine.models.registry import ModelRegistry

__all__ = [
    "LLM",
    "AsyncEngineArgs",
    "AsyncLLMEngine",
    "BeamSearchOutput",
    "BeamSearchParams",
    "BeamSearchSequence",
    "ClassificationOutput",
    "ClassificationRequestOutput",
    "CompletionOutput",
    "EmbeddingOutput",
    "EmbeddingRequestOutput",
    "EmbedsPrompt",
    "EngineArgs",
    "FlatLogprobs",
    "LLMEngine",
    "LoRARequest",
    "Logprob",
    "ModelRegistry",
    "PoolingOutput",
    "PoolingParams",
    "PoolingRequestOutput",
    "PromptType",
    "RepetitionDetectionParams",
    "RequestOutput",
    "RequestOutputKind",
    "RequestStateStats",
    "SamplingParams",
    "SamplingType",
    "ScoringOutput",
    "ScoringRequestOutput",
    "StructuredOutputsParams",
    "TextPrompt",
    "TokensPrompt",
    "VllmConfig",
    "derived_seed",
    "initialize_ray_cluster",
]

_HOMES = {
    "baton.api.async_llm_engine": ("AsyncLLMEngine",),
    "baton.api.beam_search": ("BeamSearchOutput", "BeamSearchSequence"),
    "baton.config.engine_args": ("AsyncEngineArgs", "EngineArgs"),
    "baton.config.vllm_config": ("VllmConfig",),
    "baton.api.llm": ("LLM",),
    "baton.api.llm_engine": ("LLMEngine",),
    "baton.api.ray_cluster": ("initialize_ray_cluster",),
    "baton.pooling_outputs": (
        *("ClassificationOutput", "ClassificationRequestOutput", "EmbeddingOutput", "EmbeddingRequestOutput"),
        *("PoolingOutput", "PoolingRequestOutput", "ScoringOutput", "ScoringRequestOutput"),
    ),
    "baton.pooling_params": ("PoolingParams",),
    "baton.inputs": ("EmbedsPrompt", "PromptType", "TextPrompt", "TokensPrompt"),
    "baton.logprobs": ("FlatLogprobs", "Logprob"),
    "baton.lora": ("LoRARequest",),
    "baton.outputs": ("CompletionOutput", "RequestMetrics", "RequestOutput", "RequestStateStats"),
    "baton.sampling_params": (
        *("BeamSearchParams", "RepetitionDetectionParams", "RequestOutputKind", "SamplingParams"),
        *("SamplingType", "StructuredOutputsParams"),
    ),
    "baton_core.requests.sampling_params": ("derived_seed",),
    "baton_engine.models.registry": ("ModelRegistry",),
}
_HOME_OF = {name: home for home, names in _HOMES.items() for name in names}
_COMPUTING = ("LLM", "LLMEngine", "AsyncLLMEngine", "ModelRegistry", "initialize_ray_cluster")

PASSIVE_OPENMP = ("OMP_WAIT_POLICY", "passive")
"""Read when torch is loaded: its idle threads sleep instead of spinning on cores that others need. Those of
the C++ kernels give way by themselves."""


def __getattr__(name: str) -> Any:
    if name == "__version__":
        return _version()
    if name == "__version_tuple__":
        return tuple(int(part) if part.isdigit() else part for part in _version().split("."))
    if name not in _HOME_OF:
        raise AttributeError(f"module 'baton' has no attribute {name!r}")
    if name in _COMPUTING:
        from baton.config.extras import require_extras  # reads packages' metadata, which clients do without

        require_extras(f"baton.{name}", "router", "worker")
        os.environ.setdefault(*PASSIVE_OPENMP)
    return getattr(import_module(_HOME_OF[name]), name)


def _version() -> str:
    from importlib.metadata import version  # slow to load

    return version("baton")
