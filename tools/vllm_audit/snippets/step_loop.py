"""The engine's example loop: requests are added between steps, and finished outputs leave."""

from vllm import EngineArgs, LLMEngine, SamplingParams

engine = LLMEngine.from_engine_args(EngineArgs(model="facebook/opt-125m"))
waiting = [
    (0, "What is LLM?", SamplingParams(temperature=0.0)),
    (1, "And you?", SamplingParams(temperature=0.0)),
]
finished = []
while waiting or engine.has_unfinished_requests():
    if waiting:
        number, prompt, params = waiting.pop(0)
        engine.add_request(str(number), prompt, params)
    finished += [output for output in engine.step() if output.finished]
assert sorted(output.request_id for output in finished) == ["0", "1"]
