"""A logits processor class in worker processes: the tokens that it gives in one process."""

from __future__ import annotations

import pytest

from baton import LLM, SamplingParams
from tests.e2e.calls import draw_prompt, greedy
from tests.e2e.processes import KV_CACHE_BYTES
from tests.integration.test_processor_classes import Digests

ARGUMENTS = {
    "dtype": "float32",
    "logits_processors": [Digests],
    "kv_cache_memory_bytes": KV_CACHE_BYTES,
    "structured_outputs_config": {"backend": "guidance"},
}


@pytest.mark.exhaustive
def test_workers_import_a_class_by_its_name_and_apply_it_to_every_request() -> None:
    prompts = [draw_prompt(200, seed=number) for number in range(4)]
    params = [greedy(12), SamplingParams(seed=4, max_tokens=12, ignore_eos=True)] * 2
    with LLM(**ARGUMENTS) as together:
        expected = together.generate(prompts, params, use_tqdm=False)
    with LLM(prefill_workers=1, decode_workers=1, split="always", **ARGUMENTS) as split:
        outputs = split.generate(prompts, params, use_tqdm=False)
    for one, other in zip(expected, outputs, strict=True):
        assert other.kv_transfer_params is not None, "the prompt was not handed over"
        assert one.outputs[0].token_ids == other.outputs[0].token_ids
