"""The engine's example of aborting a request."""

from vllm import EngineArgs, LLMEngine, SamplingParams

engine = LLMEngine.from_engine_args(EngineArgs(model="facebook/opt-125m"))
request_id = str(0)
engine.add_request(request_id, "Hello", SamplingParams(temperature=0.0))
engine.abort_request(request_id)
assert not engine.has_unfinished_requests()
