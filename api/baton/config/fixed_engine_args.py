"""Engine arguments of vLLM's that have one value here, and why. Giving another one is an error."""

from __future__ import annotations

import argparse
import json
from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any, Final

from baton.config.ignored_engine_args import IGNORED, is_unset
from baton_core.errors import InvalidConfigError


@dataclass(frozen=True, slots=True)
class Fixed:
    """Values that change nothing, the default first; None and empty values never change anything."""

    allowed: tuple[Any, ...]
    reason: str

    @property
    def default(self) -> Any:
        return self.allowed[0]

    def check(self, value: object, name: str) -> None:
        """Refuse a value that asks for what there is not; `name` is what the error calls the field.

        Raises:
            InvalidConfigError: naming the field, its value, what is allowed and why.
        """
        # True is 1 and 4 is 4.0 to Python; the first is a mistake, the second is not.
        if is_unset(value) or any(
            value == one and isinstance(value, bool) is isinstance(one, bool) for one in self.allowed
        ):
            return
        allowed = " or ".join(repr(value) for value in self.allowed)
        shown = repr(value)
        shown = shown if len(shown) <= 80 else shown[:77] + "..."
        raise InvalidConfigError(f"{name} is {shown}; allowed: {allowed} ({self.reason})")


def _group(reason: str, *, unset: str = "", off: str = "", **others: Any) -> tuple[str, dict[str, Any]]:
    """Fields by default: `unset` is None, `off` is False."""
    return reason, dict.fromkeys(unset.split()) | dict.fromkeys(off.split(), False) | others


_GROUPS: Final = (
    _group(
        "a worker's ranks are parts of one model; prefill_workers and decode_workers add workers",
        unset=(
            "dcp_comm_backend dcp_q_replicate data_parallel_address elastic_ep_max_dp_size "
            "enable_batch_sharded_sampling device_ids numa_bind_nodes "
            "numa_bind_cpus fault_tolerance_config"
        ),
        off=(
            "data_parallel_multi_port_external_lb "
            "enable_ep_weight_filter enable_elastic_ep enable_eplb enable_dbo "
            "enable_hc_sp numa_bind ray_workers_use_nsight enable_nccl_comm_suspend "
            "enable_fault_tolerance"
        ),
        prefill_context_parallel_size=1,
        decode_context_parallel_size=1,
        data_parallel_backend="mp",
        num_redundant_experts=0,
        ubatch_size=0,
    ),
    _group(
        "scales come from the checkpoint, and weights are quantized as --quantization says",
        unset="quantization_param_path",
        off="allow_deprecated_quantization calculate_kv_scales",
    ),
    _group("all layers have the same type of KV cache", unset="kv_cache_dtype_skip_layers"),
    _group(
        "adapters change linear layers, the embedding and the head of text models, as PEFT stores them",
        unset=(
            "lora_target_modules default_mm_loras long_lora_scaling_factors qlora_adapter_name_or_path "
            "max_lora_cls_labels"
        ),
        off=(
            "enable_lora_bias enable_tower_connector_lora specialize_active_lora "
            "enable_mixed_moe_lora_format enable_moe_shared_loras enable_prompt_adapter"
        ),
        lora_extra_vocab_size=256,
        max_prompt_adapters=1,
        max_prompt_adapter_token=0,
    ),
    _group("adapters are computed in the model's dtype", lora_dtype="auto"),
    _group(
        "speculative_config says how tokens are drafted",
        unset="speculative_model num_speculative_tokens diffusion_config",
        per_request_spec_decode_metrics="none",
    ),
    _group(
        "models of text alone are supported",
        unset="io_processor_plugin ec_transfer_config ec_manager_config",
        off="enable_mm_embeds mm_encoder_only",
    ),
    _group(
        "runner, convert and pooler_config say how a model pools",
        unset="task override_pooler_config",
    ),
    _group(
        "models with a state instead of a KV cache are not supported",
        unset=(
            "mamba_block_size mamba_backend mamba_config mamba_ssu_algorithm mamba_cache_philox_rounds "
            "replayssm_buffer_len gdn_prefill_backend kda_prefill_backend kda_decode_backend"
        ),
        off=(
            "enable_mamba_cache_stochastic_rounding use_replayssm enable_mamba_shared_prefix_checkpoint "
            "swa_bounded_replay"
        ),
        mamba_cache_dtype="auto",
        mamba_ssm_cache_dtype="auto",
        mamba_cache_mode="none",
    ),
    _group(
        "it would change what the model computes; hf_overrides changes values of config.json",
        unset="rope_scaling rope_theta model_class_overrides override_attention_dtype engram_config",
        off="use_fp64_gumbel enable_bf16x3_router_gemm",
        config_format="auto",
    ),
    _group(
        "the code that computes a model is chosen by its architecture; "
        "ModelRegistry.register_model adds one of your own",
        unset="worker_extension_cls additional_config aux_output_config watermark_config",
        model_impl="auto",
        worker_cls="auto",
    ),
    _group(
        "weights and KV cache stay on their device",
        unset="cpu_offload_params offload_params kv_offloading_size",
        cpu_offload_gb=0,
        offload_backend="auto",
        offload_group_size=0,
        offload_num_in_group=1,
        offload_prefetch_step=1,
        kv_offloading_backend="native",
    ),
    _group(
        "a worker plans its steps itself, within max_num_seqs and max_num_batched_tokens",
        unset="max_num_scheduled_tokens max_num_active_seqs scheduler_cls",
        off="long_prefill_token_threshold_adaptive",
        scheduler_delay_factor=0.0,
    ),
    _group(
        "requests wait in the caller, and a router refuses what it cannot hold",
        unset="max_num_queued_reqs max_num_queued_tokens",
    ),
    _group(
        "the model's own tokenizer file is read",
        off="tokens_only",
        tokenizer_mode="auto",
    ),
    _group(
        "the model's folder or id has the weights",
        unset="model_weights",
    ),
    _group(
        "structured_outputs_config and reasoning_parser say it",
        unset="enable_reasoning reasoning_config",
        off=(
            "guided_decoding_disable_fallback guided_decoding_disable_any_whitespace "
            "guided_decoding_disable_additional_properties"
        ),
        guided_decoding_backend="auto",
    ),
    _group("logits_processors lists what requests may name", unset="logits_processor_pattern"),
    _group("prefill_workers and decode_workers set the transfer of KV blocks up", unset="kv_transfer_config"),
    _group(
        "it is not measured",
        unset="show_hidden_metrics_for_version collect_detailed_traces custom_histogram_buckets",
        off=(
            "cudagraph_metrics enable_layerwise_nvtx_tracing "
            "enable_logging_iteration_details jit_monitor_verbose"
        ),
        jit_monitor_mode="warn",
    ),
    _group(
        "outputs have tokens, texts and log-probabilities alone",
        off="enable_return_routed_experts return_sampling_mask enable_trace_replay",
    ),
    _group("the launcher of baton serve numbers its processes", _api_process_count=1, _api_process_rank=0),
    _group("environment variables of vLLM's are not checked", off="fail_on_environ_validation"),
)
_ALSO: Final[Mapping[str, tuple[Any, ...]]] = {
    "runner": ("generate",),
    "convert": ("none",),
    "task": ("auto", "generate"),
    "config_format": ("hf",),
    "model_impl": ("vllm",),
    "tokenizer_mode": ("hf", "slow"),
    "guided_decoding_backend": ("xgrammar",),
    "replayssm_buffer_len": (16,),
    "mamba_cache_philox_rounds": (0,),
    "swa_bounded_replay": (True,),
}
"""Further values that ask for nothing else, vLLM's own defaults among them."""
FIXED: Final[Mapping[str, Fixed]] = {
    name: Fixed((default, *_ALSO.get(name, ())), reason)
    for reason, defaults in _GROUPS
    for name, default in defaults.items()
}
_WITHOUT_FLAG: Final = frozenset({"log_level", "_api_process_count", "_api_process_rank"})
"""Fields that no command has as a flag of vLLM's: `--log-level` is Baton's own."""
DEFAULTS: Final[Mapping[str, Any]] = {
    **{name: fixed.default for name, fixed in FIXED.items()},
    **{name: ignored.default for name, ignored in IGNORED.items()},
}
"""Defaults of both kinds of fields."""
SWITCHES: Final = ("--enable-", "--disable-")
"""Beginnings of flags that are turned on or off."""
FIELD_OF: Final = {
    f"--{name.replace('_', '-')}": name for name in (*FIXED, *IGNORED) if name not in _WITHOUT_FLAG
}
"""Fields of both kinds by their flags."""
SHORT_FLAGS: Final[dict[str, str]] = {
    "-tp": "--tensor-parallel-size",
    "-pp": "--pipeline-parallel-size",
    "-dp": "--data-parallel-size",
    "-dpn": "--data-parallel-rank",
    "-dpr": "--data-parallel-start-rank",
    "-dpl": "--data-parallel-size-local",
    "-dpa": "--data-parallel-address",
    "-dpp": "--data-parallel-rpc-port",
    "-dpb": "--data-parallel-backend",
    "-dph": "--data-parallel-hybrid-lb",
    "-dpe": "--data-parallel-external-lb",
    "-dpm": "--data-parallel-multi-port-external-lb",
    "-pcp": "--prefill-context-parallel-size",
    "-dcp": "--decode-context-parallel-size",
    "-ep": "--enable-expert-parallel",
    "-n": "--nnodes",
    "-r": "--node-rank",
    "-q": "--quantization",
    "-ac": "--attention-config",
    "-cc": "--compilation-config",
    "-sc": "--speculative-config",
    "-asc": "--api-server-count",
    "-O": "--optimization-level",
}
"""Short forms of flags of vLLM's engine and of its server."""
LIST_FLAGS: Final = frozenset(
    ("--allowed-media-domains", "--cuda-graph-sizes", "--cudagraph-capture-sizes", "--ignore-patterns")
)
"""Flags that take every value which follows."""


def add_fixed_flags(parser: argparse.ArgumentParser) -> None:
    """Add hidden flags with the fields' defaults, so that whoever reads them can refuse them by name.

    Flags that the parser has stay, and get their short forms.
    """
    known = parser._option_string_actions
    for flag in FIELD_OF.keys() - known:
        name = FIELD_OF[flag]
        options: dict[str, Any] = {"dest": name, "default": DEFAULTS[name], "help": argparse.SUPPRESS}
        values: dict[str, Any] = {"nargs": "+"} if flag in LIST_FLAGS else {"nargs": "?", "const": True}
        parser.add_argument(flag, **values, type=literal, **options)
        if is_switch(flag):
            parser.add_argument(flag.replace("--", "--no-", 1), action="store_const", const=False, **options)
    for short, flag in SHORT_FLAGS.items():
        if flag in known and short not in known:
            whole = known[flag]
            values = {"nargs": whole.nargs, "const": whole.const, "type": whole.type}
            if whole.nargs == 0:
                values = {"action": "store_const", "const": whole.const}
            parser.add_argument(
                short, dest=whole.dest, default=argparse.SUPPRESS, help=argparse.SUPPRESS, **values
            )


def is_switch(flag: str) -> bool:
    """True for the flag of a field that is turned on or off."""
    return isinstance(DEFAULTS[FIELD_OF[flag]], bool) or flag.startswith(SWITCHES)


def literal(text: str) -> Any:
    """A value of the command line: what it is as JSON, else the text."""
    try:
        return json.loads(text)
    except (ValueError, RecursionError):
        return text
