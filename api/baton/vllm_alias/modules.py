"""The table of `vllm`: the names of each module, where Baton has them, and why others are not there."""

from __future__ import annotations

from typing import Final

from baton.vllm_alias.envs import VARIABLES

_POOLED: Final = (
    "ClassificationOutput ClassificationRequestOutput EmbeddingOutput EmbeddingRequestOutput PoolingOutput "
    "PoolingRequestOutput ScoringOutput ScoringRequestOutput"
)
_STAND_INS: Final = "baton.vllm_alias.stand_ins"
_TOKENIZERS: Final = "baton.vllm_alias.tokenizers"
_WEIGHT_TRANSFER: Final = "baton.vllm_alias.weight_transfer"
_PARSER: Final = {"baton.vllm_alias.argument_parser": "FlexibleArgumentParser"}
_PARALLEL_STATE: Final = {
    _STAND_INS: (
        "cleanup_dist_env_and_memory destroy_distributed_environment destroy_model_parallel "
        "get_tensor_model_parallel_rank get_tensor_model_parallel_world_size"
    )
}
_LOGPROBS: Final = {"baton": "FlatLogprobs Logprob"}
_MODEL_REGISTRY: Final = {"baton": "ModelRegistry"}

MODULES: Final[dict[str, dict[str, str]]] = {
    "vllm": {
        "baton": (
            "AsyncEngineArgs AsyncLLMEngine CompletionOutput EngineArgs LLM LLMEngine ModelRegistry "
            "PromptType RequestOutput SamplingParams TextPrompt TokensPrompt initialize_ray_cluster "
            f"PoolingParams {_POOLED}"
        ),
        _STAND_INS: "__version__ __version_tuple__",
    },
    "vllm.beam_search": {"baton": "BeamSearchOutput BeamSearchSequence"},
    "vllm.config": {
        "baton.config.config_objects": "PoolerConfig ProfilerConfig SpeculativeConfig",
        "baton.config.vllm_config": (
            "CacheConfig DeviceConfig LoadConfig ModelConfig ObservabilityConfig ParallelConfig "
            "SchedulerConfig StructuredOutputsConfig VllmConfig"
        ),
        "baton_worker.kv_events.kv_events_config": "KVEventsConfig",
        "types": "CompilationConfig=SimpleNamespace",
        _WEIGHT_TRANSFER: "WeightTransferConfig",
    },
    "vllm.distributed": _PARALLEL_STATE,
    "vllm.distributed.parallel_state": _PARALLEL_STATE,
    "vllm.distributed.weight_transfer": {},
    "vllm.distributed.weight_transfer.base": {
        _WEIGHT_TRANSFER: "WeightTransferInitRequest WeightTransferUpdateRequest"
    },
    "vllm.distributed.weight_transfer.nccl_common": {_WEIGHT_TRANSFER: "trainer_init"},
    "vllm.distributed.weight_transfer.packed_tensor": {_WEIGHT_TRANSFER: "packed_nccl_broadcast_producer"},
    "vllm.engine": {},
    "vllm.engine.arg_utils": {
        "baton": "AsyncEngineArgs EngineArgs",
        "baton.engine.arg_utils": "human_readable_int human_readable_int_or_auto",
    },
    "vllm.engine.async_llm_engine": {"baton": "AsyncLLMEngine"},
    "vllm.engine.llm_engine": {"baton": "LLMEngine"},
    "vllm.entrypoints": {},
    "vllm.entrypoints.chat_utils": {
        _TOKENIZERS: "load_chat_template resolve_hf_chat_template=resolve_chat_template",
        "builtins": "ChatCompletionMessageParam=dict",
    },
    "vllm.entrypoints.cli": {},
    "vllm.entrypoints.llm": {"baton": "LLM"},
    "vllm.entrypoints.openai": {},
    "vllm.entrypoints.pooling": {},
    "vllm.entrypoints.pooling.utils": {
        "baton.vllm_alias.pooling_utils": "MetadataItem build_metadata_items decode_pooling_output"
    },
    "vllm.envs": {"baton.vllm_alias.envs": " ".join(VARIABLES)},
    "vllm.exceptions": {
        "baton_core.errors": (
            "VLLMClientError=InvalidRequestError VLLMError=BatonError VLLMValidationError=InvalidRequestError"
        )
    },
    "vllm.inputs": {"baton": "EmbedsPrompt PromptType TextPrompt TokensPrompt"},
    "vllm.logger": {_STAND_INS: "init_logger"},
    "vllm.logits_process": {"collections.abc": "LogitsProcessor=Callable"},
    "vllm.logprobs": _LOGPROBS,
    "vllm.lora": {},
    "vllm.lora.request": {"baton.lora": "LoRARequest"},
    "vllm.model_executor": {},
    "vllm.model_executor.models": _MODEL_REGISTRY,
    "vllm.model_executor.models.registry": _MODEL_REGISTRY,
    "vllm.outputs": {"baton": f"CompletionOutput RequestOutput {_POOLED}"},
    "vllm.platforms": {_STAND_INS: "current_platform"},
    "vllm.pooling_params": {"baton": "PoolingParams"},
    "vllm.plugins": {"baton.processes.plugins": "load_general_plugins=load_plugins"},
    "vllm.renderers": {},
    "vllm.renderers.hf": {_TOKENIZERS: "resolve_chat_template"},
    "vllm.sampling_params": {
        "baton": (
            "BeamSearchParams RepetitionDetectionParams RequestOutputKind SamplingParams SamplingType "
            "StructuredOutputsParams"
        )
    },
    "vllm.sequence": _LOGPROBS,
    "vllm.tokenizers": {_TOKENIZERS: "cached_get_tokenizer=get_tokenizer get_tokenizer"},
    "vllm.transformers_utils": {},
    "vllm.transformers_utils.tokenizer": {_TOKENIZERS: "get_tokenizer"},
    "vllm.usage": {},
    "vllm.usage.usage_lib": {_STAND_INS: "UsageContext is_usage_stats_enabled"},
    "vllm.utils": {**_PARSER, _STAND_INS: "get_ip get_open_port random_uuid"},
    "vllm.utils.argparse_utils": _PARSER,
    "vllm.utils.network_utils": {_STAND_INS: "get_ip get_open_port"},
    "vllm.utils.print_utils": {_STAND_INS: "print_embeddings"},
    "vllm.utils.serial_utils": {
        "baton.vllm_alias.serial_utils": (
            "DTypeInfo EMBED_DTYPES ENDIANNESS binary2tensor tensor2base64 tensor2binary"
        )
    },
    "vllm.v1": {},
    "vllm.v1.core": {},
    "vllm.v1.core.kv_cache_utils": {_STAND_INS: "ExternalBlockHash"},
    "vllm.v1.engine": {},
    "vllm.v1.engine.async_llm": {"baton": "AsyncEngineArgs AsyncLLM=AsyncLLMEngine"},
    "vllm.v1.engine.exceptions": {"baton_core.errors": "EngineDeadError EngineGenerateError=RequestError"},
    "vllm.v1.engine.llm_engine": {"baton": "LLMEngine"},
    "vllm.v1.metrics": {},
    "vllm.v1.metrics.ray_wrappers": {"baton.api.ray_stat_logger": "RayPrometheusStatLogger"},
    "vllm.v1.metrics.reader": {"baton.api.metrics": "Counter Gauge Histogram Metric Vector"},
    "vllm.v1.metrics.stats": {"baton": "RequestStateStats"},
    "vllm.v1.sample": {},
    "vllm.v1.sample.logits_processor": {
        "baton.logits_processors": "AdapterLogitsProcessor BatchUpdate LogitsProcessor MoveDirectionality",
        "collections.abc": "RequestLogitsProcessor=Callable",
    },
    "vllm.v1.sample.logits_processor.builtin": {"baton.logits_processors": "process_dict_updates"},
    "vllm.version": {_STAND_INS: "__version__ __version_tuple__"},
}
"""Modules, and for each home in Baton the names that it gives them; `theirs=ours` where the names differ."""

PROGRAMS: Final[dict[str, tuple[str, ...]]] = {
    "vllm": (),
    "vllm.collect_env": ("collect-env",),
    "vllm.entrypoints.cli.main": (),
    "vllm.entrypoints.openai.api_server": ("serve",),
    "vllm.entrypoints.openai.run_batch": ("run-batch",),
}
"""Modules that `python -m` runs, and the words of the command line that each stands for."""

_REASONS: Final[dict[str, str]] = {
    "it belongs to multimodal input, which Baton does not support yet": (
        "vllm.assets vllm.connections vllm.multimodal"
    ),
    "LoRARequest is all that callers need of adapters, as docs/lora.md says": "vllm.lora",
    "LLM takes parts of a configuration as dictionaries, such as profiler_config={...}": "vllm.config",
    "ranks are started by tensor_parallel_size and distributed_executor_backend, as docs/parallel.md says": (
        "vllm.distributed vllm.ray"
    ),
    "weights come by LLM.update_weights or POST /update_weights, as docs/operations.md says": (
        "vllm.distributed.device_communicators vllm.distributed.utils vllm.distributed.weight_transfer"
    ),
    "messages are plain dictionaries, and LLM(chat_template=...) takes a file or Jinja source": (
        "vllm.entrypoints.chat_utils"
    ),
    "outputs have finish_reason as a text: stop, length or abort": "vllm.v1.engine",
    "StructuredOutputsParams has taken the place of GuidedDecodingParams": "vllm.sampling_params",
    "it is vLLM's own model code; register models of yours at ModelRegistry, as docs/models.md says": (
        "vllm.compilation vllm.forward_context vllm.model_executor vllm.model_inspection vllm.models"
    ),
    "it is of vLLM's kernels; Baton has its own": (
        "vllm.cute_utils vllm.ir vllm.kernels vllm.scalar_type vllm.third_party vllm.triton_utils "
        "vllm.vllm_flash_attn"
    ),
    "register parsers by --tool-parser-plugin, as docs/api.md says": (
        "vllm.parser vllm.reasoning vllm.tool_parsers"
    ),
    "run `vllm bench serve`, `vllm bench latency` or `vllm bench throughput`": "vllm.benchmarks",
    "call LLM.start_profile and LLM.stop_profile": "vllm.profiler",
    "call LLM.sleep and LLM.wake_up, which free memory and take it again": "vllm.device_allocator",
    "spans are sent where --otlp-traces-endpoint says": "vllm.tracing",
    "it is internal to vLLM's parser; EngineArgs.add_cli_args adds all flags to one of yours": (
        "vllm.engine.arg_utils"
    ),
    "run it: vllm collect-env": "vllm.collect_env",
    "run it: vllm serve MODEL": "vllm.entrypoints.openai.api_server",
    "vLLM's own releases have given up POST /generate; run vllm serve MODEL and POST to /v1/completions": (
        "vllm.entrypoints.api_server"
    ),
    "it is internal to vLLM; docs/as_vllm.md lists the names that Baton has": (
        "vllm vllm.entrypoints.cli.main vllm.env_override vllm.logging_utils "
        "vllm.v1.engine.core vllm.v1.engine.utils"
    ),
}
REASON_OF: Final = {module: reason for reason, modules in _REASONS.items() for module in modules.split()}
"""Why a module lacks what Baton does not have. The reason of a module is that of all below it, too."""
