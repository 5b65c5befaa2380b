"""Tokens that are sampled under grammars that the libraries compile."""

from __future__ import annotations

import json

import pytest
import torch

from baton_core.requests.sampling_rules import ThinkingBudget
from baton_core.requests.structured_outputs import StructuredOutputsParams
from baton_engine.sampling.logits_rules import LogitsRules
from baton_engine.sampling.sampler import Sampler
from baton_engine.sampling.sampling_state import SamplingStates
from tests.unit.engine.grammars import BACKENDS, Model, compiled, text_of
from tests.unit.engine.steps import make_history, make_rules, make_spec

pytestmark = pytest.mark.slow

MODEL = Model()
SCHEMA = {
    "type": "object",
    "properties": {
        "name": {"enum": ["ada", "grace"]},
        "age": {"type": "integer", "minimum": 7, "maximum": 9},
    },
    "required": ["name", "age"],
    "additionalProperties": False,
}
GRAMMAR = StructuredOutputsParams(json=json.dumps(SCHEMA), disable_any_whitespace=True)
THOUGHT_END = 300


@pytest.mark.parametrize("is_thinking", [False, True])
@pytest.mark.parametrize("backend", BACKENDS)
def test_outputs_have_the_form_also_after_a_thought_and_with_states_forgotten(
    backend: str, is_thinking: bool
) -> None:
    compiler = MODEL.compiler(backend)
    compiled(compiler, json=GRAMMAR.json, disable_any_whitespace=True)
    budget = ThinkingBudget(num_tokens=5, start_token_ids=(), end_token_ids=(THOUGHT_END,))
    rules = make_rules(structured_outputs=GRAMMAR, thinking=budget if is_thinking else None)
    sampler = Sampler(rules=LogitsRules(SamplingStates(grammars=compiler)))
    generator = torch.Generator().manual_seed(5)
    output: list[int] = []
    while not output or output[-1] not in MODEL.eos_token_ids:
        logits = torch.randn(1, MODEL.vocab_size, generator=generator)
        spec = make_spec(len(output), temperature=1.0, history=make_history(output, rules=rules))
        kept = sampler.sample(logits.clone(), [spec])
        anew = Sampler(rules=LogitsRules(SamplingStates(grammars=compiler))).sample(logits, [spec])
        assert torch.equal(kept.token_ids, anew.token_ids)
        assert not kept.failures
        output += kept.token_ids.tolist()
        assert len(output) < 200
    compiler.close()
    if is_thinking:
        end = output.index(THOUGHT_END)
        assert end <= 5
        output = output[end + 1 :]
    written = json.loads(text_of(output[:-1], MODEL.vocabulary().texts))
    assert set(written) == {"name", "age"}
    assert written["name"] in ("ada", "grace")
    assert 7 <= written["age"] <= 9
