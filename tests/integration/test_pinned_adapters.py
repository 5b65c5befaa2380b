"""LoRA adapters that are pinned at the workers of a cluster: they stay loaded, after a restart too."""

from __future__ import annotations

import os
import shutil
import signal
import time
from contextlib import suppress
from pathlib import Path

import pytest

from baton import LLM, LoRARequest, TokensPrompt
from baton_core.errors import ErrorCode, InvalidRequestError, RequestError
from tests.adapters import make_adapter
from tests.integration import asked_functions
from tests.integration.tiny_llm import PROMPT, greedy
from tests.models import make_model

PROCESS_ID = f"{asked_functions.__name__}:process_id"
_RESTARTED_WITHIN_S = 120.0


def generate(llm: LLM, lora: LoRARequest) -> list[int]:
    given = TokensPrompt(prompt_token_ids=list(PROMPT))
    (output,) = llm.generate([given], greedy(4), lora_request=lora, use_tqdm=False)
    return list(output.outputs[0].token_ids)


def process_ids(llm: LLM) -> list[int]:
    """Return the ids of the workers' processes, in the order of their names; none while one is away."""
    with suppress(RequestError):
        return [process_id for _, process_id in llm.collective_rpc(PROCESS_ID)]
    return []


def restart_workers(llm: LLM) -> None:
    before = process_ids(llm)
    assert len(before) == 2
    for process_id in before:
        os.kill(process_id, signal.SIGKILL)
    ends_s = time.monotonic() + _RESTARTED_WITHIN_S
    while len(now := process_ids(llm)) < 2 or set(now) & set(before):
        assert time.monotonic() < ends_s, "the workers did not come back"
        time.sleep(0.2)


def test_a_pinned_adapter_stays_at_every_worker(tmp_path: Path) -> None:
    model = make_model(tmp_path / "model", "llama", num_layers=1)
    loras = [
        LoRARequest(
            f"adapter-{number}", number, str(make_adapter(tmp_path / str(number), model, seed=number))
        )
        for number in (1, 2, 3)
    ]
    pinned, second, third = loras
    with LLM(
        str(model),
        enable_lora=True,
        max_cpu_loras=2,
        prefill_workers=1,
        decode_workers=1,
        split="always",
        kv_cache_memory_bytes=4 << 20,
        skip_tokenizer_init=True,
    ) as llm:
        engine = llm.llm_engine
        with pytest.raises(InvalidRequestError, match="lora_id is 1; allowed: none"):
            engine.pin_lora(1)
        for lora in loras:
            generate(llm, lora)  # the router serves all of them from here on
        assert engine.pin_lora(1)
        restart_workers(llm)
        expected = generate(llm, pinned)
        shutil.move(pinned.path, tmp_path / "away")  # from here on no worker can load it
        for lora in (second, third, pinned):
            tokens = generate(llm, lora)
        assert tokens == expected

        assert engine.pin_lora(2)
        with pytest.raises(RequestError, match="pinned adapters is 3; allowed: 2, as max_cpu_loras says"):
            engine.pin_lora(3)
        with pytest.raises(
            RequestError, match=r"lora_request is 'adapter-3'; allowed: the adapters that are"
        ) as caught:
            generate(llm, third)
        assert caught.value.code == ErrorCode.INVALID_REQUEST
        assert generate(llm, pinned) == expected

        assert engine.remove_lora(1)
        generate(llm, third)
