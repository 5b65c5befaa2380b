from baton_proto.v1 import baton_pb2 as _baton_pb2
from google.protobuf.internal import containers as _containers
from google.protobuf import descriptor as _descriptor
from google.protobuf import message as _message
from collections.abc import Iterable as _Iterable, Mapping as _Mapping
from typing import ClassVar as _ClassVar, Optional as _Optional, Union as _Union

DESCRIPTOR: _descriptor.FileDescriptor

class WorkerFrame(_message.Message):
    __slots__ = ("hello", "heartbeat", "data")
    HELLO_FIELD_NUMBER: _ClassVar[int]
    HEARTBEAT_FIELD_NUMBER: _ClassVar[int]
    DATA_FIELD_NUMBER: _ClassVar[int]
    hello: Hello
    heartbeat: WorkerHeartbeat
    data: WorkerData
    def __init__(self, hello: _Optional[_Union[Hello, _Mapping]] = ..., heartbeat: _Optional[_Union[WorkerHeartbeat, _Mapping]] = ..., data: _Optional[_Union[WorkerData, _Mapping]] = ...) -> None: ...

class RouterFrame(_message.Message):
    __slots__ = ("welcome", "rejected", "heartbeat", "data", "processes")
    WELCOME_FIELD_NUMBER: _ClassVar[int]
    REJECTED_FIELD_NUMBER: _ClassVar[int]
    HEARTBEAT_FIELD_NUMBER: _ClassVar[int]
    DATA_FIELD_NUMBER: _ClassVar[int]
    PROCESSES_FIELD_NUMBER: _ClassVar[int]
    welcome: Welcome
    rejected: Rejected
    heartbeat: RouterHeartbeat
    data: RouterData
    processes: Processes
    def __init__(self, welcome: _Optional[_Union[Welcome, _Mapping]] = ..., rejected: _Optional[_Union[Rejected, _Mapping]] = ..., heartbeat: _Optional[_Union[RouterHeartbeat, _Mapping]] = ..., data: _Optional[_Union[RouterData, _Mapping]] = ..., processes: _Optional[_Union[Processes, _Mapping]] = ...) -> None: ...

class Processes(_message.Message):
    __slots__ = ("ports",)
    PORTS_FIELD_NUMBER: _ClassVar[int]
    ports: _containers.RepeatedScalarFieldContainer[int]
    def __init__(self, ports: _Optional[_Iterable[int]] = ...) -> None: ...

class Hello(_message.Message):
    __slots__ = ("worker_id", "epoch", "role", "identity", "max_model_len", "vocab_size", "num_blocks", "max_num_seqs", "peer_address", "kv_description", "router_epoch", "received", "block_bytes", "metrics_address", "data_parallel_rank", "process_port", "lacks_prefix_cache")
    WORKER_ID_FIELD_NUMBER: _ClassVar[int]
    EPOCH_FIELD_NUMBER: _ClassVar[int]
    ROLE_FIELD_NUMBER: _ClassVar[int]
    IDENTITY_FIELD_NUMBER: _ClassVar[int]
    MAX_MODEL_LEN_FIELD_NUMBER: _ClassVar[int]
    VOCAB_SIZE_FIELD_NUMBER: _ClassVar[int]
    NUM_BLOCKS_FIELD_NUMBER: _ClassVar[int]
    MAX_NUM_SEQS_FIELD_NUMBER: _ClassVar[int]
    PEER_ADDRESS_FIELD_NUMBER: _ClassVar[int]
    KV_DESCRIPTION_FIELD_NUMBER: _ClassVar[int]
    ROUTER_EPOCH_FIELD_NUMBER: _ClassVar[int]
    RECEIVED_FIELD_NUMBER: _ClassVar[int]
    BLOCK_BYTES_FIELD_NUMBER: _ClassVar[int]
    METRICS_ADDRESS_FIELD_NUMBER: _ClassVar[int]
    DATA_PARALLEL_RANK_FIELD_NUMBER: _ClassVar[int]
    PROCESS_PORT_FIELD_NUMBER: _ClassVar[int]
    LACKS_PREFIX_CACHE_FIELD_NUMBER: _ClassVar[int]
    worker_id: str
    epoch: int
    role: str
    identity: Identity
    max_model_len: int
    vocab_size: int
    num_blocks: int
    max_num_seqs: int
    peer_address: str
    kv_description: bytes
    router_epoch: int
    received: int
    block_bytes: int
    metrics_address: str
    data_parallel_rank: int
    process_port: int
    lacks_prefix_cache: bool
    def __init__(self, worker_id: _Optional[str] = ..., epoch: _Optional[int] = ..., role: _Optional[str] = ..., identity: _Optional[_Union[Identity, _Mapping]] = ..., max_model_len: _Optional[int] = ..., vocab_size: _Optional[int] = ..., num_blocks: _Optional[int] = ..., max_num_seqs: _Optional[int] = ..., peer_address: _Optional[str] = ..., kv_description: _Optional[bytes] = ..., router_epoch: _Optional[int] = ..., received: _Optional[int] = ..., block_bytes: _Optional[int] = ..., metrics_address: _Optional[str] = ..., data_parallel_rank: _Optional[int] = ..., process_port: _Optional[int] = ..., lacks_prefix_cache: bool = ...) -> None: ...

class Identity(_message.Message):
    __slots__ = ("weights", "dtype", "kv_layout", "block_size", "transport", "protocol_version", "kv_windows", "numerics", "description", "kv_variant", "quantization", "structured_outputs_backend", "logits_processors", "logprobs_mode", "pooling")
    WEIGHTS_FIELD_NUMBER: _ClassVar[int]
    DTYPE_FIELD_NUMBER: _ClassVar[int]
    KV_LAYOUT_FIELD_NUMBER: _ClassVar[int]
    BLOCK_SIZE_FIELD_NUMBER: _ClassVar[int]
    TRANSPORT_FIELD_NUMBER: _ClassVar[int]
    PROTOCOL_VERSION_FIELD_NUMBER: _ClassVar[int]
    KV_WINDOWS_FIELD_NUMBER: _ClassVar[int]
    NUMERICS_FIELD_NUMBER: _ClassVar[int]
    DESCRIPTION_FIELD_NUMBER: _ClassVar[int]
    KV_VARIANT_FIELD_NUMBER: _ClassVar[int]
    QUANTIZATION_FIELD_NUMBER: _ClassVar[int]
    STRUCTURED_OUTPUTS_BACKEND_FIELD_NUMBER: _ClassVar[int]
    LOGITS_PROCESSORS_FIELD_NUMBER: _ClassVar[int]
    LOGPROBS_MODE_FIELD_NUMBER: _ClassVar[int]
    POOLING_FIELD_NUMBER: _ClassVar[int]
    weights: str
    dtype: str
    kv_layout: str
    block_size: int
    transport: str
    protocol_version: int
    kv_windows: _containers.RepeatedScalarFieldContainer[int]
    numerics: str
    description: ModelDescription
    kv_variant: str
    quantization: str
    structured_outputs_backend: str
    logits_processors: _containers.RepeatedScalarFieldContainer[str]
    logprobs_mode: str
    pooling: str
    def __init__(self, weights: _Optional[str] = ..., dtype: _Optional[str] = ..., kv_layout: _Optional[str] = ..., block_size: _Optional[int] = ..., transport: _Optional[str] = ..., protocol_version: _Optional[int] = ..., kv_windows: _Optional[_Iterable[int]] = ..., numerics: _Optional[str] = ..., description: _Optional[_Union[ModelDescription, _Mapping]] = ..., kv_variant: _Optional[str] = ..., quantization: _Optional[str] = ..., structured_outputs_backend: _Optional[str] = ..., logits_processors: _Optional[_Iterable[str]] = ..., logprobs_mode: _Optional[str] = ..., pooling: _Optional[str] = ...) -> None: ...

class ModelDescription(_message.Message):
    __slots__ = ("config", "tokenizer", "eos_token_ids")
    class ConfigEntry(_message.Message):
        __slots__ = ("key", "value")
        KEY_FIELD_NUMBER: _ClassVar[int]
        VALUE_FIELD_NUMBER: _ClassVar[int]
        key: str
        value: str
        def __init__(self, key: _Optional[str] = ..., value: _Optional[str] = ...) -> None: ...
    CONFIG_FIELD_NUMBER: _ClassVar[int]
    TOKENIZER_FIELD_NUMBER: _ClassVar[int]
    EOS_TOKEN_IDS_FIELD_NUMBER: _ClassVar[int]
    config: _containers.ScalarMap[str, str]
    tokenizer: str
    eos_token_ids: _containers.RepeatedScalarFieldContainer[int]
    def __init__(self, config: _Optional[_Mapping[str, str]] = ..., tokenizer: _Optional[str] = ..., eos_token_ids: _Optional[_Iterable[int]] = ...) -> None: ...

class Welcome(_message.Message):
    __slots__ = ("router_id", "epoch", "received", "has_locality")
    ROUTER_ID_FIELD_NUMBER: _ClassVar[int]
    EPOCH_FIELD_NUMBER: _ClassVar[int]
    RECEIVED_FIELD_NUMBER: _ClassVar[int]
    HAS_LOCALITY_FIELD_NUMBER: _ClassVar[int]
    router_id: str
    epoch: int
    received: int
    has_locality: bool
    def __init__(self, router_id: _Optional[str] = ..., epoch: _Optional[int] = ..., received: _Optional[int] = ..., has_locality: bool = ...) -> None: ...

class Rejected(_message.Message):
    __slots__ = ("code", "message", "is_permanent")
    CODE_FIELD_NUMBER: _ClassVar[int]
    MESSAGE_FIELD_NUMBER: _ClassVar[int]
    IS_PERMANENT_FIELD_NUMBER: _ClassVar[int]
    code: str
    message: str
    is_permanent: bool
    def __init__(self, code: _Optional[str] = ..., message: _Optional[str] = ..., is_permanent: bool = ...) -> None: ...

class WorkerHeartbeat(_message.Message):
    __slots__ = ("sent", "received", "load")
    SENT_FIELD_NUMBER: _ClassVar[int]
    RECEIVED_FIELD_NUMBER: _ClassVar[int]
    LOAD_FIELD_NUMBER: _ClassVar[int]
    sent: int
    received: int
    load: Load
    def __init__(self, sent: _Optional[int] = ..., received: _Optional[int] = ..., load: _Optional[_Union[Load, _Mapping]] = ...) -> None: ...

class Load(_message.Message):
    __slots__ = ("num_running", "num_waiting", "num_queued_tokens", "num_available_blocks", "step_age_s", "is_asleep", "role", "is_draining", "rates", "is_role_fixed", "fault", "num_deferred", "is_paused", "weights", "adapters", "loading_adapters", "adapter_load_s", "waiting_request_ids", "figures")
    NUM_RUNNING_FIELD_NUMBER: _ClassVar[int]
    NUM_WAITING_FIELD_NUMBER: _ClassVar[int]
    NUM_QUEUED_TOKENS_FIELD_NUMBER: _ClassVar[int]
    NUM_AVAILABLE_BLOCKS_FIELD_NUMBER: _ClassVar[int]
    STEP_AGE_S_FIELD_NUMBER: _ClassVar[int]
    IS_ASLEEP_FIELD_NUMBER: _ClassVar[int]
    ROLE_FIELD_NUMBER: _ClassVar[int]
    IS_DRAINING_FIELD_NUMBER: _ClassVar[int]
    RATES_FIELD_NUMBER: _ClassVar[int]
    IS_ROLE_FIXED_FIELD_NUMBER: _ClassVar[int]
    FAULT_FIELD_NUMBER: _ClassVar[int]
    NUM_DEFERRED_FIELD_NUMBER: _ClassVar[int]
    IS_PAUSED_FIELD_NUMBER: _ClassVar[int]
    WEIGHTS_FIELD_NUMBER: _ClassVar[int]
    ADAPTERS_FIELD_NUMBER: _ClassVar[int]
    LOADING_ADAPTERS_FIELD_NUMBER: _ClassVar[int]
    ADAPTER_LOAD_S_FIELD_NUMBER: _ClassVar[int]
    WAITING_REQUEST_IDS_FIELD_NUMBER: _ClassVar[int]
    FIGURES_FIELD_NUMBER: _ClassVar[int]
    num_running: int
    num_waiting: int
    num_queued_tokens: int
    num_available_blocks: int
    step_age_s: float
    is_asleep: bool
    role: str
    is_draining: bool
    rates: Rates
    is_role_fixed: bool
    fault: str
    num_deferred: int
    is_paused: bool
    weights: str
    adapters: _containers.RepeatedScalarFieldContainer[str]
    loading_adapters: _containers.RepeatedScalarFieldContainer[str]
    adapter_load_s: float
    waiting_request_ids: _containers.RepeatedScalarFieldContainer[str]
    figures: Figures
    def __init__(self, num_running: _Optional[int] = ..., num_waiting: _Optional[int] = ..., num_queued_tokens: _Optional[int] = ..., num_available_blocks: _Optional[int] = ..., step_age_s: _Optional[float] = ..., is_asleep: bool = ..., role: _Optional[str] = ..., is_draining: bool = ..., rates: _Optional[_Union[Rates, _Mapping]] = ..., is_role_fixed: bool = ..., fault: _Optional[str] = ..., num_deferred: _Optional[int] = ..., is_paused: bool = ..., weights: _Optional[str] = ..., adapters: _Optional[_Iterable[str]] = ..., loading_adapters: _Optional[_Iterable[str]] = ..., adapter_load_s: _Optional[float] = ..., waiting_request_ids: _Optional[_Iterable[str]] = ..., figures: _Optional[_Union[Figures, _Mapping]] = ...) -> None: ...

class Figures(_message.Message):
    __slots__ = ("sleep_level", "num_queried_tokens", "num_hit_tokens", "num_computed_tokens", "num_cached_tokens", "num_remote_tokens", "num_remote_queried_tokens", "num_preemptions", "step_counts", "num_step_tokens", "num_drafts", "num_draft_tokens", "num_accepted_tokens", "num_accepted_per_position", "max_loras", "waiting_adapters", "running_adapters", "block_residency", "work")
    SLEEP_LEVEL_FIELD_NUMBER: _ClassVar[int]
    NUM_QUERIED_TOKENS_FIELD_NUMBER: _ClassVar[int]
    NUM_HIT_TOKENS_FIELD_NUMBER: _ClassVar[int]
    NUM_COMPUTED_TOKENS_FIELD_NUMBER: _ClassVar[int]
    NUM_CACHED_TOKENS_FIELD_NUMBER: _ClassVar[int]
    NUM_REMOTE_TOKENS_FIELD_NUMBER: _ClassVar[int]
    NUM_REMOTE_QUERIED_TOKENS_FIELD_NUMBER: _ClassVar[int]
    NUM_PREEMPTIONS_FIELD_NUMBER: _ClassVar[int]
    STEP_COUNTS_FIELD_NUMBER: _ClassVar[int]
    NUM_STEP_TOKENS_FIELD_NUMBER: _ClassVar[int]
    NUM_DRAFTS_FIELD_NUMBER: _ClassVar[int]
    NUM_DRAFT_TOKENS_FIELD_NUMBER: _ClassVar[int]
    NUM_ACCEPTED_TOKENS_FIELD_NUMBER: _ClassVar[int]
    NUM_ACCEPTED_PER_POSITION_FIELD_NUMBER: _ClassVar[int]
    MAX_LORAS_FIELD_NUMBER: _ClassVar[int]
    WAITING_ADAPTERS_FIELD_NUMBER: _ClassVar[int]
    RUNNING_ADAPTERS_FIELD_NUMBER: _ClassVar[int]
    BLOCK_RESIDENCY_FIELD_NUMBER: _ClassVar[int]
    WORK_FIELD_NUMBER: _ClassVar[int]
    sleep_level: int
    num_queried_tokens: int
    num_hit_tokens: int
    num_computed_tokens: int
    num_cached_tokens: int
    num_remote_tokens: int
    num_remote_queried_tokens: int
    num_preemptions: int
    step_counts: _containers.RepeatedScalarFieldContainer[int]
    num_step_tokens: int
    num_drafts: int
    num_draft_tokens: int
    num_accepted_tokens: int
    num_accepted_per_position: _containers.RepeatedScalarFieldContainer[int]
    max_loras: int
    waiting_adapters: _containers.RepeatedScalarFieldContainer[str]
    running_adapters: _containers.RepeatedScalarFieldContainer[str]
    block_residency: _containers.RepeatedCompositeFieldContainer[_baton_pb2.BucketCounts]
    work: _baton_pb2.Work
    def __init__(self, sleep_level: _Optional[int] = ..., num_queried_tokens: _Optional[int] = ..., num_hit_tokens: _Optional[int] = ..., num_computed_tokens: _Optional[int] = ..., num_cached_tokens: _Optional[int] = ..., num_remote_tokens: _Optional[int] = ..., num_remote_queried_tokens: _Optional[int] = ..., num_preemptions: _Optional[int] = ..., step_counts: _Optional[_Iterable[int]] = ..., num_step_tokens: _Optional[int] = ..., num_drafts: _Optional[int] = ..., num_draft_tokens: _Optional[int] = ..., num_accepted_tokens: _Optional[int] = ..., num_accepted_per_position: _Optional[_Iterable[int]] = ..., max_loras: _Optional[int] = ..., waiting_adapters: _Optional[_Iterable[str]] = ..., running_adapters: _Optional[_Iterable[str]] = ..., block_residency: _Optional[_Iterable[_Union[_baton_pb2.BucketCounts, _Mapping]]] = ..., work: _Optional[_Union[_baton_pb2.Work, _Mapping]] = ...) -> None: ...

class Rates(_message.Message):
    __slots__ = ("prefill_tokens_per_s", "decode_step_s", "pull_bytes_per_s", "num_prefill_steps", "num_decode_steps", "num_pulls")
    PREFILL_TOKENS_PER_S_FIELD_NUMBER: _ClassVar[int]
    DECODE_STEP_S_FIELD_NUMBER: _ClassVar[int]
    PULL_BYTES_PER_S_FIELD_NUMBER: _ClassVar[int]
    NUM_PREFILL_STEPS_FIELD_NUMBER: _ClassVar[int]
    NUM_DECODE_STEPS_FIELD_NUMBER: _ClassVar[int]
    NUM_PULLS_FIELD_NUMBER: _ClassVar[int]
    prefill_tokens_per_s: float
    decode_step_s: float
    pull_bytes_per_s: float
    num_prefill_steps: int
    num_decode_steps: int
    num_pulls: int
    def __init__(self, prefill_tokens_per_s: _Optional[float] = ..., decode_step_s: _Optional[float] = ..., pull_bytes_per_s: _Optional[float] = ..., num_prefill_steps: _Optional[int] = ..., num_decode_steps: _Optional[int] = ..., num_pulls: _Optional[int] = ...) -> None: ...

class RouterHeartbeat(_message.Message):
    __slots__ = ("sent", "received")
    SENT_FIELD_NUMBER: _ClassVar[int]
    RECEIVED_FIELD_NUMBER: _ClassVar[int]
    sent: int
    received: int
    def __init__(self, sent: _Optional[int] = ..., received: _Optional[int] = ...) -> None: ...

class RouterData(_message.Message):
    __slots__ = ("number", "generate", "prefill", "reserve", "start", "cancel", "control")
    NUMBER_FIELD_NUMBER: _ClassVar[int]
    GENERATE_FIELD_NUMBER: _ClassVar[int]
    PREFILL_FIELD_NUMBER: _ClassVar[int]
    RESERVE_FIELD_NUMBER: _ClassVar[int]
    START_FIELD_NUMBER: _ClassVar[int]
    CANCEL_FIELD_NUMBER: _ClassVar[int]
    CONTROL_FIELD_NUMBER: _ClassVar[int]
    number: int
    generate: Generate
    prefill: Prefill
    reserve: Reserve
    start: Start
    cancel: Cancel
    control: Control
    def __init__(self, number: _Optional[int] = ..., generate: _Optional[_Union[Generate, _Mapping]] = ..., prefill: _Optional[_Union[Prefill, _Mapping]] = ..., reserve: _Optional[_Union[Reserve, _Mapping]] = ..., start: _Optional[_Union[Start, _Mapping]] = ..., cancel: _Optional[_Union[Cancel, _Mapping]] = ..., control: _Optional[_Union[Control, _Mapping]] = ...) -> None: ...

class WorkerData(_message.Message):
    __slots__ = ("number", "reserved", "refused", "first_token", "token_batch", "transferred", "failed", "cache_delta", "prompt_logprobs", "control_result", "phase_report", "pooled")
    NUMBER_FIELD_NUMBER: _ClassVar[int]
    RESERVED_FIELD_NUMBER: _ClassVar[int]
    REFUSED_FIELD_NUMBER: _ClassVar[int]
    FIRST_TOKEN_FIELD_NUMBER: _ClassVar[int]
    TOKEN_BATCH_FIELD_NUMBER: _ClassVar[int]
    TRANSFERRED_FIELD_NUMBER: _ClassVar[int]
    FAILED_FIELD_NUMBER: _ClassVar[int]
    CACHE_DELTA_FIELD_NUMBER: _ClassVar[int]
    PROMPT_LOGPROBS_FIELD_NUMBER: _ClassVar[int]
    CONTROL_RESULT_FIELD_NUMBER: _ClassVar[int]
    PHASE_REPORT_FIELD_NUMBER: _ClassVar[int]
    POOLED_FIELD_NUMBER: _ClassVar[int]
    number: int
    reserved: Reserved
    refused: Refused
    first_token: FirstToken
    token_batch: TokenBatch
    transferred: Transferred
    failed: Failed
    cache_delta: CacheDelta
    prompt_logprobs: PromptLogprobs
    control_result: ControlResult
    phase_report: PhaseReport
    pooled: Pooled
    def __init__(self, number: _Optional[int] = ..., reserved: _Optional[_Union[Reserved, _Mapping]] = ..., refused: _Optional[_Union[Refused, _Mapping]] = ..., first_token: _Optional[_Union[FirstToken, _Mapping]] = ..., token_batch: _Optional[_Union[TokenBatch, _Mapping]] = ..., transferred: _Optional[_Union[Transferred, _Mapping]] = ..., failed: _Optional[_Union[Failed, _Mapping]] = ..., cache_delta: _Optional[_Union[CacheDelta, _Mapping]] = ..., prompt_logprobs: _Optional[_Union[PromptLogprobs, _Mapping]] = ..., control_result: _Optional[_Union[ControlResult, _Mapping]] = ..., phase_report: _Optional[_Union[PhaseReport, _Mapping]] = ..., pooled: _Optional[_Union[Pooled, _Mapping]] = ...) -> None: ...

class RequestSpec(_message.Message):
    __slots__ = ("request_id", "prompt_token_ids", "sampling", "cache_salt", "priority", "bad_words", "thinking", "traceparent", "resumed", "tenant", "weights", "prompt_embeds", "pooling", "adapter")
    REQUEST_ID_FIELD_NUMBER: _ClassVar[int]
    PROMPT_TOKEN_IDS_FIELD_NUMBER: _ClassVar[int]
    SAMPLING_FIELD_NUMBER: _ClassVar[int]
    CACHE_SALT_FIELD_NUMBER: _ClassVar[int]
    PRIORITY_FIELD_NUMBER: _ClassVar[int]
    BAD_WORDS_FIELD_NUMBER: _ClassVar[int]
    THINKING_FIELD_NUMBER: _ClassVar[int]
    TRACEPARENT_FIELD_NUMBER: _ClassVar[int]
    RESUMED_FIELD_NUMBER: _ClassVar[int]
    TENANT_FIELD_NUMBER: _ClassVar[int]
    WEIGHTS_FIELD_NUMBER: _ClassVar[int]
    PROMPT_EMBEDS_FIELD_NUMBER: _ClassVar[int]
    POOLING_FIELD_NUMBER: _ClassVar[int]
    ADAPTER_FIELD_NUMBER: _ClassVar[int]
    request_id: str
    prompt_token_ids: _containers.RepeatedScalarFieldContainer[int]
    sampling: Sampling
    cache_salt: str
    priority: int
    bad_words: _containers.RepeatedCompositeFieldContainer[Tokens]
    thinking: Thinking
    traceparent: str
    resumed: _containers.RepeatedCompositeFieldContainer[OutputSoFar]
    tenant: str
    weights: str
    prompt_embeds: _containers.RepeatedCompositeFieldContainer[EmbeddingRows]
    pooling: Pooling
    adapter: Adapter
    def __init__(self, request_id: _Optional[str] = ..., prompt_token_ids: _Optional[_Iterable[int]] = ..., sampling: _Optional[_Union[Sampling, _Mapping]] = ..., cache_salt: _Optional[str] = ..., priority: _Optional[int] = ..., bad_words: _Optional[_Iterable[_Union[Tokens, _Mapping]]] = ..., thinking: _Optional[_Union[Thinking, _Mapping]] = ..., traceparent: _Optional[str] = ..., resumed: _Optional[_Iterable[_Union[OutputSoFar, _Mapping]]] = ..., tenant: _Optional[str] = ..., weights: _Optional[str] = ..., prompt_embeds: _Optional[_Iterable[_Union[EmbeddingRows, _Mapping]]] = ..., pooling: _Optional[_Union[Pooling, _Mapping]] = ..., adapter: _Optional[_Union[Adapter, _Mapping]] = ...) -> None: ...

class Adapter(_message.Message):
    __slots__ = ("name", "digest", "path", "number")
    NAME_FIELD_NUMBER: _ClassVar[int]
    DIGEST_FIELD_NUMBER: _ClassVar[int]
    PATH_FIELD_NUMBER: _ClassVar[int]
    NUMBER_FIELD_NUMBER: _ClassVar[int]
    name: str
    digest: str
    path: str
    number: int
    def __init__(self, name: _Optional[str] = ..., digest: _Optional[str] = ..., path: _Optional[str] = ..., number: _Optional[int] = ...) -> None: ...

class Pooling(_message.Message):
    __slots__ = ("task", "dimensions", "use_activation", "type_one_from")
    TASK_FIELD_NUMBER: _ClassVar[int]
    DIMENSIONS_FIELD_NUMBER: _ClassVar[int]
    USE_ACTIVATION_FIELD_NUMBER: _ClassVar[int]
    TYPE_ONE_FROM_FIELD_NUMBER: _ClassVar[int]
    task: str
    dimensions: int
    use_activation: bool
    type_one_from: int
    def __init__(self, task: _Optional[str] = ..., dimensions: _Optional[int] = ..., use_activation: bool = ..., type_one_from: _Optional[int] = ...) -> None: ...

class EmbeddingRows(_message.Message):
    __slots__ = ("start", "hidden_size", "dtype", "data", "digests")
    START_FIELD_NUMBER: _ClassVar[int]
    HIDDEN_SIZE_FIELD_NUMBER: _ClassVar[int]
    DTYPE_FIELD_NUMBER: _ClassVar[int]
    DATA_FIELD_NUMBER: _ClassVar[int]
    DIGESTS_FIELD_NUMBER: _ClassVar[int]
    start: int
    hidden_size: int
    dtype: str
    data: bytes
    digests: bytes
    def __init__(self, start: _Optional[int] = ..., hidden_size: _Optional[int] = ..., dtype: _Optional[str] = ..., data: _Optional[bytes] = ..., digests: _Optional[bytes] = ...) -> None: ...

class OutputSoFar(_message.Message):
    __slots__ = ("index", "token_ids")
    INDEX_FIELD_NUMBER: _ClassVar[int]
    TOKEN_IDS_FIELD_NUMBER: _ClassVar[int]
    index: int
    token_ids: _containers.RepeatedScalarFieldContainer[int]
    def __init__(self, index: _Optional[int] = ..., token_ids: _Optional[_Iterable[int]] = ...) -> None: ...

class Tokens(_message.Message):
    __slots__ = ("ids",)
    IDS_FIELD_NUMBER: _ClassVar[int]
    ids: _containers.RepeatedScalarFieldContainer[int]
    def __init__(self, ids: _Optional[_Iterable[int]] = ...) -> None: ...

class Thinking(_message.Message):
    __slots__ = ("num_tokens", "start_token_ids", "end_token_ids", "may_end")
    NUM_TOKENS_FIELD_NUMBER: _ClassVar[int]
    START_TOKEN_IDS_FIELD_NUMBER: _ClassVar[int]
    END_TOKEN_IDS_FIELD_NUMBER: _ClassVar[int]
    MAY_END_FIELD_NUMBER: _ClassVar[int]
    num_tokens: int
    start_token_ids: _containers.RepeatedScalarFieldContainer[int]
    end_token_ids: _containers.RepeatedScalarFieldContainer[int]
    may_end: bool
    def __init__(self, num_tokens: _Optional[int] = ..., start_token_ids: _Optional[_Iterable[int]] = ..., end_token_ids: _Optional[_Iterable[int]] = ..., may_end: bool = ...) -> None: ...

class Sampling(_message.Message):
    __slots__ = ("n", "temperature", "top_p", "top_k", "min_p", "seed", "stop_token_ids", "ignore_eos", "max_tokens", "presence_penalty", "frequency_penalty", "repetition_penalty", "min_tokens", "logprobs", "prompt_logprobs", "logprob_token_ids", "logit_bias", "allowed_token_ids", "structured_outputs", "repetition_detection", "logits_processors", "extra_args_json", "skips_prefix_cache")
    class LogitBiasEntry(_message.Message):
        __slots__ = ("key", "value")
        KEY_FIELD_NUMBER: _ClassVar[int]
        VALUE_FIELD_NUMBER: _ClassVar[int]
        key: int
        value: float
        def __init__(self, key: _Optional[int] = ..., value: _Optional[float] = ...) -> None: ...
    N_FIELD_NUMBER: _ClassVar[int]
    TEMPERATURE_FIELD_NUMBER: _ClassVar[int]
    TOP_P_FIELD_NUMBER: _ClassVar[int]
    TOP_K_FIELD_NUMBER: _ClassVar[int]
    MIN_P_FIELD_NUMBER: _ClassVar[int]
    SEED_FIELD_NUMBER: _ClassVar[int]
    STOP_TOKEN_IDS_FIELD_NUMBER: _ClassVar[int]
    IGNORE_EOS_FIELD_NUMBER: _ClassVar[int]
    MAX_TOKENS_FIELD_NUMBER: _ClassVar[int]
    PRESENCE_PENALTY_FIELD_NUMBER: _ClassVar[int]
    FREQUENCY_PENALTY_FIELD_NUMBER: _ClassVar[int]
    REPETITION_PENALTY_FIELD_NUMBER: _ClassVar[int]
    MIN_TOKENS_FIELD_NUMBER: _ClassVar[int]
    LOGPROBS_FIELD_NUMBER: _ClassVar[int]
    PROMPT_LOGPROBS_FIELD_NUMBER: _ClassVar[int]
    LOGPROB_TOKEN_IDS_FIELD_NUMBER: _ClassVar[int]
    LOGIT_BIAS_FIELD_NUMBER: _ClassVar[int]
    ALLOWED_TOKEN_IDS_FIELD_NUMBER: _ClassVar[int]
    STRUCTURED_OUTPUTS_FIELD_NUMBER: _ClassVar[int]
    REPETITION_DETECTION_FIELD_NUMBER: _ClassVar[int]
    LOGITS_PROCESSORS_FIELD_NUMBER: _ClassVar[int]
    EXTRA_ARGS_JSON_FIELD_NUMBER: _ClassVar[int]
    SKIPS_PREFIX_CACHE_FIELD_NUMBER: _ClassVar[int]
    n: int
    temperature: float
    top_p: float
    top_k: int
    min_p: float
    seed: int
    stop_token_ids: _containers.RepeatedScalarFieldContainer[int]
    ignore_eos: bool
    max_tokens: int
    presence_penalty: float
    frequency_penalty: float
    repetition_penalty: float
    min_tokens: int
    logprobs: int
    prompt_logprobs: int
    logprob_token_ids: _containers.RepeatedScalarFieldContainer[int]
    logit_bias: _containers.ScalarMap[int, float]
    allowed_token_ids: _containers.RepeatedScalarFieldContainer[int]
    structured_outputs: OutputGrammar
    repetition_detection: RepetitionRule
    logits_processors: _containers.RepeatedScalarFieldContainer[str]
    extra_args_json: str
    skips_prefix_cache: bool
    def __init__(self, n: _Optional[int] = ..., temperature: _Optional[float] = ..., top_p: _Optional[float] = ..., top_k: _Optional[int] = ..., min_p: _Optional[float] = ..., seed: _Optional[int] = ..., stop_token_ids: _Optional[_Iterable[int]] = ..., ignore_eos: bool = ..., max_tokens: _Optional[int] = ..., presence_penalty: _Optional[float] = ..., frequency_penalty: _Optional[float] = ..., repetition_penalty: _Optional[float] = ..., min_tokens: _Optional[int] = ..., logprobs: _Optional[int] = ..., prompt_logprobs: _Optional[int] = ..., logprob_token_ids: _Optional[_Iterable[int]] = ..., logit_bias: _Optional[_Mapping[int, float]] = ..., allowed_token_ids: _Optional[_Iterable[int]] = ..., structured_outputs: _Optional[_Union[OutputGrammar, _Mapping]] = ..., repetition_detection: _Optional[_Union[RepetitionRule, _Mapping]] = ..., logits_processors: _Optional[_Iterable[str]] = ..., extra_args_json: _Optional[str] = ..., skips_prefix_cache: bool = ...) -> None: ...

class OutputGrammar(_message.Message):
    __slots__ = ("json", "regex", "choice", "grammar", "json_object", "structural_tag", "disable_any_whitespace", "backend")
    JSON_FIELD_NUMBER: _ClassVar[int]
    REGEX_FIELD_NUMBER: _ClassVar[int]
    CHOICE_FIELD_NUMBER: _ClassVar[int]
    GRAMMAR_FIELD_NUMBER: _ClassVar[int]
    JSON_OBJECT_FIELD_NUMBER: _ClassVar[int]
    STRUCTURAL_TAG_FIELD_NUMBER: _ClassVar[int]
    DISABLE_ANY_WHITESPACE_FIELD_NUMBER: _ClassVar[int]
    BACKEND_FIELD_NUMBER: _ClassVar[int]
    json: str
    regex: str
    choice: _containers.RepeatedScalarFieldContainer[str]
    grammar: str
    json_object: bool
    structural_tag: str
    disable_any_whitespace: bool
    backend: str
    def __init__(self, json: _Optional[str] = ..., regex: _Optional[str] = ..., choice: _Optional[_Iterable[str]] = ..., grammar: _Optional[str] = ..., json_object: bool = ..., structural_tag: _Optional[str] = ..., disable_any_whitespace: bool = ..., backend: _Optional[str] = ...) -> None: ...

class RepetitionRule(_message.Message):
    __slots__ = ("max_pattern_size", "min_pattern_size", "min_count")
    MAX_PATTERN_SIZE_FIELD_NUMBER: _ClassVar[int]
    MIN_PATTERN_SIZE_FIELD_NUMBER: _ClassVar[int]
    MIN_COUNT_FIELD_NUMBER: _ClassVar[int]
    max_pattern_size: int
    min_pattern_size: int
    min_count: int
    def __init__(self, max_pattern_size: _Optional[int] = ..., min_pattern_size: _Optional[int] = ..., min_count: _Optional[int] = ...) -> None: ...

class Generate(_message.Message):
    __slots__ = ("spec",)
    SPEC_FIELD_NUMBER: _ClassVar[int]
    spec: RequestSpec
    def __init__(self, spec: _Optional[_Union[RequestSpec, _Mapping]] = ...) -> None: ...

class Prefill(_message.Message):
    __slots__ = ("spec",)
    SPEC_FIELD_NUMBER: _ClassVar[int]
    spec: RequestSpec
    def __init__(self, spec: _Optional[_Union[RequestSpec, _Mapping]] = ...) -> None: ...

class Reserve(_message.Message):
    __slots__ = ("spec", "source")
    SPEC_FIELD_NUMBER: _ClassVar[int]
    SOURCE_FIELD_NUMBER: _ClassVar[int]
    spec: RequestSpec
    source: KVSource
    def __init__(self, spec: _Optional[_Union[RequestSpec, _Mapping]] = ..., source: _Optional[_Union[KVSource, _Mapping]] = ...) -> None: ...

class KVSource(_message.Message):
    __slots__ = ("worker_id", "epoch", "peer_address", "kv_description")
    WORKER_ID_FIELD_NUMBER: _ClassVar[int]
    EPOCH_FIELD_NUMBER: _ClassVar[int]
    PEER_ADDRESS_FIELD_NUMBER: _ClassVar[int]
    KV_DESCRIPTION_FIELD_NUMBER: _ClassVar[int]
    worker_id: str
    epoch: int
    peer_address: str
    kv_description: bytes
    def __init__(self, worker_id: _Optional[str] = ..., epoch: _Optional[int] = ..., peer_address: _Optional[str] = ..., kv_description: _Optional[bytes] = ...) -> None: ...

class Start(_message.Message):
    __slots__ = ("request_id", "first_tokens")
    class SequenceToken(_message.Message):
        __slots__ = ("index", "token_id")
        INDEX_FIELD_NUMBER: _ClassVar[int]
        TOKEN_ID_FIELD_NUMBER: _ClassVar[int]
        index: int
        token_id: int
        def __init__(self, index: _Optional[int] = ..., token_id: _Optional[int] = ...) -> None: ...
    REQUEST_ID_FIELD_NUMBER: _ClassVar[int]
    FIRST_TOKENS_FIELD_NUMBER: _ClassVar[int]
    request_id: str
    first_tokens: _containers.RepeatedCompositeFieldContainer[Start.SequenceToken]
    def __init__(self, request_id: _Optional[str] = ..., first_tokens: _Optional[_Iterable[_Union[Start.SequenceToken, _Mapping]]] = ...) -> None: ...

class Cancel(_message.Message):
    __slots__ = ("request_id", "indices")
    REQUEST_ID_FIELD_NUMBER: _ClassVar[int]
    INDICES_FIELD_NUMBER: _ClassVar[int]
    request_id: str
    indices: _containers.RepeatedScalarFieldContainer[int]
    def __init__(self, request_id: _Optional[str] = ..., indices: _Optional[_Iterable[int]] = ...) -> None: ...

class Control(_message.Message):
    __slots__ = ("control_id", "action", "argument_json", "timeout_s")
    CONTROL_ID_FIELD_NUMBER: _ClassVar[int]
    ACTION_FIELD_NUMBER: _ClassVar[int]
    ARGUMENT_JSON_FIELD_NUMBER: _ClassVar[int]
    TIMEOUT_S_FIELD_NUMBER: _ClassVar[int]
    control_id: int
    action: str
    argument_json: str
    timeout_s: float
    def __init__(self, control_id: _Optional[int] = ..., action: _Optional[str] = ..., argument_json: _Optional[str] = ..., timeout_s: _Optional[float] = ...) -> None: ...

class Reserved(_message.Message):
    __slots__ = ("request_id", "num_cached_tokens")
    REQUEST_ID_FIELD_NUMBER: _ClassVar[int]
    NUM_CACHED_TOKENS_FIELD_NUMBER: _ClassVar[int]
    request_id: str
    num_cached_tokens: int
    def __init__(self, request_id: _Optional[str] = ..., num_cached_tokens: _Optional[int] = ...) -> None: ...

class Refused(_message.Message):
    __slots__ = ("request_id", "code", "message")
    REQUEST_ID_FIELD_NUMBER: _ClassVar[int]
    CODE_FIELD_NUMBER: _ClassVar[int]
    MESSAGE_FIELD_NUMBER: _ClassVar[int]
    request_id: str
    code: str
    message: str
    def __init__(self, request_id: _Optional[str] = ..., code: _Optional[str] = ..., message: _Optional[str] = ...) -> None: ...

class SequenceOutput(_message.Message):
    __slots__ = ("request_id", "index", "token_ids", "finish_reason", "stop_token_id", "logprobs")
    REQUEST_ID_FIELD_NUMBER: _ClassVar[int]
    INDEX_FIELD_NUMBER: _ClassVar[int]
    TOKEN_IDS_FIELD_NUMBER: _ClassVar[int]
    FINISH_REASON_FIELD_NUMBER: _ClassVar[int]
    STOP_TOKEN_ID_FIELD_NUMBER: _ClassVar[int]
    LOGPROBS_FIELD_NUMBER: _ClassVar[int]
    request_id: str
    index: int
    token_ids: _containers.RepeatedScalarFieldContainer[int]
    finish_reason: str
    stop_token_id: int
    logprobs: _containers.RepeatedCompositeFieldContainer[TokenLogprobs]
    def __init__(self, request_id: _Optional[str] = ..., index: _Optional[int] = ..., token_ids: _Optional[_Iterable[int]] = ..., finish_reason: _Optional[str] = ..., stop_token_id: _Optional[int] = ..., logprobs: _Optional[_Iterable[_Union[TokenLogprobs, _Mapping]]] = ...) -> None: ...

class TokenLogprobs(_message.Message):
    __slots__ = ("token_ids", "logprobs", "ranks")
    TOKEN_IDS_FIELD_NUMBER: _ClassVar[int]
    LOGPROBS_FIELD_NUMBER: _ClassVar[int]
    RANKS_FIELD_NUMBER: _ClassVar[int]
    token_ids: _containers.RepeatedScalarFieldContainer[int]
    logprobs: _containers.RepeatedScalarFieldContainer[float]
    ranks: _containers.RepeatedScalarFieldContainer[int]
    def __init__(self, token_ids: _Optional[_Iterable[int]] = ..., logprobs: _Optional[_Iterable[float]] = ..., ranks: _Optional[_Iterable[int]] = ...) -> None: ...

class PromptLogprobs(_message.Message):
    __slots__ = ("request_id", "start", "lengths", "token_ids", "logprobs", "ranks")
    REQUEST_ID_FIELD_NUMBER: _ClassVar[int]
    START_FIELD_NUMBER: _ClassVar[int]
    LENGTHS_FIELD_NUMBER: _ClassVar[int]
    TOKEN_IDS_FIELD_NUMBER: _ClassVar[int]
    LOGPROBS_FIELD_NUMBER: _ClassVar[int]
    RANKS_FIELD_NUMBER: _ClassVar[int]
    request_id: str
    start: int
    lengths: _containers.RepeatedScalarFieldContainer[int]
    token_ids: _containers.RepeatedScalarFieldContainer[int]
    logprobs: _containers.RepeatedScalarFieldContainer[float]
    ranks: _containers.RepeatedScalarFieldContainer[int]
    def __init__(self, request_id: _Optional[str] = ..., start: _Optional[int] = ..., lengths: _Optional[_Iterable[int]] = ..., token_ids: _Optional[_Iterable[int]] = ..., logprobs: _Optional[_Iterable[float]] = ..., ranks: _Optional[_Iterable[int]] = ...) -> None: ...

class FirstToken(_message.Message):
    __slots__ = ("request_id", "outputs", "num_cached_tokens", "queue_s", "prefill_s")
    REQUEST_ID_FIELD_NUMBER: _ClassVar[int]
    OUTPUTS_FIELD_NUMBER: _ClassVar[int]
    NUM_CACHED_TOKENS_FIELD_NUMBER: _ClassVar[int]
    QUEUE_S_FIELD_NUMBER: _ClassVar[int]
    PREFILL_S_FIELD_NUMBER: _ClassVar[int]
    request_id: str
    outputs: _containers.RepeatedCompositeFieldContainer[SequenceOutput]
    num_cached_tokens: int
    queue_s: float
    prefill_s: float
    def __init__(self, request_id: _Optional[str] = ..., outputs: _Optional[_Iterable[_Union[SequenceOutput, _Mapping]]] = ..., num_cached_tokens: _Optional[int] = ..., queue_s: _Optional[float] = ..., prefill_s: _Optional[float] = ...) -> None: ...

class Pooled(_message.Message):
    __slots__ = ("request_id", "shape", "values", "num_cached_tokens", "queue_s", "prefill_s")
    REQUEST_ID_FIELD_NUMBER: _ClassVar[int]
    SHAPE_FIELD_NUMBER: _ClassVar[int]
    VALUES_FIELD_NUMBER: _ClassVar[int]
    NUM_CACHED_TOKENS_FIELD_NUMBER: _ClassVar[int]
    QUEUE_S_FIELD_NUMBER: _ClassVar[int]
    PREFILL_S_FIELD_NUMBER: _ClassVar[int]
    request_id: str
    shape: _containers.RepeatedScalarFieldContainer[int]
    values: bytes
    num_cached_tokens: int
    queue_s: float
    prefill_s: float
    def __init__(self, request_id: _Optional[str] = ..., shape: _Optional[_Iterable[int]] = ..., values: _Optional[bytes] = ..., num_cached_tokens: _Optional[int] = ..., queue_s: _Optional[float] = ..., prefill_s: _Optional[float] = ...) -> None: ...

class TokenBatch(_message.Message):
    __slots__ = ("request_ids", "indices", "lengths", "token_ids", "details")
    REQUEST_IDS_FIELD_NUMBER: _ClassVar[int]
    INDICES_FIELD_NUMBER: _ClassVar[int]
    LENGTHS_FIELD_NUMBER: _ClassVar[int]
    TOKEN_IDS_FIELD_NUMBER: _ClassVar[int]
    DETAILS_FIELD_NUMBER: _ClassVar[int]
    request_ids: _containers.RepeatedScalarFieldContainer[str]
    indices: _containers.RepeatedScalarFieldContainer[int]
    lengths: _containers.RepeatedScalarFieldContainer[int]
    token_ids: _containers.RepeatedScalarFieldContainer[int]
    details: _containers.RepeatedCompositeFieldContainer[OutputDetails]
    def __init__(self, request_ids: _Optional[_Iterable[str]] = ..., indices: _Optional[_Iterable[int]] = ..., lengths: _Optional[_Iterable[int]] = ..., token_ids: _Optional[_Iterable[int]] = ..., details: _Optional[_Iterable[_Union[OutputDetails, _Mapping]]] = ...) -> None: ...

class OutputDetails(_message.Message):
    __slots__ = ("position", "finish_reason", "stop_token_id", "logprobs")
    POSITION_FIELD_NUMBER: _ClassVar[int]
    FINISH_REASON_FIELD_NUMBER: _ClassVar[int]
    STOP_TOKEN_ID_FIELD_NUMBER: _ClassVar[int]
    LOGPROBS_FIELD_NUMBER: _ClassVar[int]
    position: int
    finish_reason: str
    stop_token_id: int
    logprobs: _containers.RepeatedCompositeFieldContainer[TokenLogprobs]
    def __init__(self, position: _Optional[int] = ..., finish_reason: _Optional[str] = ..., stop_token_id: _Optional[int] = ..., logprobs: _Optional[_Iterable[_Union[TokenLogprobs, _Mapping]]] = ...) -> None: ...

class Transferred(_message.Message):
    __slots__ = ("request_id", "num_blocks", "num_bytes", "transfer_s", "num_recomputed_tokens")
    REQUEST_ID_FIELD_NUMBER: _ClassVar[int]
    NUM_BLOCKS_FIELD_NUMBER: _ClassVar[int]
    NUM_BYTES_FIELD_NUMBER: _ClassVar[int]
    TRANSFER_S_FIELD_NUMBER: _ClassVar[int]
    NUM_RECOMPUTED_TOKENS_FIELD_NUMBER: _ClassVar[int]
    request_id: str
    num_blocks: int
    num_bytes: int
    transfer_s: float
    num_recomputed_tokens: int
    def __init__(self, request_id: _Optional[str] = ..., num_blocks: _Optional[int] = ..., num_bytes: _Optional[int] = ..., transfer_s: _Optional[float] = ..., num_recomputed_tokens: _Optional[int] = ...) -> None: ...

class Failed(_message.Message):
    __slots__ = ("request_id", "code", "message")
    REQUEST_ID_FIELD_NUMBER: _ClassVar[int]
    CODE_FIELD_NUMBER: _ClassVar[int]
    MESSAGE_FIELD_NUMBER: _ClassVar[int]
    request_id: str
    code: str
    message: str
    def __init__(self, request_id: _Optional[str] = ..., code: _Optional[str] = ..., message: _Optional[str] = ...) -> None: ...

class CacheDelta(_message.Message):
    __slots__ = ("stored", "removed", "number", "is_snapshot")
    STORED_FIELD_NUMBER: _ClassVar[int]
    REMOVED_FIELD_NUMBER: _ClassVar[int]
    NUMBER_FIELD_NUMBER: _ClassVar[int]
    IS_SNAPSHOT_FIELD_NUMBER: _ClassVar[int]
    stored: _containers.RepeatedScalarFieldContainer[bytes]
    removed: _containers.RepeatedScalarFieldContainer[bytes]
    number: int
    is_snapshot: bool
    def __init__(self, stored: _Optional[_Iterable[bytes]] = ..., removed: _Optional[_Iterable[bytes]] = ..., number: _Optional[int] = ..., is_snapshot: bool = ...) -> None: ...

class PhaseReport(_message.Message):
    __slots__ = ("request_id", "phases", "sources", "num_left_out", "sent_s", "traceparent")
    REQUEST_ID_FIELD_NUMBER: _ClassVar[int]
    PHASES_FIELD_NUMBER: _ClassVar[int]
    SOURCES_FIELD_NUMBER: _ClassVar[int]
    NUM_LEFT_OUT_FIELD_NUMBER: _ClassVar[int]
    SENT_S_FIELD_NUMBER: _ClassVar[int]
    TRACEPARENT_FIELD_NUMBER: _ClassVar[int]
    request_id: str
    phases: _containers.RepeatedCompositeFieldContainer[Phase]
    sources: TokenSources
    num_left_out: int
    sent_s: float
    traceparent: str
    def __init__(self, request_id: _Optional[str] = ..., phases: _Optional[_Iterable[_Union[Phase, _Mapping]]] = ..., sources: _Optional[_Union[TokenSources, _Mapping]] = ..., num_left_out: _Optional[int] = ..., sent_s: _Optional[float] = ..., traceparent: _Optional[str] = ...) -> None: ...

class Phase(_message.Message):
    __slots__ = ("name", "start_s", "end_s", "num_tokens", "num_bytes", "peer", "num_drafted", "num_accepted")
    NAME_FIELD_NUMBER: _ClassVar[int]
    START_S_FIELD_NUMBER: _ClassVar[int]
    END_S_FIELD_NUMBER: _ClassVar[int]
    NUM_TOKENS_FIELD_NUMBER: _ClassVar[int]
    NUM_BYTES_FIELD_NUMBER: _ClassVar[int]
    PEER_FIELD_NUMBER: _ClassVar[int]
    NUM_DRAFTED_FIELD_NUMBER: _ClassVar[int]
    NUM_ACCEPTED_FIELD_NUMBER: _ClassVar[int]
    name: str
    start_s: float
    end_s: float
    num_tokens: int
    num_bytes: int
    peer: str
    num_drafted: int
    num_accepted: int
    def __init__(self, name: _Optional[str] = ..., start_s: _Optional[float] = ..., end_s: _Optional[float] = ..., num_tokens: _Optional[int] = ..., num_bytes: _Optional[int] = ..., peer: _Optional[str] = ..., num_drafted: _Optional[int] = ..., num_accepted: _Optional[int] = ...) -> None: ...

class TokenSources(_message.Message):
    __slots__ = ("num_computed", "num_local_cache", "num_remote", "num_recomputed")
    NUM_COMPUTED_FIELD_NUMBER: _ClassVar[int]
    NUM_LOCAL_CACHE_FIELD_NUMBER: _ClassVar[int]
    NUM_REMOTE_FIELD_NUMBER: _ClassVar[int]
    NUM_RECOMPUTED_FIELD_NUMBER: _ClassVar[int]
    num_computed: int
    num_local_cache: int
    num_remote: int
    num_recomputed: int
    def __init__(self, num_computed: _Optional[int] = ..., num_local_cache: _Optional[int] = ..., num_remote: _Optional[int] = ..., num_recomputed: _Optional[int] = ...) -> None: ...

class ControlResult(_message.Message):
    __slots__ = ("control_id", "code", "message", "result_json", "is_asleep", "role", "is_role_fixed", "is_draining", "is_paused", "weights")
    CONTROL_ID_FIELD_NUMBER: _ClassVar[int]
    CODE_FIELD_NUMBER: _ClassVar[int]
    MESSAGE_FIELD_NUMBER: _ClassVar[int]
    RESULT_JSON_FIELD_NUMBER: _ClassVar[int]
    IS_ASLEEP_FIELD_NUMBER: _ClassVar[int]
    ROLE_FIELD_NUMBER: _ClassVar[int]
    IS_ROLE_FIXED_FIELD_NUMBER: _ClassVar[int]
    IS_DRAINING_FIELD_NUMBER: _ClassVar[int]
    IS_PAUSED_FIELD_NUMBER: _ClassVar[int]
    WEIGHTS_FIELD_NUMBER: _ClassVar[int]
    control_id: int
    code: str
    message: str
    result_json: str
    is_asleep: bool
    role: str
    is_role_fixed: bool
    is_draining: bool
    is_paused: bool
    weights: str
    def __init__(self, control_id: _Optional[int] = ..., code: _Optional[str] = ..., message: _Optional[str] = ..., result_json: _Optional[str] = ..., is_asleep: bool = ..., role: _Optional[str] = ..., is_role_fixed: bool = ..., is_draining: bool = ..., is_paused: bool = ..., weights: _Optional[str] = ...) -> None: ...
