"""LoRA adapters: the tokens of their merged weights, several in one batch, over HTTP too."""

from __future__ import annotations

import shutil
from collections.abc import Sequence
from pathlib import Path
from typing import Any

import pytest
import torch
from torch import Tensor

from baton import LLM, LoRARequest, SamplingParams, TokensPrompt
from baton_core.errors import ErrorCode, InvalidConfigError, InvalidRequestError, RequestError
from baton_kernels.cpu.lora import CpuLoraTable
from baton_router.requests.served_adapters import ServedAdapters, read_lora_modules
from tests.adapters import MergedReference, make_adapter
from tests.models import make_model, make_prompt
from tests.reference import Reference

NUM_TOKENS = 12
DRAFTS = {"method": "ngram", "num_speculative_tokens": 3}
SIZES = {"kv_cache_memory_bytes": 8 << 20, "dtype": "float32", "skip_tokenizer_init": True}
Case = tuple[LoRARequest | None, tuple[int, ...], list[int]]


@pytest.fixture(scope="module", params=["llama", "gpt2"])
def cases(
    request: pytest.FixtureRequest, tmp_path_factory: pytest.TempPathFactory
) -> tuple[Path, list[Case]]:
    """A model, and prompts of itself and of three adapters, with Transformers' tokens."""
    folder = tmp_path_factory.mktemp("lora")
    model = make_model(folder / "model", request.param)
    drawn: list[Case] = [(None, *Reference(model).draw_greedy(40, NUM_TOKENS, [7]))]
    for number in (1, 2, 3):
        path = make_adapter(folder / str(number), model, seed=number, is_everywhere=number == 2)
        lora = LoRARequest(f"adapter-{number}", number, str(path))
        drawn.append((lora, *MergedReference(model, path).draw_greedy(40, NUM_TOKENS, [7])))
    return model, drawn


def generate(llm: LLM, cases: Sequence[Case]) -> list[list[int]]:
    outputs = llm.generate(
        [TokensPrompt(prompt_token_ids=prompt) for _, prompt, _ in cases],
        SamplingParams(temperature=0.0, max_tokens=NUM_TOKENS, ignore_eos=True),
        lora_request=[lora for lora, _, _ in cases],
        use_tqdm=False,
    )
    assert [output.lora_request for output in outputs] == [lora for lora, _, _ in cases]
    return [list(output.outputs[0].token_ids) for output in outputs]


@pytest.mark.parametrize(
    "settings", [{"max_loras": 1}, {"max_loras": 3}, {"max_loras": 3, "speculative_config": DRAFTS}]
)
def test_adapters_in_one_batch_give_the_tokens_of_merged_weights(
    cases: tuple[Path, list[Case]], settings: dict[str, Any]
) -> None:
    model, drawn = cases
    with LLM(str(model), enable_lora=True, **settings, **SIZES) as llm:
        for _ in range(2):  # from the cache the second time, each from its own blocks
            assert generate(llm, drawn) == [expected for _, _, expected in drawn]


def test_adapters_change_experts_and_the_layers_of_every_stage(tmp_path: Path) -> None:
    model = make_model(tmp_path / "model", "qwen2-moe")
    drawn: list[Case] = [(None, *Reference(model).draw_greedy(20, NUM_TOKENS, [7]))]
    for number in (1, 2):
        path = make_adapter(tmp_path / str(number), model, seed=number, is_everywhere=True)
        lora = LoRARequest(f"adapter-{number}", number, str(path))
        drawn.append((lora, *MergedReference(model, path).draw_greedy(20, NUM_TOKENS, [7])))
    with LLM(str(model), enable_lora=True, max_loras=2, pipeline_parallel_size=2, **SIZES) as llm:
        assert generate(llm, drawn) == [expected for _, _, expected in drawn]


@pytest.mark.parametrize("quantization", ["int8", "fp8_per_channel"])
def test_an_adapter_changes_a_quantized_model_as_it_changes_the_plain_one(
    tmp_path: Path, quantization: str
) -> None:
    """As far as the rounding of the model's weights lets it."""
    model = make_model(tmp_path / "model", "llama")
    lora = LoRARequest("adapter", 1, str(make_adapter(tmp_path / "adapter", model)))
    prompt, effects = make_prompt(60), []
    for settings in ({}, {"quantization": quantization}):
        with LLM(str(model), enable_lora=True, **settings, **SIZES) as llm:
            effects.append(prompt_logprobs(llm, prompt, lora) - prompt_logprobs(llm, prompt, None))
    size, difference = effects[0].abs().mean(), (effects[1] - effects[0]).abs().mean()
    assert size > 0.01
    assert difference < size / 4


def prompt_logprobs(llm: LLM, prompt: Sequence[int], lora: LoRARequest | None) -> Tensor:
    """Return the log-probability of each token of a prompt but the first."""
    params = SamplingParams(max_tokens=1, prompt_logprobs=0)
    given = TokensPrompt(prompt_token_ids=list(prompt))
    (output,) = llm.generate([given], params, lora_request=lora, use_tqdm=False)
    places = zip(prompt[1:], (output.prompt_logprobs or [])[1:], strict=True)
    return torch.tensor([place[token_id].logprob for token_id, place in places if place])


def test_adapters_are_refused_by_name_before_they_are_loaded(
    cases: tuple[Path, list[Case]], tmp_path: Path
) -> None:
    model, drawn = cases
    wide = make_adapter(tmp_path / "wide", make_model(tmp_path / "other", "qwen3"))
    with LLM(str(model), enable_lora=True, max_lora_rank=4, **SIZES) as llm:
        with pytest.raises((InvalidRequestError, RequestError), match="adapter_model: "):
            generate(llm, [(LoRARequest("wide", 9, str(wide)), *drawn[0][1:])])
        high = make_adapter(tmp_path / "high", model, rank=8)
        with pytest.raises(InvalidRequestError, match="r is 8; allowed: 1 to 4, the max_lora_rank"):
            generate(llm, [(LoRARequest("high", 9, str(high)), *drawn[0][1:])])
        (first,) = [lora for lora, _, _ in drawn if lora is not None and lora.lora_int_id == 1]
        assert llm.llm_engine.add_lora(first)
        assert 1 in llm.llm_engine.list_loras()
        assert (llm.llm_engine.remove_lora(1), llm.llm_engine.remove_lora(1)) == (True, False)
    with pytest.raises(InvalidRequestError, match="lora_int_id is 0"):
        LoRARequest("a", 0, "/a")


def test_an_adapter_stays_loaded_while_its_model_keeps_its_weights(tmp_path: Path) -> None:
    model = make_model(tmp_path / "model", "llama")
    path = make_adapter(tmp_path / "adapter", model)
    case = (
        LoRARequest("adapter", 1, str(path)),
        *MergedReference(model, path).draw_greedy(40, NUM_TOKENS, [7]),
    )
    with LLM(str(model), enable_lora=True, **SIZES) as llm:
        assert generate(llm, [case]) == [case[2]]
        shutil.rmtree(path)
        assert llm.reset_prefix_cache()
        assert generate(llm, [case]) == [case[2]]
        llm.sleep(1)
        llm.wake_up()
        assert generate(llm, [case]) == [case[2]]
        llm.sleep(2)
        llm.wake_up()
        with pytest.raises(RequestError, match="adapter"):
            generate(llm, [case])


def test_a_router_serves_adapters_under_names_of_their_own(cases: tuple[Path, list[Case]]) -> None:
    lora = cases[1][1][0]
    assert lora is not None
    served = ServedAdapters(("base",), 16)
    served.add(served.read("one", lora.lora_path))
    assert served.names == ("base", "one")
    assert served.find("base") is None
    assert served.find("one") == served.adapters[0]
    with pytest.raises(InvalidRequestError, match="lora_name is 'one'; allowed: a name that no model has"):
        served.read("one", lora.lora_path)
    served.add(served.read("one", lora.lora_path, replaces=True), replaces=True)
    for names, said in ((("", "x"), "lora_name is ''; allowed"), (("a", ""), "lora_path is ''; allowed")):
        with pytest.raises(InvalidRequestError, match=said):
            served.read(*names)
    with pytest.raises(InvalidRequestError, match="lora_name is 'base'"):
        served.read("base", lora.lora_path, replaces=True)
    served.remove("one")
    for call in (served.find, served.check_served):
        with pytest.raises(RequestError, match="is 'one'; allowed"):
            call("one")
    with pytest.raises(InvalidRequestError, match="without --enable-lora"):
        ServedAdapters(("base",)).read("one", lora.lora_path)


def test_lora_modules_are_names_and_paths_or_json() -> None:
    given = ("a=/x=y", '{"name": "b", "path": "/b", "base_model_name": "base"}')
    assert read_lora_modules(given) == (("a", "/x=y"), ("b", "/b"))
    for wrong in ("a", "=b", "{", '{"name": "b"}', '{"name": "b", "path": "/b", "more": 1}'):
        with pytest.raises(InvalidConfigError, match="--lora-modules is"):
            read_lora_modules([wrong])


@pytest.mark.parametrize("level", [1, 2])
def test_an_engine_wakes_though_the_folder_of_an_adapter_has_changed(
    level: int, cases: tuple[Path, list[Case]], tmp_path: Path
) -> None:
    """It has room for another adapter then, which is loaded with the first request for it."""
    model, (plain, _, other, _) = cases
    path = make_adapter(tmp_path / "adapter", model, seed=5)
    with LLM(str(model), enable_lora=True, max_loras=1, **SIZES) as llm:
        generate(llm, [(LoRARequest("soon another", 9, str(path)), plain[1], [])])
        llm.sleep(level=level)
        make_adapter(path, model, seed=6)
        llm.wake_up()
        for case in (plain, other):
            assert generate(llm, [case]) == [case[2]]


def test_a_pinned_adapter_stays_until_it_is_removed(cases: tuple[Path, list[Case]]) -> None:
    model, (_, one, two, _) = cases
    assert one[0] is not None
    assert two[0] is not None
    with LLM(str(model), enable_lora=True, max_loras=1, **SIZES) as llm:
        engine = llm.llm_engine
        with pytest.raises(InvalidRequestError, match="lora_id is 1; allowed: none"):
            engine.pin_lora(1)
        assert generate(llm, [one, two]) == [one[2], two[2]]
        assert engine.pin_lora(1)
        with pytest.raises(InvalidRequestError, match="lora_request is 'adapter-2'; allowed: the adapters"):
            generate(llm, [two])
        with pytest.raises(InvalidRequestError, match="pinned adapters is 2; allowed: 1, as max_cpu_loras"):
            engine.pin_lora(2)
        assert generate(llm, [one]) == [one[2]]
        llm.sleep(level=1)
        llm.wake_up()
        assert generate(llm, [one]) == [one[2]]
        anew = LoRARequest("adapter-1", 1, two[0].lora_path, load_inplace=True)
        assert generate(llm, [(anew, *two[1:])]) == [two[2]]
        assert engine.remove_lora(1)
        assert generate(llm, [two]) == [two[2]]


def test_a_name_with_another_id_is_read_again(cases: tuple[Path, list[Case]], tmp_path: Path) -> None:
    """A training writes each of its steps into one folder, under one name and a rising id."""
    model, (_, (_, prompt, expected), *_) = cases
    path = make_adapter(tmp_path / "policy", model, seed=5)
    with LLM(str(model), enable_lora=True, max_loras=1, **SIZES) as llm:
        generate(llm, [(LoRARequest("policy", 1, str(path)), prompt, [])])
        make_adapter(path, model, seed=1)
        assert generate(llm, [(LoRARequest("policy", 2, str(path)), prompt, [])]) == [expected]
        assert llm.llm_engine.list_loras() == {2}
        assert llm.llm_engine.remove_lora(2)


def test_a_folder_that_has_changed_is_no_fault_of_the_request(
    cases: tuple[Path, list[Case]], tmp_path: Path
) -> None:
    model, (_, (_, prompt, _), *_) = cases
    path = make_adapter(tmp_path / "adapter", model, seed=5)
    with LLM(str(model), enable_lora=True, max_loras=1, **SIZES) as llm:
        lora = LoRARequest("changed", 1, str(path))
        llm.llm_engine.add_lora(lora)
        make_adapter(path, model, seed=6)
        with pytest.raises(RequestError, match="adapter changed could not be loaded: its folder is not") as e:
            generate(llm, [(lora, prompt, [])])
        assert e.value.code == ErrorCode.INTERNAL


def test_an_adapter_whose_load_fails_is_loaded_anew(
    cases: tuple[Path, list[Case]], monkeypatch: pytest.MonkeyPatch
) -> None:
    model, (_, one, other, _) = cases
    real, num_calls = CpuLoraTable.set, 0

    def fail_once(table: CpuLoraTable, slot: int, parts: Any) -> None:
        nonlocal num_calls
        num_calls += 1
        if num_calls == 2:
            raise MemoryError("no memory for the weights")
        real(table, slot, parts)

    monkeypatch.setattr(CpuLoraTable, "set", fail_once)
    with LLM(str(model), enable_lora=True, max_loras=1, **SIZES) as llm:
        with pytest.raises(RequestError, match="could not be loaded: MemoryError"):
            generate(llm, [one])
        for case in (one, other):
            assert generate(llm, [case]) == [case[2]]
