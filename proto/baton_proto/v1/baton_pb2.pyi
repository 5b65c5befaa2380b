from google.protobuf.internal import containers as _containers
from google.protobuf import descriptor as _descriptor
from google.protobuf import message as _message
from collections.abc import Iterable as _Iterable, Mapping as _Mapping
from typing import ClassVar as _ClassVar, Optional as _Optional, Union as _Union

DESCRIPTOR: _descriptor.FileDescriptor

class GenerateRequest(_message.Message):
    __slots__ = ("request_id", "text", "token_ids", "chat", "sampling_params", "model", "cache_salt", "priority", "truncate_prompt_tokens", "add_special_tokens", "session_id", "slo_ttft_s", "slo_tpot_s", "resume_token", "num_received_tokens", "received_token_ids", "prompt_embeds", "pooling")
    REQUEST_ID_FIELD_NUMBER: _ClassVar[int]
    TEXT_FIELD_NUMBER: _ClassVar[int]
    TOKEN_IDS_FIELD_NUMBER: _ClassVar[int]
    CHAT_FIELD_NUMBER: _ClassVar[int]
    SAMPLING_PARAMS_FIELD_NUMBER: _ClassVar[int]
    MODEL_FIELD_NUMBER: _ClassVar[int]
    CACHE_SALT_FIELD_NUMBER: _ClassVar[int]
    PRIORITY_FIELD_NUMBER: _ClassVar[int]
    TRUNCATE_PROMPT_TOKENS_FIELD_NUMBER: _ClassVar[int]
    ADD_SPECIAL_TOKENS_FIELD_NUMBER: _ClassVar[int]
    SESSION_ID_FIELD_NUMBER: _ClassVar[int]
    SLO_TTFT_S_FIELD_NUMBER: _ClassVar[int]
    SLO_TPOT_S_FIELD_NUMBER: _ClassVar[int]
    RESUME_TOKEN_FIELD_NUMBER: _ClassVar[int]
    NUM_RECEIVED_TOKENS_FIELD_NUMBER: _ClassVar[int]
    RECEIVED_TOKEN_IDS_FIELD_NUMBER: _ClassVar[int]
    PROMPT_EMBEDS_FIELD_NUMBER: _ClassVar[int]
    POOLING_FIELD_NUMBER: _ClassVar[int]
    request_id: str
    text: str
    token_ids: TokenIds
    chat: Chat
    sampling_params: SamplingParams
    model: str
    cache_salt: str
    priority: int
    truncate_prompt_tokens: int
    add_special_tokens: bool
    session_id: str
    slo_ttft_s: float
    slo_tpot_s: float
    resume_token: str
    num_received_tokens: _containers.RepeatedScalarFieldContainer[int]
    received_token_ids: _containers.RepeatedCompositeFieldContainer[ReceivedTokens]
    prompt_embeds: _containers.RepeatedCompositeFieldContainer[PromptEmbeds]
    pooling: PoolingParams
    def __init__(self, request_id: _Optional[str] = ..., text: _Optional[str] = ..., token_ids: _Optional[_Union[TokenIds, _Mapping]] = ..., chat: _Optional[_Union[Chat, _Mapping]] = ..., sampling_params: _Optional[_Union[SamplingParams, _Mapping]] = ..., model: _Optional[str] = ..., cache_salt: _Optional[str] = ..., priority: _Optional[int] = ..., truncate_prompt_tokens: _Optional[int] = ..., add_special_tokens: bool = ..., session_id: _Optional[str] = ..., slo_ttft_s: _Optional[float] = ..., slo_tpot_s: _Optional[float] = ..., resume_token: _Optional[str] = ..., num_received_tokens: _Optional[_Iterable[int]] = ..., received_token_ids: _Optional[_Iterable[_Union[ReceivedTokens, _Mapping]]] = ..., prompt_embeds: _Optional[_Iterable[_Union[PromptEmbeds, _Mapping]]] = ..., pooling: _Optional[_Union[PoolingParams, _Mapping]] = ...) -> None: ...

class PoolingParams(_message.Message):
    __slots__ = ("task", "dimensions", "use_activation", "second_text", "type_one_from", "truncation_side")
    TASK_FIELD_NUMBER: _ClassVar[int]
    DIMENSIONS_FIELD_NUMBER: _ClassVar[int]
    USE_ACTIVATION_FIELD_NUMBER: _ClassVar[int]
    SECOND_TEXT_FIELD_NUMBER: _ClassVar[int]
    TYPE_ONE_FROM_FIELD_NUMBER: _ClassVar[int]
    TRUNCATION_SIDE_FIELD_NUMBER: _ClassVar[int]
    task: str
    dimensions: int
    use_activation: bool
    second_text: str
    type_one_from: int
    truncation_side: str
    def __init__(self, task: _Optional[str] = ..., dimensions: _Optional[int] = ..., use_activation: bool = ..., second_text: _Optional[str] = ..., type_one_from: _Optional[int] = ..., truncation_side: _Optional[str] = ...) -> None: ...

class PromptEmbeds(_message.Message):
    __slots__ = ("start", "hidden_size", "dtype", "data")
    START_FIELD_NUMBER: _ClassVar[int]
    HIDDEN_SIZE_FIELD_NUMBER: _ClassVar[int]
    DTYPE_FIELD_NUMBER: _ClassVar[int]
    DATA_FIELD_NUMBER: _ClassVar[int]
    start: int
    hidden_size: int
    dtype: str
    data: bytes
    def __init__(self, start: _Optional[int] = ..., hidden_size: _Optional[int] = ..., dtype: _Optional[str] = ..., data: _Optional[bytes] = ...) -> None: ...

class ReceivedTokens(_message.Message):
    __slots__ = ("ids", "is_finished")
    IDS_FIELD_NUMBER: _ClassVar[int]
    IS_FINISHED_FIELD_NUMBER: _ClassVar[int]
    ids: _containers.RepeatedScalarFieldContainer[int]
    is_finished: bool
    def __init__(self, ids: _Optional[_Iterable[int]] = ..., is_finished: bool = ...) -> None: ...

class TokenIds(_message.Message):
    __slots__ = ("ids",)
    IDS_FIELD_NUMBER: _ClassVar[int]
    ids: _containers.RepeatedScalarFieldContainer[int]
    def __init__(self, ids: _Optional[_Iterable[int]] = ...) -> None: ...

class Chat(_message.Message):
    __slots__ = ("messages",)
    MESSAGES_FIELD_NUMBER: _ClassVar[int]
    messages: _containers.RepeatedCompositeFieldContainer[ChatMessage]
    def __init__(self, messages: _Optional[_Iterable[_Union[ChatMessage, _Mapping]]] = ...) -> None: ...

class ChatMessage(_message.Message):
    __slots__ = ("role", "content")
    ROLE_FIELD_NUMBER: _ClassVar[int]
    CONTENT_FIELD_NUMBER: _ClassVar[int]
    role: str
    content: str
    def __init__(self, role: _Optional[str] = ..., content: _Optional[str] = ...) -> None: ...

class SamplingParams(_message.Message):
    __slots__ = ("n", "temperature", "top_p", "top_k", "min_p", "seed", "stop", "stop_token_ids", "ignore_eos", "max_tokens", "include_stop_str_in_output", "skip_special_tokens", "presence_penalty", "frequency_penalty", "repetition_penalty", "min_tokens", "logprobs", "prompt_logprobs", "logprob_token_ids", "detokenize", "spaces_between_special_tokens", "logit_bias", "allowed_token_ids", "bad_words", "structured_outputs", "repetition_detection", "thinking_token_budget", "logits_processors", "extra_args_json", "skip_reading_prefix_cache", "stream_interval")
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
    STOP_FIELD_NUMBER: _ClassVar[int]
    STOP_TOKEN_IDS_FIELD_NUMBER: _ClassVar[int]
    IGNORE_EOS_FIELD_NUMBER: _ClassVar[int]
    MAX_TOKENS_FIELD_NUMBER: _ClassVar[int]
    INCLUDE_STOP_STR_IN_OUTPUT_FIELD_NUMBER: _ClassVar[int]
    SKIP_SPECIAL_TOKENS_FIELD_NUMBER: _ClassVar[int]
    PRESENCE_PENALTY_FIELD_NUMBER: _ClassVar[int]
    FREQUENCY_PENALTY_FIELD_NUMBER: _ClassVar[int]
    REPETITION_PENALTY_FIELD_NUMBER: _ClassVar[int]
    MIN_TOKENS_FIELD_NUMBER: _ClassVar[int]
    LOGPROBS_FIELD_NUMBER: _ClassVar[int]
    PROMPT_LOGPROBS_FIELD_NUMBER: _ClassVar[int]
    LOGPROB_TOKEN_IDS_FIELD_NUMBER: _ClassVar[int]
    DETOKENIZE_FIELD_NUMBER: _ClassVar[int]
    SPACES_BETWEEN_SPECIAL_TOKENS_FIELD_NUMBER: _ClassVar[int]
    LOGIT_BIAS_FIELD_NUMBER: _ClassVar[int]
    ALLOWED_TOKEN_IDS_FIELD_NUMBER: _ClassVar[int]
    BAD_WORDS_FIELD_NUMBER: _ClassVar[int]
    STRUCTURED_OUTPUTS_FIELD_NUMBER: _ClassVar[int]
    REPETITION_DETECTION_FIELD_NUMBER: _ClassVar[int]
    THINKING_TOKEN_BUDGET_FIELD_NUMBER: _ClassVar[int]
    LOGITS_PROCESSORS_FIELD_NUMBER: _ClassVar[int]
    EXTRA_ARGS_JSON_FIELD_NUMBER: _ClassVar[int]
    SKIP_READING_PREFIX_CACHE_FIELD_NUMBER: _ClassVar[int]
    STREAM_INTERVAL_FIELD_NUMBER: _ClassVar[int]
    n: int
    temperature: float
    top_p: float
    top_k: int
    min_p: float
    seed: int
    stop: _containers.RepeatedScalarFieldContainer[str]
    stop_token_ids: _containers.RepeatedScalarFieldContainer[int]
    ignore_eos: bool
    max_tokens: int
    include_stop_str_in_output: bool
    skip_special_tokens: bool
    presence_penalty: float
    frequency_penalty: float
    repetition_penalty: float
    min_tokens: int
    logprobs: int
    prompt_logprobs: int
    logprob_token_ids: _containers.RepeatedScalarFieldContainer[int]
    detokenize: bool
    spaces_between_special_tokens: bool
    logit_bias: _containers.ScalarMap[int, float]
    allowed_token_ids: _containers.RepeatedScalarFieldContainer[int]
    bad_words: _containers.RepeatedScalarFieldContainer[str]
    structured_outputs: StructuredOutputs
    repetition_detection: RepetitionDetection
    thinking_token_budget: int
    logits_processors: _containers.RepeatedScalarFieldContainer[str]
    extra_args_json: str
    skip_reading_prefix_cache: bool
    stream_interval: int
    def __init__(self, n: _Optional[int] = ..., temperature: _Optional[float] = ..., top_p: _Optional[float] = ..., top_k: _Optional[int] = ..., min_p: _Optional[float] = ..., seed: _Optional[int] = ..., stop: _Optional[_Iterable[str]] = ..., stop_token_ids: _Optional[_Iterable[int]] = ..., ignore_eos: bool = ..., max_tokens: _Optional[int] = ..., include_stop_str_in_output: bool = ..., skip_special_tokens: bool = ..., presence_penalty: _Optional[float] = ..., frequency_penalty: _Optional[float] = ..., repetition_penalty: _Optional[float] = ..., min_tokens: _Optional[int] = ..., logprobs: _Optional[int] = ..., prompt_logprobs: _Optional[int] = ..., logprob_token_ids: _Optional[_Iterable[int]] = ..., detokenize: bool = ..., spaces_between_special_tokens: bool = ..., logit_bias: _Optional[_Mapping[int, float]] = ..., allowed_token_ids: _Optional[_Iterable[int]] = ..., bad_words: _Optional[_Iterable[str]] = ..., structured_outputs: _Optional[_Union[StructuredOutputs, _Mapping]] = ..., repetition_detection: _Optional[_Union[RepetitionDetection, _Mapping]] = ..., thinking_token_budget: _Optional[int] = ..., logits_processors: _Optional[_Iterable[str]] = ..., extra_args_json: _Optional[str] = ..., skip_reading_prefix_cache: bool = ..., stream_interval: _Optional[int] = ...) -> None: ...

class StructuredOutputs(_message.Message):
    __slots__ = ("json", "regex", "choice", "grammar", "json_object", "structural_tag", "disable_any_whitespace")
    class Choices(_message.Message):
        __slots__ = ("choices",)
        CHOICES_FIELD_NUMBER: _ClassVar[int]
        choices: _containers.RepeatedScalarFieldContainer[str]
        def __init__(self, choices: _Optional[_Iterable[str]] = ...) -> None: ...
    JSON_FIELD_NUMBER: _ClassVar[int]
    REGEX_FIELD_NUMBER: _ClassVar[int]
    CHOICE_FIELD_NUMBER: _ClassVar[int]
    GRAMMAR_FIELD_NUMBER: _ClassVar[int]
    JSON_OBJECT_FIELD_NUMBER: _ClassVar[int]
    STRUCTURAL_TAG_FIELD_NUMBER: _ClassVar[int]
    DISABLE_ANY_WHITESPACE_FIELD_NUMBER: _ClassVar[int]
    json: str
    regex: str
    choice: StructuredOutputs.Choices
    grammar: str
    json_object: bool
    structural_tag: str
    disable_any_whitespace: bool
    def __init__(self, json: _Optional[str] = ..., regex: _Optional[str] = ..., choice: _Optional[_Union[StructuredOutputs.Choices, _Mapping]] = ..., grammar: _Optional[str] = ..., json_object: bool = ..., structural_tag: _Optional[str] = ..., disable_any_whitespace: bool = ...) -> None: ...

class RepetitionDetection(_message.Message):
    __slots__ = ("max_pattern_size", "min_pattern_size", "min_count")
    MAX_PATTERN_SIZE_FIELD_NUMBER: _ClassVar[int]
    MIN_PATTERN_SIZE_FIELD_NUMBER: _ClassVar[int]
    MIN_COUNT_FIELD_NUMBER: _ClassVar[int]
    max_pattern_size: int
    min_pattern_size: int
    min_count: int
    def __init__(self, max_pattern_size: _Optional[int] = ..., min_pattern_size: _Optional[int] = ..., min_count: _Optional[int] = ...) -> None: ...

class GenerateEvent(_message.Message):
    __slots__ = ("tokens", "finished", "prompt_logprobs", "pooled", "resume_token")
    TOKENS_FIELD_NUMBER: _ClassVar[int]
    FINISHED_FIELD_NUMBER: _ClassVar[int]
    PROMPT_LOGPROBS_FIELD_NUMBER: _ClassVar[int]
    POOLED_FIELD_NUMBER: _ClassVar[int]
    RESUME_TOKEN_FIELD_NUMBER: _ClassVar[int]
    tokens: TokensEvent
    finished: FinishedEvent
    prompt_logprobs: PromptLogprobsEvent
    pooled: PooledEvent
    resume_token: str
    def __init__(self, tokens: _Optional[_Union[TokensEvent, _Mapping]] = ..., finished: _Optional[_Union[FinishedEvent, _Mapping]] = ..., prompt_logprobs: _Optional[_Union[PromptLogprobsEvent, _Mapping]] = ..., pooled: _Optional[_Union[PooledEvent, _Mapping]] = ..., resume_token: _Optional[str] = ...) -> None: ...

class PooledEvent(_message.Message):
    __slots__ = ("shape", "values")
    SHAPE_FIELD_NUMBER: _ClassVar[int]
    VALUES_FIELD_NUMBER: _ClassVar[int]
    shape: _containers.RepeatedScalarFieldContainer[int]
    values: bytes
    def __init__(self, shape: _Optional[_Iterable[int]] = ..., values: _Optional[bytes] = ...) -> None: ...

class PromptLogprobsEvent(_message.Message):
    __slots__ = ("start", "entries")
    START_FIELD_NUMBER: _ClassVar[int]
    ENTRIES_FIELD_NUMBER: _ClassVar[int]
    start: int
    entries: _containers.RepeatedCompositeFieldContainer[PositionLogprobs]
    def __init__(self, start: _Optional[int] = ..., entries: _Optional[_Iterable[_Union[PositionLogprobs, _Mapping]]] = ...) -> None: ...

class PositionLogprobs(_message.Message):
    __slots__ = ("token_ids", "logprobs", "ranks")
    TOKEN_IDS_FIELD_NUMBER: _ClassVar[int]
    LOGPROBS_FIELD_NUMBER: _ClassVar[int]
    RANKS_FIELD_NUMBER: _ClassVar[int]
    token_ids: _containers.RepeatedScalarFieldContainer[int]
    logprobs: _containers.RepeatedScalarFieldContainer[float]
    ranks: _containers.RepeatedScalarFieldContainer[int]
    def __init__(self, token_ids: _Optional[_Iterable[int]] = ..., logprobs: _Optional[_Iterable[float]] = ..., ranks: _Optional[_Iterable[int]] = ...) -> None: ...

class TokensEvent(_message.Message):
    __slots__ = ("index", "text", "token_ids", "finish_reason", "stop_text", "stop_token_id", "logprobs", "cached_tokens")
    INDEX_FIELD_NUMBER: _ClassVar[int]
    TEXT_FIELD_NUMBER: _ClassVar[int]
    TOKEN_IDS_FIELD_NUMBER: _ClassVar[int]
    FINISH_REASON_FIELD_NUMBER: _ClassVar[int]
    STOP_TEXT_FIELD_NUMBER: _ClassVar[int]
    STOP_TOKEN_ID_FIELD_NUMBER: _ClassVar[int]
    LOGPROBS_FIELD_NUMBER: _ClassVar[int]
    CACHED_TOKENS_FIELD_NUMBER: _ClassVar[int]
    index: int
    text: str
    token_ids: _containers.RepeatedScalarFieldContainer[int]
    finish_reason: str
    stop_text: str
    stop_token_id: int
    logprobs: _containers.RepeatedCompositeFieldContainer[PositionLogprobs]
    cached_tokens: int
    def __init__(self, index: _Optional[int] = ..., text: _Optional[str] = ..., token_ids: _Optional[_Iterable[int]] = ..., finish_reason: _Optional[str] = ..., stop_text: _Optional[str] = ..., stop_token_id: _Optional[int] = ..., logprobs: _Optional[_Iterable[_Union[PositionLogprobs, _Mapping]]] = ..., cached_tokens: _Optional[int] = ...) -> None: ...

class FinishedEvent(_message.Message):
    __slots__ = ("usage", "timings", "seed", "request_id")
    USAGE_FIELD_NUMBER: _ClassVar[int]
    TIMINGS_FIELD_NUMBER: _ClassVar[int]
    SEED_FIELD_NUMBER: _ClassVar[int]
    REQUEST_ID_FIELD_NUMBER: _ClassVar[int]
    usage: Usage
    timings: Timings
    seed: int
    request_id: str
    def __init__(self, usage: _Optional[_Union[Usage, _Mapping]] = ..., timings: _Optional[_Union[Timings, _Mapping]] = ..., seed: _Optional[int] = ..., request_id: _Optional[str] = ...) -> None: ...

class Usage(_message.Message):
    __slots__ = ("prompt_tokens", "completion_tokens", "cached_tokens")
    PROMPT_TOKENS_FIELD_NUMBER: _ClassVar[int]
    COMPLETION_TOKENS_FIELD_NUMBER: _ClassVar[int]
    CACHED_TOKENS_FIELD_NUMBER: _ClassVar[int]
    prompt_tokens: int
    completion_tokens: int
    cached_tokens: int
    def __init__(self, prompt_tokens: _Optional[int] = ..., completion_tokens: _Optional[int] = ..., cached_tokens: _Optional[int] = ...) -> None: ...

class Timings(_message.Message):
    __slots__ = ("queue_s", "prefill_s", "transfer_s", "first_token_s", "total_s", "per_token_s", "transferred_bytes", "prefill_worker", "decode_worker")
    QUEUE_S_FIELD_NUMBER: _ClassVar[int]
    PREFILL_S_FIELD_NUMBER: _ClassVar[int]
    TRANSFER_S_FIELD_NUMBER: _ClassVar[int]
    FIRST_TOKEN_S_FIELD_NUMBER: _ClassVar[int]
    TOTAL_S_FIELD_NUMBER: _ClassVar[int]
    PER_TOKEN_S_FIELD_NUMBER: _ClassVar[int]
    TRANSFERRED_BYTES_FIELD_NUMBER: _ClassVar[int]
    PREFILL_WORKER_FIELD_NUMBER: _ClassVar[int]
    DECODE_WORKER_FIELD_NUMBER: _ClassVar[int]
    queue_s: float
    prefill_s: float
    transfer_s: float
    first_token_s: float
    total_s: float
    per_token_s: float
    transferred_bytes: int
    prefill_worker: str
    decode_worker: str
    def __init__(self, queue_s: _Optional[float] = ..., prefill_s: _Optional[float] = ..., transfer_s: _Optional[float] = ..., first_token_s: _Optional[float] = ..., total_s: _Optional[float] = ..., per_token_s: _Optional[float] = ..., transferred_bytes: _Optional[int] = ..., prefill_worker: _Optional[str] = ..., decode_worker: _Optional[str] = ...) -> None: ...

class TokenizeRequest(_message.Message):
    __slots__ = ("model", "text", "chat", "add_special_tokens", "add_generation_prompt")
    MODEL_FIELD_NUMBER: _ClassVar[int]
    TEXT_FIELD_NUMBER: _ClassVar[int]
    CHAT_FIELD_NUMBER: _ClassVar[int]
    ADD_SPECIAL_TOKENS_FIELD_NUMBER: _ClassVar[int]
    ADD_GENERATION_PROMPT_FIELD_NUMBER: _ClassVar[int]
    model: str
    text: str
    chat: Chat
    add_special_tokens: bool
    add_generation_prompt: bool
    def __init__(self, model: _Optional[str] = ..., text: _Optional[str] = ..., chat: _Optional[_Union[Chat, _Mapping]] = ..., add_special_tokens: bool = ..., add_generation_prompt: bool = ...) -> None: ...

class TokenizeResponse(_message.Message):
    __slots__ = ("token_ids", "count", "max_model_len")
    TOKEN_IDS_FIELD_NUMBER: _ClassVar[int]
    COUNT_FIELD_NUMBER: _ClassVar[int]
    MAX_MODEL_LEN_FIELD_NUMBER: _ClassVar[int]
    token_ids: _containers.RepeatedScalarFieldContainer[int]
    count: int
    max_model_len: int
    def __init__(self, token_ids: _Optional[_Iterable[int]] = ..., count: _Optional[int] = ..., max_model_len: _Optional[int] = ...) -> None: ...

class DetokenizeRequest(_message.Message):
    __slots__ = ("model", "token_ids", "skip_special_tokens")
    MODEL_FIELD_NUMBER: _ClassVar[int]
    TOKEN_IDS_FIELD_NUMBER: _ClassVar[int]
    SKIP_SPECIAL_TOKENS_FIELD_NUMBER: _ClassVar[int]
    model: str
    token_ids: _containers.RepeatedScalarFieldContainer[int]
    skip_special_tokens: bool
    def __init__(self, model: _Optional[str] = ..., token_ids: _Optional[_Iterable[int]] = ..., skip_special_tokens: bool = ...) -> None: ...

class DetokenizeResponse(_message.Message):
    __slots__ = ("text", "count")
    TEXT_FIELD_NUMBER: _ClassVar[int]
    COUNT_FIELD_NUMBER: _ClassVar[int]
    text: str
    count: int
    def __init__(self, text: _Optional[str] = ..., count: _Optional[int] = ...) -> None: ...

class GetModelInfoRequest(_message.Message):
    __slots__ = ()
    def __init__(self) -> None: ...

class ModelInfo(_message.Message):
    __slots__ = ("model", "max_model_len", "vocab_size", "is_ready", "workers", "model_names", "has_chat_template", "pooling")
    class Worker(_message.Message):
        __slots__ = ("worker_id", "role", "num_blocks", "num_available_blocks", "num_running", "num_waiting", "is_draining", "is_asleep", "is_role_fixed", "num_queued_tokens", "prefill_tokens_per_s", "decode_step_s", "pull_bytes_per_s", "is_paused", "fault", "block_residency", "work")
        WORKER_ID_FIELD_NUMBER: _ClassVar[int]
        ROLE_FIELD_NUMBER: _ClassVar[int]
        NUM_BLOCKS_FIELD_NUMBER: _ClassVar[int]
        NUM_AVAILABLE_BLOCKS_FIELD_NUMBER: _ClassVar[int]
        NUM_RUNNING_FIELD_NUMBER: _ClassVar[int]
        NUM_WAITING_FIELD_NUMBER: _ClassVar[int]
        IS_DRAINING_FIELD_NUMBER: _ClassVar[int]
        IS_ASLEEP_FIELD_NUMBER: _ClassVar[int]
        IS_ROLE_FIXED_FIELD_NUMBER: _ClassVar[int]
        NUM_QUEUED_TOKENS_FIELD_NUMBER: _ClassVar[int]
        PREFILL_TOKENS_PER_S_FIELD_NUMBER: _ClassVar[int]
        DECODE_STEP_S_FIELD_NUMBER: _ClassVar[int]
        PULL_BYTES_PER_S_FIELD_NUMBER: _ClassVar[int]
        IS_PAUSED_FIELD_NUMBER: _ClassVar[int]
        FAULT_FIELD_NUMBER: _ClassVar[int]
        BLOCK_RESIDENCY_FIELD_NUMBER: _ClassVar[int]
        WORK_FIELD_NUMBER: _ClassVar[int]
        worker_id: str
        role: str
        num_blocks: int
        num_available_blocks: int
        num_running: int
        num_waiting: int
        is_draining: bool
        is_asleep: bool
        is_role_fixed: bool
        num_queued_tokens: int
        prefill_tokens_per_s: float
        decode_step_s: float
        pull_bytes_per_s: float
        is_paused: bool
        fault: str
        block_residency: _containers.RepeatedCompositeFieldContainer[BucketCounts]
        work: Work
        def __init__(self, worker_id: _Optional[str] = ..., role: _Optional[str] = ..., num_blocks: _Optional[int] = ..., num_available_blocks: _Optional[int] = ..., num_running: _Optional[int] = ..., num_waiting: _Optional[int] = ..., is_draining: bool = ..., is_asleep: bool = ..., is_role_fixed: bool = ..., num_queued_tokens: _Optional[int] = ..., prefill_tokens_per_s: _Optional[float] = ..., decode_step_s: _Optional[float] = ..., pull_bytes_per_s: _Optional[float] = ..., is_paused: bool = ..., fault: _Optional[str] = ..., block_residency: _Optional[_Iterable[_Union[BucketCounts, _Mapping]]] = ..., work: _Optional[_Union[Work, _Mapping]] = ...) -> None: ...
    MODEL_FIELD_NUMBER: _ClassVar[int]
    MAX_MODEL_LEN_FIELD_NUMBER: _ClassVar[int]
    VOCAB_SIZE_FIELD_NUMBER: _ClassVar[int]
    IS_READY_FIELD_NUMBER: _ClassVar[int]
    WORKERS_FIELD_NUMBER: _ClassVar[int]
    MODEL_NAMES_FIELD_NUMBER: _ClassVar[int]
    HAS_CHAT_TEMPLATE_FIELD_NUMBER: _ClassVar[int]
    POOLING_FIELD_NUMBER: _ClassVar[int]
    model: str
    max_model_len: int
    vocab_size: int
    is_ready: bool
    workers: _containers.RepeatedCompositeFieldContainer[ModelInfo.Worker]
    model_names: _containers.RepeatedScalarFieldContainer[str]
    has_chat_template: bool
    pooling: str
    def __init__(self, model: _Optional[str] = ..., max_model_len: _Optional[int] = ..., vocab_size: _Optional[int] = ..., is_ready: bool = ..., workers: _Optional[_Iterable[_Union[ModelInfo.Worker, _Mapping]]] = ..., model_names: _Optional[_Iterable[str]] = ..., has_chat_template: bool = ..., pooling: _Optional[str] = ...) -> None: ...

class Work(_message.Message):
    __slots__ = ("flops", "read_bytes", "written_bytes")
    FLOPS_FIELD_NUMBER: _ClassVar[int]
    READ_BYTES_FIELD_NUMBER: _ClassVar[int]
    WRITTEN_BYTES_FIELD_NUMBER: _ClassVar[int]
    flops: float
    read_bytes: float
    written_bytes: float
    def __init__(self, flops: _Optional[float] = ..., read_bytes: _Optional[float] = ..., written_bytes: _Optional[float] = ...) -> None: ...

class BucketCounts(_message.Message):
    __slots__ = ("counts", "total")
    COUNTS_FIELD_NUMBER: _ClassVar[int]
    TOTAL_FIELD_NUMBER: _ClassVar[int]
    counts: _containers.RepeatedScalarFieldContainer[int]
    total: float
    def __init__(self, counts: _Optional[_Iterable[int]] = ..., total: _Optional[float] = ...) -> None: ...

class ControlRequest(_message.Message):
    __slots__ = ("action", "argument_json", "timeout_s", "worker_ids")
    ACTION_FIELD_NUMBER: _ClassVar[int]
    ARGUMENT_JSON_FIELD_NUMBER: _ClassVar[int]
    TIMEOUT_S_FIELD_NUMBER: _ClassVar[int]
    WORKER_IDS_FIELD_NUMBER: _ClassVar[int]
    action: str
    argument_json: str
    timeout_s: float
    worker_ids: _containers.RepeatedScalarFieldContainer[str]
    def __init__(self, action: _Optional[str] = ..., argument_json: _Optional[str] = ..., timeout_s: _Optional[float] = ..., worker_ids: _Optional[_Iterable[str]] = ...) -> None: ...

class ControlResponse(_message.Message):
    __slots__ = ("results",)
    class WorkerResult(_message.Message):
        __slots__ = ("worker_id", "result_json", "error_code", "message")
        WORKER_ID_FIELD_NUMBER: _ClassVar[int]
        RESULT_JSON_FIELD_NUMBER: _ClassVar[int]
        ERROR_CODE_FIELD_NUMBER: _ClassVar[int]
        MESSAGE_FIELD_NUMBER: _ClassVar[int]
        worker_id: str
        result_json: str
        error_code: str
        message: str
        def __init__(self, worker_id: _Optional[str] = ..., result_json: _Optional[str] = ..., error_code: _Optional[str] = ..., message: _Optional[str] = ...) -> None: ...
    RESULTS_FIELD_NUMBER: _ClassVar[int]
    results: _containers.RepeatedCompositeFieldContainer[ControlResponse.WorkerResult]
    def __init__(self, results: _Optional[_Iterable[_Union[ControlResponse.WorkerResult, _Mapping]]] = ...) -> None: ...
