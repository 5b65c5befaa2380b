"""`LLM`'s arguments as vLLM documents them: by position, without effect, or refused by name."""

from __future__ import annotations

import json
import shutil
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest

from baton import LLM, BeamSearchParams, LLMEngine, RequestOutput, SamplingParams
from baton_core.errors import InvalidConfigError, InvalidModelError, InvalidRequestError
from tests.integration.tiny_llm import PROMPT, greedy, tiny_args
from tests.models import make_model

CHAT = [{"role": "user", "content": "hi"}]
TEMPLATE = "{% for message in messages %}<{{ message.content }}>{% endfor %}"
SIZES: dict[str, Any] = {"kv_cache_memory_bytes": 4 << 20, "max_num_batched_tokens": 64}


@pytest.fixture(scope="module")
def llm(folder: Path) -> Iterator[LLM]:
    with LLM(str(folder), **SIZES) as llm:
        yield llm


def test_arguments_are_taken_by_their_documented_positions(llm: LLM) -> None:
    (chatted,) = llm.chat(CHAT, greedy(3), False, None, TEMPLATE, "auto", True, False, None, None, None, None)
    assert chatted.prompt == "<hi>"
    (name,) = llm.enqueue(PROMPT, greedy(3), None, [0], False, None, None)
    (other,) = llm.enqueue_chat(
        CHAT, greedy(3), False, None, [0], TEMPLATE, "auto", True, False, None, None, None, None
    )
    outputs = llm.wait_for_completion(RequestOutput, use_tqdm=False)
    assert [output.request_id for output in outputs] == [name, other]
    assert outputs[1].prompt == "<hi>"
    assert outputs[1].outputs == chatted.outputs


def test_a_template_of_the_constructor_is_for_chats_that_give_none(folder: Path, tmp_path: Path) -> None:
    (tmp_path / "mine.jinja").write_text(TEMPLATE)
    with LLM(str(folder), chat_template=tmp_path / "mine.jinja", **SIZES) as llm:
        assert llm.chat_template == TEMPLATE
        prompts = [
            llm.chat(CHAT, greedy(1), use_tqdm=False, chat_template=template)[0].prompt
            for template in (None, TEMPLATE.replace("<", "("))
        ]
    assert prompts == ["<hi>", "(hi>"]
    with pytest.raises(InvalidConfigError, match="chat_template is '/nowhere'; allowed: a file"):
        LLM(str(folder), chat_template="/nowhere", **SIZES)


def test_requests_show_a_bar_while_they_are_taken(llm: LLM, capsys: pytest.CaptureFixture[str]) -> None:
    llm.enqueue([PROMPT, PROMPT], greedy(1))
    assert "Adding requests: 100%" in capsys.readouterr().err
    llm.enqueue(PROMPT, greedy(1), use_tqdm=False)
    assert capsys.readouterr().err == ""
    assert len(llm.wait_for_completion(use_tqdm=False)) == 3


def test_the_environment_bounds_the_sequences_of_a_prompt(
    folder: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("VLLM_MAX_N_SEQUENCES", "4")
    with LLM(str(folder), **SIZES) as bounded:
        assert len(bounded.generate(PROMPT, SamplingParams(4, max_tokens=2))[0].outputs) == 4
        with pytest.raises(InvalidRequestError, match=r"n is 5; allowed: 1 to 4, .*VLLM_MAX_N_SEQUENCES"):
            bounded.generate(PROMPT, SamplingParams(5, max_tokens=2))


@pytest.mark.parametrize(
    ("given", "said"),
    [
        ({"lora_request": "a"}, "lora_request is 'a'; allowed: None: enable_lora is False"),
        ({"lora_request": [None, "a"]}, "lora_request is 'a list of 2'; allowed: a list of 1, or one value"),
        ({"mm_processor_kwargs": {"a": 1}}, "mm_processor_kwargs is .*; allowed: None: models of text alone"),
    ],
)
def test_arguments_of_what_there_is_not_are_refused(llm: LLM, given: dict[str, Any], said: str) -> None:
    for call, what in (
        (llm.generate, PROMPT),
        (llm.enqueue, PROMPT),
        (llm.chat, CHAT),
        (llm.enqueue_chat, CHAT),
    ):
        with pytest.raises(InvalidRequestError, match=said):
            call(what, greedy(1), **given)  # type: ignore[operator]
    nothing = {"lora_request": [None], "mm_processor_kwargs": {}}
    assert llm.generate(PROMPT, greedy(1), use_tqdm=False, **nothing)  # type: ignore[arg-type]


@pytest.mark.parametrize(
    ("given", "said"),
    [
        (
            {"tokenization_kwargs": [1]},
            r"tokenization_kwargs is \[1\]; allowed: a dictionary of truncate_prompt",
        ),
        ({"tools": [5]}, r"tools is \[5\]; allowed: a list of dictionaries"),
        ({"chat_template_kwargs": [5]}, r"chat_template_kwargs is \[5\]; allowed: a dictionary"),
    ],
)
def test_options_of_the_wrong_kind_are_refused(llm: LLM, given: dict[str, Any], said: str) -> None:
    with pytest.raises(InvalidRequestError, match=said):
        llm.chat(CHAT, greedy(1), **given)


def test_no_conversations_are_none(llm: LLM) -> None:
    assert llm.chat([], use_tqdm=False) == llm.generate([], use_tqdm=False) == []


def test_a_time_of_arrival_is_a_number(llm: LLM) -> None:
    with pytest.raises(
        InvalidRequestError, match="arrival_time is 'a'; allowed: seconds since 1970, or None"
    ):
        llm.llm_engine.add_request("a", PROMPT, greedy(1), arrival_time="a")  # type: ignore[arg-type]


def test_only_outputs_that_the_model_gives_are_waited_for(llm: LLM) -> None:
    with pytest.raises(InvalidRequestError, match=r"output_type is .*int.*; allowed: RequestOutput, as"):
        llm.wait_for_completion(int)
    assert llm.wait_for_completion((RequestOutput, int), use_tqdm=False) == []


def test_priorities_count_for_nothing_under_another_policy(llm: LLM, folder: Path) -> None:
    first, second = llm.generate([PROMPT, PROMPT], greedy(1), use_tqdm=False, priority=[5, 1])
    assert first.outputs == second.outputs
    with (
        LLM.from_engine_args(tiny_args(folder, scheduling_policy="priority")) as other,
        pytest.raises(InvalidRequestError, match="priority is 1099511627776"),
    ):
        other.generate([PROMPT, PROMPT], greedy(1), use_tqdm=False, priority=[5, 2**40])


def test_beams_may_be_searched_a_few_prompts_at_a_time(llm: LLM) -> None:
    params = BeamSearchParams(beam_width=2, max_tokens=3)
    together = llm.beam_search([PROMPT[:5], PROMPT[:9], PROMPT[:7]], params)
    apart = llm.beam_search([PROMPT[:5], PROMPT[:9], PROMPT[:7]], params, None, False, 1)
    assert [[one.tokens for one in each.sequences] for each in apart] == [
        [one.tokens for one in each.sequences] for each in together
    ]
    with pytest.raises(
        InvalidRequestError, match="concurrency_limit is 0; allowed: an integer of at least 1"
    ):
        llm.beam_search([PROMPT[:5]], params, concurrency_limit=0)
    with pytest.raises(InvalidRequestError, match=r"params is SamplingParams\(.*; allowed: BeamSearchParams"):
        llm.beam_search([PROMPT[:5]], greedy(1))  # type: ignore[arg-type]


def test_attributes_are_those_of_vllm_s_class(llm: LLM, folder: Path) -> None:
    assert (llm.engine_class, llm.runner_type, llm.supported_tasks) == (LLMEngine, "generate", ("generate",))
    assert llm.model_config is llm.llm_engine.model_config
    assert llm.llm_engine.model_config.max_model_len == llm.llm_engine.max_model_len
    assert (llm.get_world_size(), llm.get_world_size(include_dp=False)) == (1, 1)
    assert llm.default_sampling_params == {}
    assert llm.chat_template is None
    before = llm.request_counter.counter
    llm.generate(PROMPT, greedy(1), use_tqdm=False)
    assert llm.request_counter.counter == before + 1
    tokenizer = llm.get_tokenizer()
    assert llm.renderer.tokenizer is tokenizer
    assert llm.input_processor.tokenizer is tokenizer
    prompt = llm.renderer.render_messages(CHAT, chat_template=TEMPLATE)
    assert prompt["prompt"] == "<hi>"
    assert tokenizer.decode(prompt["prompt_token_ids"]) == "<hi>"
    spec = llm.input_processor.process_inputs("mine", PROMPT, SamplingParams(max_tokens=3))
    assert (spec.request_id, list(spec.prompt_token_ids), spec.params.max_tokens) == ("mine", PROMPT, 3)
    assert (llm.reset_mm_cache(), llm.reset_prefix_cache(True, True)) == (None, True)


def test_values_without_effect_are_named_once(folder: Path, caplog: pytest.LogCaptureFixture) -> None:
    given: dict[str, Any] = {"trust_remote_code": True, "disable_custom_all_reduce": True}
    LLM(
        str(folder), **SIZES, **given, compilation_config={"mode": 3}, limit_mm_per_prompt={"image": 0}
    ).close()
    (line,) = [one.getMessage() for one in caplog.records if "taken without effect" in one.getMessage()]
    for name in (*given, "compilation_config", "limit_mm_per_prompt"):
        assert f"{name} (" in line
    assert "code from model folders is never run" in line


def test_a_model_that_needs_code_of_its_own_is_refused_with_the_reason(folder: Path, tmp_path: Path) -> None:
    shutil.copytree(folder, tmp_path / "own")
    config = json.loads((folder / "config.json").read_text())
    config |= {"architectures": ["OwnForCausalLM"], "auto_map": {"AutoConfig": "own.OwnConfig"}}
    (tmp_path / "own/config.json").write_text(json.dumps(config))
    with pytest.raises(InvalidModelError, match=r"'OwnForCausalLM'; allowed: .*\(auto_map\) is never run"):
        LLM(str(tmp_path / "own"), trust_remote_code=True, **SIZES)


def test_without_a_tokenizer_token_ids_alone_come_and_go(folder: Path) -> None:
    with LLM(str(folder), skip_tokenizer_init=True, **SIZES) as llm:
        (output,) = llm.generate({"prompt_token_ids": PROMPT}, greedy(4), use_tqdm=False)
        assert len(output.outputs[0].token_ids) == 4
        assert output.outputs[0].text == ""
        for call in (lambda: llm.generate("hello"), lambda: llm.chat(CHAT)):
            with pytest.raises(
                InvalidRequestError, match="allowed: token ids, for skip_tokenizer_init is True"
            ):
                call()
        with pytest.raises(
            InvalidConfigError, match="skip_tokenizer_init is True; allowed with get_tokenizer"
        ):
            llm.get_tokenizer()


def test_the_folder_needs_no_tokenizer_then(folder: Path, tmp_path: Path) -> None:
    lacking = Path(shutil.copytree(folder, tmp_path / "m", ignore=shutil.ignore_patterns("tokenizer.json")))
    with pytest.raises(InvalidModelError, match=r"tokenizer\.json is missing"):
        LLM(str(lacking), **SIZES)
    answers = [
        answering(one, {"prompt_token_ids": PROMPT}, skip_tokenizer_init=True) for one in (folder, lacking)
    ]
    assert answers[0] == answers[1]


def answering(folder: Path, prompt: dict[str, list[int]], **settings: Any) -> tuple[list[int], str]:
    with LLM(str(folder), **settings, **SIZES) as llm:
        (output,) = llm.generate(prompt, greedy(4), use_tqdm=False)
        return list(output.outputs[0].token_ids), output.outputs[0].text


def test_overrides_change_what_is_computed(folder: Path, llm: LLM) -> None:
    expected = llm.generate(PROMPT, greedy(3, logprobs=0), use_tqdm=False)[0].outputs[0]

    def halve(config: Any) -> Any:
        config.max_position_embeddings //= 2
        config.rms_norm_eps = 0.5
        return config

    outputs = []
    for overrides in ({"max_position_embeddings": 256, "rms_norm_eps": 0.5}, halve):
        with LLM(str(folder), hf_overrides=overrides, **SIZES) as other:
            assert other.model_config.max_model_len == 256
            assert other.model_config.hf_config.max_position_embeddings == 256
            outputs.append(other.generate(PROMPT, greedy(3, logprobs=0), use_tqdm=False)[0].outputs[0])
    assert outputs[0] == outputs[1]
    assert outputs[0].cumulative_logprob != expected.cumulative_logprob
    with pytest.raises(
        InvalidConfigError, match=r"hf_overrides fails with AttributeError: .*; allowed: a function"
    ):
        LLM(str(folder), hf_overrides=lambda config: None, **SIZES)


def test_workers_and_their_router_override_and_make_up_alike(folder: Path) -> None:
    given: dict[str, Any] = {
        "load_format": "dummy",
        "hf_overrides": {"max_position_embeddings": 256},
        **SIZES,
    }
    answers = []
    for workers in ({}, {"prefill_workers": 1, "decode_workers": 1, "split": "always"}):
        with LLM(str(folder), **given, **workers) as llm:
            assert llm.model_config.max_model_len == llm.llm_engine.max_model_len == 256
            assert llm.llm_engine.vllm_config.cache_config.num_gpu_blocks
            assert llm.get_world_size() == max(1, len(workers) - 1)
            answers.append(llm.generate(PROMPT, greedy(5), use_tqdm=False)[0].outputs[0].token_ids)
    assert answers[0] == answers[1]


def test_a_configuration_may_come_from_another_folder(folder: Path, tmp_path: Path) -> None:
    config = json.loads((folder / "config.json").read_text()) | {"max_position_embeddings": 128}
    (tmp_path / "config.json").write_text(json.dumps(config))
    with LLM(str(folder), hf_config_path=str(tmp_path), **SIZES) as llm:
        assert llm.llm_engine.max_model_len == 128


def test_dummy_weights_need_no_file(folder: Path, tmp_path: Path) -> None:
    shutil.copytree(folder, tmp_path / "bare", ignore=shutil.ignore_patterns("*.safetensors"))
    tokens = []
    for _ in range(2):
        with LLM(str(tmp_path / "bare"), load_format="dummy", **SIZES) as llm:
            tokens.append(llm.generate(PROMPT, greedy(5), use_tqdm=False)[0].outputs[0].token_ids)
    assert tokens[0] == tokens[1]
    other = make_model(tmp_path / "neox", "gpt-neox")
    with pytest.raises(
        InvalidConfigError, match="load_format is 'dummy'; allowed with GPTNeoXForCausalLM: auto"
    ):
        LLM(str(other), load_format="dummy", **SIZES)
