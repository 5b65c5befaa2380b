"""The engine's example of adding a request."""

from vllm import EngineArgs, LLMEngine, SamplingParams

engine = LLMEngine.from_engine_args(EngineArgs(model="facebook/opt-125m"))
engine.add_request(
    str(0),
    "Who is the president of the United States?",
    SamplingParams(temperature=0.0),
    arrival_time=None,
)
assert engine.has_unfinished_requests()
