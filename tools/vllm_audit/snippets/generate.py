"""The first example: a model by its id, some prompts, their completions."""

from vllm import LLM, SamplingParams

prompts = ["Hello, my name is", "The president of the United States is", "The capital of France is"]
sampling_params = SamplingParams(temperature=0.8, top_p=0.95)
llm = LLM(model="facebook/opt-125m")
outputs = llm.generate(prompts, sampling_params)
assert [output.prompt for output in outputs] == prompts
assert all(output.outputs[0].text for output in outputs)
