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
    __slots__ = ("welcome", "rejected", "heartbeat", "data")
    WELCOME_FIELD_NUMBER: _ClassVar[int]
    REJECTED_FIELD_NUMBER: _ClassVar[int]
    HEARTBEAT_FIELD_NUMBER: _ClassVar[int]
    DATA_FIELD_NUMBER: _ClassVar[int]
    welcome: Welcome
    rejected: Rejected
    heartbeat: RouterHeartbeat
    data: RouterData
    def __init__(self, welcome: _Optional[_Union[Welcome, _Mapping]] = ..., rejected: _Optional[_Union[Rejected, _Mapping]] = ..., heartbeat: _Optional[_Union[RouterHeartbeat, _Mapping]] = ..., data: _Optional[_Union[RouterData, _Mapping]] = ...) -> None: ...

class Hello(_message.Message):
    __slots__ = ("worker_id", "epoch", "role", "identity", "max_model_len", "vocab_size", "num_blocks", "max_num_seqs", "peer_address", "kv_description", "router_epoch", "received")
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
    def __init__(self, worker_id: _Optional[str] = ..., epoch: _Optional[int] = ..., role: _Optional[str] = ..., identity: _Optional[_Union[Identity, _Mapping]] = ..., max_model_len: _Optional[int] = ..., vocab_size: _Optional[int] = ..., num_blocks: _Optional[int] = ..., max_num_seqs: _Optional[int] = ..., peer_address: _Optional[str] = ..., kv_description: _Optional[bytes] = ..., router_epoch: _Optional[int] = ..., received: _Optional[int] = ...) -> None: ...

class Identity(_message.Message):
    __slots__ = ("model", "dtype", "kv_layout", "block_size", "transport", "protocol_version", "kv_windows")
    MODEL_FIELD_NUMBER: _ClassVar[int]
    DTYPE_FIELD_NUMBER: _ClassVar[int]
    KV_LAYOUT_FIELD_NUMBER: _ClassVar[int]
    BLOCK_SIZE_FIELD_NUMBER: _ClassVar[int]
    TRANSPORT_FIELD_NUMBER: _ClassVar[int]
    PROTOCOL_VERSION_FIELD_NUMBER: _ClassVar[int]
    KV_WINDOWS_FIELD_NUMBER: _ClassVar[int]
    model: str
    dtype: str
    kv_layout: str
    block_size: int
    transport: str
    protocol_version: int
    kv_windows: _containers.RepeatedScalarFieldContainer[int]
    def __init__(self, model: _Optional[str] = ..., dtype: _Optional[str] = ..., kv_layout: _Optional[str] = ..., block_size: _Optional[int] = ..., transport: _Optional[str] = ..., protocol_version: _Optional[int] = ..., kv_windows: _Optional[_Iterable[int]] = ...) -> None: ...

class Welcome(_message.Message):
    __slots__ = ("router_id", "epoch", "received")
    ROUTER_ID_FIELD_NUMBER: _ClassVar[int]
    EPOCH_FIELD_NUMBER: _ClassVar[int]
    RECEIVED_FIELD_NUMBER: _ClassVar[int]
    router_id: str
    epoch: int
    received: int
    def __init__(self, router_id: _Optional[str] = ..., epoch: _Optional[int] = ..., received: _Optional[int] = ...) -> None: ...

class Rejected(_message.Message):
    __slots__ = ("code", "message")
    CODE_FIELD_NUMBER: _ClassVar[int]
    MESSAGE_FIELD_NUMBER: _ClassVar[int]
    code: str
    message: str
    def __init__(self, code: _Optional[str] = ..., message: _Optional[str] = ...) -> None: ...

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
    __slots__ = ("num_running", "num_waiting", "num_queued_tokens", "num_available_blocks", "step_age_s")
    NUM_RUNNING_FIELD_NUMBER: _ClassVar[int]
    NUM_WAITING_FIELD_NUMBER: _ClassVar[int]
    NUM_QUEUED_TOKENS_FIELD_NUMBER: _ClassVar[int]
    NUM_AVAILABLE_BLOCKS_FIELD_NUMBER: _ClassVar[int]
    STEP_AGE_S_FIELD_NUMBER: _ClassVar[int]
    num_running: int
    num_waiting: int
    num_queued_tokens: int
    num_available_blocks: int
    step_age_s: float
    def __init__(self, num_running: _Optional[int] = ..., num_waiting: _Optional[int] = ..., num_queued_tokens: _Optional[int] = ..., num_available_blocks: _Optional[int] = ..., step_age_s: _Optional[float] = ...) -> None: ...

class RouterHeartbeat(_message.Message):
    __slots__ = ("sent", "received")
    SENT_FIELD_NUMBER: _ClassVar[int]
    RECEIVED_FIELD_NUMBER: _ClassVar[int]
    sent: int
    received: int
    def __init__(self, sent: _Optional[int] = ..., received: _Optional[int] = ...) -> None: ...

class RouterData(_message.Message):
    __slots__ = ("number", "generate", "prefill", "reserve", "start", "cancel")
    NUMBER_FIELD_NUMBER: _ClassVar[int]
    GENERATE_FIELD_NUMBER: _ClassVar[int]
    PREFILL_FIELD_NUMBER: _ClassVar[int]
    RESERVE_FIELD_NUMBER: _ClassVar[int]
    START_FIELD_NUMBER: _ClassVar[int]
    CANCEL_FIELD_NUMBER: _ClassVar[int]
    number: int
    generate: Generate
    prefill: Prefill
    reserve: Reserve
    start: Start
    cancel: Cancel
    def __init__(self, number: _Optional[int] = ..., generate: _Optional[_Union[Generate, _Mapping]] = ..., prefill: _Optional[_Union[Prefill, _Mapping]] = ..., reserve: _Optional[_Union[Reserve, _Mapping]] = ..., start: _Optional[_Union[Start, _Mapping]] = ..., cancel: _Optional[_Union[Cancel, _Mapping]] = ...) -> None: ...

class WorkerData(_message.Message):
    __slots__ = ("number", "reserved", "refused", "first_token", "token_batch", "transferred", "failed", "cache_delta")
    NUMBER_FIELD_NUMBER: _ClassVar[int]
    RESERVED_FIELD_NUMBER: _ClassVar[int]
    REFUSED_FIELD_NUMBER: _ClassVar[int]
    FIRST_TOKEN_FIELD_NUMBER: _ClassVar[int]
    TOKEN_BATCH_FIELD_NUMBER: _ClassVar[int]
    TRANSFERRED_FIELD_NUMBER: _ClassVar[int]
    FAILED_FIELD_NUMBER: _ClassVar[int]
    CACHE_DELTA_FIELD_NUMBER: _ClassVar[int]
    number: int
    reserved: Reserved
    refused: Refused
    first_token: FirstToken
    token_batch: TokenBatch
    transferred: Transferred
    failed: Failed
    cache_delta: CacheDelta
    def __init__(self, number: _Optional[int] = ..., reserved: _Optional[_Union[Reserved, _Mapping]] = ..., refused: _Optional[_Union[Refused, _Mapping]] = ..., first_token: _Optional[_Union[FirstToken, _Mapping]] = ..., token_batch: _Optional[_Union[TokenBatch, _Mapping]] = ..., transferred: _Optional[_Union[Transferred, _Mapping]] = ..., failed: _Optional[_Union[Failed, _Mapping]] = ..., cache_delta: _Optional[_Union[CacheDelta, _Mapping]] = ...) -> None: ...

class RequestSpec(_message.Message):
    __slots__ = ("request_id", "prompt_token_ids", "sampling", "cache_salt", "priority")
    REQUEST_ID_FIELD_NUMBER: _ClassVar[int]
    PROMPT_TOKEN_IDS_FIELD_NUMBER: _ClassVar[int]
    SAMPLING_FIELD_NUMBER: _ClassVar[int]
    CACHE_SALT_FIELD_NUMBER: _ClassVar[int]
    PRIORITY_FIELD_NUMBER: _ClassVar[int]
    request_id: str
    prompt_token_ids: _containers.RepeatedScalarFieldContainer[int]
    sampling: Sampling
    cache_salt: str
    priority: int
    def __init__(self, request_id: _Optional[str] = ..., prompt_token_ids: _Optional[_Iterable[int]] = ..., sampling: _Optional[_Union[Sampling, _Mapping]] = ..., cache_salt: _Optional[str] = ..., priority: _Optional[int] = ...) -> None: ...

class Sampling(_message.Message):
    __slots__ = ("n", "temperature", "top_p", "top_k", "min_p", "seed", "stop_token_ids", "ignore_eos", "max_tokens")
    N_FIELD_NUMBER: _ClassVar[int]
    TEMPERATURE_FIELD_NUMBER: _ClassVar[int]
    TOP_P_FIELD_NUMBER: _ClassVar[int]
    TOP_K_FIELD_NUMBER: _ClassVar[int]
    MIN_P_FIELD_NUMBER: _ClassVar[int]
    SEED_FIELD_NUMBER: _ClassVar[int]
    STOP_TOKEN_IDS_FIELD_NUMBER: _ClassVar[int]
    IGNORE_EOS_FIELD_NUMBER: _ClassVar[int]
    MAX_TOKENS_FIELD_NUMBER: _ClassVar[int]
    n: int
    temperature: float
    top_p: float
    top_k: int
    min_p: float
    seed: int
    stop_token_ids: _containers.RepeatedScalarFieldContainer[int]
    ignore_eos: bool
    max_tokens: int
    def __init__(self, n: _Optional[int] = ..., temperature: _Optional[float] = ..., top_p: _Optional[float] = ..., top_k: _Optional[int] = ..., min_p: _Optional[float] = ..., seed: _Optional[int] = ..., stop_token_ids: _Optional[_Iterable[int]] = ..., ignore_eos: bool = ..., max_tokens: _Optional[int] = ...) -> None: ...

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
    __slots__ = ("request_id", "index", "token_ids", "finish_reason")
    REQUEST_ID_FIELD_NUMBER: _ClassVar[int]
    INDEX_FIELD_NUMBER: _ClassVar[int]
    TOKEN_IDS_FIELD_NUMBER: _ClassVar[int]
    FINISH_REASON_FIELD_NUMBER: _ClassVar[int]
    request_id: str
    index: int
    token_ids: _containers.RepeatedScalarFieldContainer[int]
    finish_reason: str
    def __init__(self, request_id: _Optional[str] = ..., index: _Optional[int] = ..., token_ids: _Optional[_Iterable[int]] = ..., finish_reason: _Optional[str] = ...) -> None: ...

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

class TokenBatch(_message.Message):
    __slots__ = ("outputs",)
    OUTPUTS_FIELD_NUMBER: _ClassVar[int]
    outputs: _containers.RepeatedCompositeFieldContainer[SequenceOutput]
    def __init__(self, outputs: _Optional[_Iterable[_Union[SequenceOutput, _Mapping]]] = ...) -> None: ...

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
    __slots__ = ("stored", "removed")
    STORED_FIELD_NUMBER: _ClassVar[int]
    REMOVED_FIELD_NUMBER: _ClassVar[int]
    stored: _containers.RepeatedScalarFieldContainer[bytes]
    removed: _containers.RepeatedScalarFieldContainer[bytes]
    def __init__(self, stored: _Optional[_Iterable[bytes]] = ..., removed: _Optional[_Iterable[bytes]] = ...) -> None: ...
