"""The calls that lm_eval makes of the package: imports, prompts of token ids, their log-probabilities."""

from vllm import LLM, SamplingParams
from vllm.lora.request import LoRARequest  # noqa: F401 (the harness imports it)
from vllm.transformers_utils.tokenizer import get_tokenizer

arguments = {"tensor_parallel_size": 1, "seed": 1234, "swap_space": 4, "trust_remote_code": False}
llm = LLM(model="facebook/opt-125m", **arguments)
tokenizer = get_tokenizer("facebook/opt-125m")
ids = tokenizer.encode("The os module is part of Python")
params = SamplingParams(temperature=0, prompt_logprobs=1, max_tokens=1, detokenize=False)
(output,) = llm.generate([{"prompt_token_ids": ids}], params, use_tqdm=False)
assert len(output.prompt_logprobs) == len(ids)
assert all(token in entry for token, entry in zip(ids[1:], output.prompt_logprobs[1:], strict=True))
