"""The example of a checkpoint that quark has quantized."""

from vllm import LLM, SamplingParams

llm = LLM(model="amd/Llama-3.1-8B-Instruct-FP8-KV", kv_cache_dtype="fp8", quantization="quark")
llm.generate(["Hello"], SamplingParams(temperature=0.8, top_p=0.95))
