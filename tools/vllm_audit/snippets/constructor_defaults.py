"""Every argument that the constructor's documentation shows, with its default."""

from vllm import LLM

LLM(
    model="facebook/opt-125m",
    runner="auto",
    convert="auto",
    tokenizer=None,
    tokenizer_mode="auto",
    skip_tokenizer_init=False,
    trust_remote_code=False,
    allowed_local_media_path="",
    tensor_parallel_size=1,
    dtype="auto",
    quantization=None,
    revision=None,
    tokenizer_revision=None,
    seed=0,
    gpu_memory_utilization=0.9,
    swap_space=4,
    cpu_offload_gb=0,
    enforce_eager=False,
    disable_custom_all_reduce=False,
    hf_token=None,
    hf_overrides=None,
    mm_processor_kwargs=None,
    pooler_config=None,
    structured_outputs_config=None,
    kv_cache_memory_bytes=None,
    compilation_config=None,
    logits_processors=None,
)
