"""Everything that can be said of an engine, under the names of vLLM's documented `EngineArgs`.

Each field that does something here is declared below with its flag. The others are in `fixed_engine_args`,
where another value is an error, and in `ignored_engine_args`, where it is without effect.
"""

from __future__ import annotations

import argparse
import dataclasses
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, make_dataclass
from importlib import import_module
from pathlib import Path
from typing import Any, Final, Self

from baton.config.engine_arg_fields import Part, arg, check_fields, flags_of
from baton.config.engine_arg_methods import UnneededMethods
from baton.config.engine_arg_values import (
    check_profiler_config,
    read_objects,
    read_structured_outputs_config,
)
from baton.config.fixed_engine_args import DEFAULTS, FIXED, add_fixed_flags
from baton.config.flags import BYTES, COUNT, MAX_INT, MODEL, NAME, NATURAL, POSITIVE, SHARE_OVER_0, Range
from baton.config.lora_args import LoRAArgs, check_lora_args
from baton.config.metrics_args import MetricsArgs
from baton.config.parallel_args import ParallelArgs, check_parallel
from baton.config.pooling_args import PoolingArgs, check_pooling_args
from baton.config.processor_names import names_of
from baton.config.speculative_args import SpeculativeArgs, read_speculative_args
from baton.config.vllm_config import LoadConfig, ModelConfig, VllmConfig
from baton_core.errors import InvalidConfigError
from baton_engine.checkpoint.quantization.methods import QUANTIZATIONS
from baton_kernels.cpu.variants import CPU_KERNELS
from baton_kv.transport import Transport
from baton_service.tracing import PROTOCOL_VARIABLES, OtlpProtocol
from baton_worker.kv_events.kv_events_config import read_kv_events_config

BUNDLED_MODEL: Final = str(Path(__file__).parents[1] / "bundled")
BUNDLED_MODEL_NAME: Final = "baton-docs-5m"
_USES: Final = ("LLM_CLASS", "OPENAI_API_SERVER")
_LOGPROBS_MODES: Final = ("raw_logprobs", "raw_logits", "processed_logprobs", "processed_logits")
_NONE_IS_DEFAULT: Final = (
    *("max_num_seqs", "max_num_batched_tokens", "block_size", "enable_prefix_caching", "seed"),
    *("otlp_traces_endpoint", "kv_cache_metrics", "kv_cache_metrics_sample", "enable_mfu_metrics"),
)
_UnusedArgs: Any = make_dataclass(
    "_UnusedArgs",
    [(name, Any, dataclasses.field(default=default, kw_only=True)) for name, default in DEFAULTS.items()],
)


@dataclass
class EngineArgs(
    UnneededMethods,
    ParallelArgs,
    PoolingArgs,
    LoRAArgs,
    MetricsArgs,
    SpeculativeArgs,
    _UnusedArgs,  # type: ignore[misc]  # made of a table
):
    """Arguments of `LLM` and the engines.

    A function as `hf_overrides` gets the Transformers configuration and returns the one to use.

    Raises:
        InvalidConfigError: a value is out of range, or asks for what there is not; the message names the
            field, its value, what is allowed, and where nothing else is, why.
        TypeError: a name is unknown.
    """

    model: str = arg(str, BUNDLED_MODEL, "a folder or a Hugging Face id", MODEL)
    served_model_name: Sequence[str] = arg(
        str,
        (),
        f"names clients ask for; default: the folder or id as it is given, or {BUNDLED_MODEL_NAME}",
        NAME,
        Part.BOTH,
        is_list=True,
        nargs="+",
        metavar="NAME",
    )
    tokenizer: str | None = arg(
        str, None, "a folder or id with the tokenizer; default: the model's", part=Part.BOTH
    )
    revision: str | None = arg(str, None, "branch, tag or commit of a Hugging Face id", NAME, Part.LAUNCHER)
    tokenizer_revision: str | None = arg(str, None, "the same of the tokenizer's", NAME, Part.LAUNCHER)
    download_dir: str | None = arg(str, None, "folder for models from the Hub", part=Part.LAUNCHER)
    load_format: str = arg(
        str,
        "auto",
        "kind of weight files to read; pt: torch's; dummy: none, random weights",
        ("auto", "safetensors", "pt", "gguf", "dummy"),
        reason="weights in other files are to be converted: model.save_pretrained(folder)",
    )
    hf_token: str | None = arg(
        str, None, "token for the Hugging Face Hub; default: the one of its own login", part=Part.LAUNCHER
    )
    hf_config_path: str | None = arg(
        str, None, "a folder or id whose config.json is used in the place of the model's", part=Part.LAUNCHER
    )
    hf_overrides: Any = arg(
        dict,
        None,
        "JSON with values that come before those of config.json",
        part=Part.BOTH,
        takes_function=True,
    )
    skip_tokenizer_init: bool = arg(
        bool, False, "take and return token ids alone, in Python", part=Part.CALLER
    )
    dtype: str = arg(
        str,
        "auto",
        "dtype to compute in; auto: the checkpoint's, or on a CPU what its kernels are fast in",
        ("auto", "float32", "bfloat16", "float16", "float", "half"),
    )
    kv_cache_dtype: str = arg(
        str,
        "auto",
        "element type of the KV cache; auto: the model's; fp8: fp8_e4m3, scales from the checkpoint",
        ("auto", "float32", "bfloat16", "float16", "fp8", "fp8_e4m3", "fp8_e5m2"),
    )
    quantization: str | None = arg(
        str,
        None,
        "quantization of linear layers while they are loaded; of a checkpoint that is stored quantized, its "
        "method, which is found without the flag too",
        QUANTIZATIONS,
    )
    quantization_config: Mapping[str, Any] | None = arg(
        dict, None, "JSON with linear, moe, ignore or targets: kinds of quantization while loading, by layers"
    )
    int4_w4a8: bool = arg(
        bool, False, "round inputs of layers stored as 4-bit integers to int8, as vLLM does on CPUs with AMX"
    )
    share_weights: bool = arg(
        bool, False, "one copy of the weights for all workers of this machine that have the same, on CPUs"
    )
    device: str = arg(str, "auto", "auto is a GPU where torch sees one", ("auto", "cpu", "cuda"))
    seed: int = arg(
        int, 0, "seed of requests without one of their own", Range(-(2**63), 2**63 - 1), Part.CALLER
    )
    enforce_eager: bool = arg(bool, False, "do not capture decode steps, as CUDA graphs or as recorded calls")
    batch_invariant: bool = arg(
        bool, False, "bit-identical logits whatever shares a step; slower, see docs/batch_invariance.md"
    )
    parallel_invariant: bool = arg(
        bool, False, "with batch_invariant: the same bits for a tensor_parallel_size of 1, 2, 4 and 8"
    )
    cpu_kernels: str = arg(
        str,
        "auto",
        "the build of the C++ kernels on a CPU: the fastest that it can have, or this one; torch: none",
        CPU_KERNELS,
    )
    block_size: int = arg(int, 32, "tokens of a KV block", Range(1, 65_536))
    enable_prefix_caching: bool = arg(bool, True, "keep KV blocks for prompts that begin alike")
    max_model_len: int | None = arg(
        int,
        None,
        "longest sequence; default: the model's, lowered to what fits",
        POSITIVE,
        unset=("auto", -1),
        suffixes=COUNT,
    )
    disable_sliding_window: bool = arg(
        bool, False, "no sliding window, and sequences no longer than it: all layers see all their tokens"
    )
    max_num_seqs: int = arg(int, 128, "sequences that run at once", Range(1, 65_536))
    max_num_batched_tokens: int = arg(int, 2048, "token budget of a step", POSITIVE, suffixes=COUNT)
    scheduling_policy: str = arg(
        str,
        "fcfs",
        "fcfs, or priority: lower values first, at the expense of running requests with higher ones",
        ("fcfs", "priority"),
    )
    async_scheduling: bool | None = arg(
        bool,
        None,
        "plan a step while the one before it runs, where that needs none of its tokens; default: on a GPU",
    )
    max_num_partial_prefills: int = arg(
        int, 1, "prompts that are computed in part at a time", Range(1, 65_536)
    )
    max_long_partial_prefills: int = arg(int, 1, "long prompts among them", Range(1, 65_536))
    long_prefill_token_threshold: int = arg(
        int,
        0,
        "a prompt with more tokens is long and gets this many in a step; 0: none is long, or with several "
        "partial prefills 4 % of the longest sequence",
        NATURAL,
    )
    kv_cache_memory_bytes: int | None = arg(
        int, None, "size of each worker's KV cache", Range(1, 2**50), suffixes=BYTES
    )
    num_gpu_blocks_override: int | None = arg(
        int, None, "blocks of each worker's KV cache, in the place of a size", POSITIVE
    )
    gpu_memory_utilization: float = arg(
        float, 0.9, "share of the free memory for all workers together", SHARE_OVER_0
    )
    kv_transport: str = arg(
        str, "auto", "transport of KV blocks; auto: TCP if shared memory cannot be read", tuple(Transport)
    )
    max_logprobs: int = arg(
        int, 20, "most log-probabilities for a token; -1: all tokens'", Range(-1, MAX_INT), Part.ROUTER
    )
    stream_interval: int = arg(int, 1, "tokens of each event of a stream", POSITIVE, Part.ROUTER)
    logprobs_mode: str = arg(
        str, "raw_logprobs", "values that log-probabilities are taken of", _LOGPROBS_MODES
    )
    logits_processors: Sequence[str | type] = arg(
        str,
        (),
        "function that requests may name (package.module:function), or class that applies to all; repeatable",
        NAME,
        Part.BOTH,
        is_list=True,
        metavar="NAME",
    )
    structured_outputs_backend: str = arg(
        str,
        "auto",
        "compiler of grammars for structured outputs",
        ("auto", "xgrammar", "guidance"),
        Part.BOTH,
    )
    structured_outputs_config: Mapping[str, Any] | None = arg(
        dict,
        None,
        "JSON with backend, reasoning_parser and its plugin, in the place of flags",
        part=Part.LAUNCHER,
    )
    enable_prompt_embeds: bool = arg(
        bool, False, "let requests bring embeddings (prompt_embeds) in the place of tokens", part=Part.ROUTER
    )
    reasoning_parser: str = arg(str, "", "format of the model's reasoning", part=Part.ROUTER)
    reasoning_parser_plugin: str = arg(str, "", "a Python file that registers parsers", part=Part.ROUTER)
    generation_config: str = arg(
        str,
        "auto",
        "auto: the model's defaults of sampling; vllm: none; or a folder with some",
        part=Part.ROUTER,
    )
    override_generation_config: Mapping[str, Any] | None = arg(
        dict,
        None,
        "JSON that comes before those defaults; its max_new_tokens limits every output of a server",
        part=Part.ROUTER,
    )
    profiler_config: Mapping[str, Any] | None = arg(
        dict, None, "JSON with torch_profiler_dir, where traces go"
    )
    kv_events_config: Mapping[str, Any] | None = arg(
        dict, None, "JSON that has changes of the prefix cache published over ZMQ; see docs/events.md"
    )
    otlp_traces_endpoint: str = arg(
        str,
        "",
        "OTLP receiver of traces, such as http://localhost:4317, or http://localhost:4318 over HTTP",
        part=Part.BOTH,
        metavar="URL",
    )
    otlp_traces_protocol: str | None = arg(
        str,
        None,
        f"what it speaks; default: {' or '.join(PROTOCOL_VARIABLES)} of the environment, else grpc",
        tuple(OtlpProtocol),
        Part.BOTH,
    )
    allow_functions: bool = arg(
        bool, False, "let whoever may reach the operator routes run code here: call functions by their names"
    )
    disable_log_stats: bool = arg(bool, False, "do not log figures of the engine", part=Part.CALLER)
    shutdown_timeout: float | None = arg(
        float,
        None,
        "seconds that requests have to end, or to be moved, once a process is told to stop; default: 30; "
        "of `LLM`: 0",
        Range(0, 86_400),
        Part.BOTH,
    )
    prefill_workers: int = arg(int, 0, "prefill workers", Range(0, 1024), Part.CALLER)
    decode_workers: int = arg(
        int, 0, "decode workers; none of either: all in one", Range(0, 1024), Part.CALLER
    )
    split: str = arg(str, "auto", "when to use a prefill worker", ("auto", "always", "never"), Part.CALLER)

    def __post_init__(self) -> None:
        for name, default in DEFAULTS.items():
            if name in FIXED:
                FIXED[name].check(getattr(self, name), name)
            if getattr(self, name) is None:
                setattr(self, name, default)
        for name in _NONE_IS_DEFAULT:
            if getattr(self, name) is None:
                setattr(self, name, type(self).__dataclass_fields__[name].default)
        self.logits_processors = names_of(self.logits_processors, is_disaggregated=self.is_disaggregated)
        read_objects(self)
        check_fields(self)
        read_structured_outputs_config(self)
        check_fields(self)
        check_parallel(self)
        check_pooling_args(self)
        check_lora_args(self)
        check_profiler_config(self.profiler_config or {})
        read_kv_events_config(self.kv_events_config)
        read_speculative_args(self)

    @classmethod
    def add_cli_args(cls, parser: argparse.ArgumentParser) -> argparse.ArgumentParser:
        """Add a flag for every field: `--max-model-len` for `max_model_len`, and `--model`."""
        parser.add_argument("--model", default=BUNDLED_MODEL, help="a folder or a Hugging Face id")
        for flag in flags_of(cls):
            flag.add_to(parser, is_own=False)
        add_fixed_flags(parser)
        return parser

    @classmethod
    def from_cli_args(cls, args: argparse.Namespace) -> Self:
        """Read the fields from what a parser with these flags has read; others are passed over.

        Raises:
            InvalidConfigError: a value is out of range, or asks for what there is not.
        """
        names = [one.name for one in dataclasses.fields(cls)]
        return cls(**{name: getattr(args, name) for name in names if hasattr(args, name)})

    def create_engine_config(self, usage_context: object = None, headless: bool = False) -> VllmConfig:
        """Read the model's files and return the configuration that an engine of these arguments has.

        Args:
            usage_context: anything; no use is reported.
            headless: True for a machine that has nothing but ranks of a model, whose node_rank is over 0.

        Raises:
            InvalidModelError: the model cannot be found, or a file is broken.
            InvalidConfigError: a setting cannot hold for this model and this machine.
        """
        if headless and not self.node_rank:
            raise InvalidConfigError(
                "headless is True; allowed: False, or a node_rank over 0 (mixed-worker is a lone worker)"
            )
        # Loads torch, which flags do without.
        config: VllmConfig = import_module("baton.api.engine_config").engine_config(self)
        return config

    def create_model_config(self) -> ModelConfig:
        """Return the part of `create_engine_config` on the model."""
        return self.create_engine_config().model_config

    def create_load_config(self) -> LoadConfig:
        """Return the part of the configuration on the reading of weights."""
        return LoadConfig.of(self)

    def get_batch_defaults(self, world_size: int = 1) -> tuple[dict[str, int], dict[str, int]]:
        """Return the defaults of `max_num_batched_tokens` and `max_num_seqs`, which every use shares."""
        tokens, seqs = EngineArgs.max_num_batched_tokens, EngineArgs.max_num_seqs
        return dict.fromkeys(_USES, tokens), dict.fromkeys(_USES, seqs)

    @property
    def is_disaggregated(self) -> bool:
        """True if workers are processes of their own."""
        return bool(self.prefill_workers or self.decode_workers)

    @property
    def model_names(self) -> tuple[str, ...]:
        """Names of the model; the first one is reported."""
        return tuple(self.served_model_name) or default_names(self.model)


def default_names(model: str) -> tuple[str, ...]:
    """Return the names of a model without given ones: the user's name for it, never a path of its own."""
    return (BUNDLED_MODEL_NAME if model == BUNDLED_MODEL else model,)


@dataclass
class AsyncEngineArgs(EngineArgs):
    """The same for `AsyncLLMEngine`."""

    enable_log_requests: bool = arg(bool, False, "log each request", part=Part.CALLER)

    @classmethod
    def add_cli_args(
        cls, parser: argparse.ArgumentParser, async_args_only: bool = False
    ) -> argparse.ArgumentParser:
        """Add a flag for every field, or only for those that `EngineArgs` has not."""
        if not async_args_only:
            return super().add_cli_args(parser)
        known = {flag.name for flag in flags_of(EngineArgs)}
        for flag in flags_of(cls):
            if flag.name not in known:
                flag.add_to(parser, is_own=False)
        return parser
