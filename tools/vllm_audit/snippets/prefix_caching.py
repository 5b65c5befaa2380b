"""The example of automatic prefix caching: two questions about one long table."""

from vllm import LLM, SamplingParams

TABLE = "| ID | Name | Age |\n" + "".join(
    f"| {number} | Name {number} | {20 + number} |\n" for number in range(30)
)
llm = LLM(model="facebook/opt-125m", enable_prefix_caching=True)
params = SamplingParams(temperature=0, max_tokens=10)
llm.generate(TABLE + "Question: what is the age of Name 3?", params)
output = llm.generate(TABLE + "Question: what is the age of Name 7?", params)[0]
assert output.num_cached_tokens, "the table is computed again"
