"""Traces of an engine in this process: the same spans, of one process."""

from __future__ import annotations

from pathlib import Path

from baton import LLM
from tests.integration.tiny_llm import PROMPT, greedy, tiny_args
from tests.models import make_model
from tests.otlp_receiver import receiving

PHASES = ["admit", "decode", "decode_queue", "finish", "first_token", "place", "prefill_chunk", "queue"]


def test_an_llm_exports_a_trace_for_each_prompt(tmp_path: Path) -> None:
    folder = make_model(tmp_path / "llama", "llama")
    with receiving() as receiver:
        args = tiny_args(folder, otlp_traces_endpoint=f"http://{receiver.address}")
        with LLM.from_engine_args(args) as llm:
            llm.generate([{"prompt_token_ids": PROMPT}] * 2, greedy(3))
        roots = [span for span in receiver.spans if span.name == "llm_request"]
        assert len({root.trace_id for root in roots}) == len(roots) == 2
        for root in roots:
            assert (root.service, root.attributes["gen_ai.usage.output_tokens"]) == ("baton", 3)
            phases = [span for span in receiver.trace(root.trace_id) if span.parent_id == root.span_id]
            assert sorted({span.name for span in phases}) == PHASES
