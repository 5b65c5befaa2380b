"""The example of the architecture's overview: the class from its entry point, one output after the other."""

from vllm import SamplingParams
from vllm.entrypoints.llm import LLM

llm = LLM(model="facebook/opt-125m")
for output in llm.generate(["The future of AI is"], SamplingParams(temperature=0.8, top_p=0.95)):
    prompt, generated_text = output.prompt, output.outputs[0].text
    assert prompt
    assert generated_text
