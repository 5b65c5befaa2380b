"""`LLM` in this process: what it shows, what it calls, what its arguments change."""

from __future__ import annotations

import json
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import msgspec
import pytest
import torch

from baton import LLM, RequestOutputKind, SamplingParams, StructuredOutputsParams
from baton.executors import in_process_executor
from baton_core.errors import (
    ErrorCode,
    InvalidConfigError,
    InvalidModelError,
    InvalidRequestError,
    RequestError,
)
from baton_core.worker.step_plan import StepPlan, StepResult
from baton_engine.structured import compiler
from tests.integration.tiny_llm import PROMPT, greedy, tiny_args
from tests.models import CHAT_TEMPLATE, make_model, make_prompt

PROMPTS = [make_prompt(length, seed=length) for length in (30, 3, 70)]


@pytest.fixture(scope="module")
def folder(tmp_path_factory: pytest.TempPathFactory) -> Path:
    return make_model(tmp_path_factory.mktemp("llm") / "llama", "llama")


@pytest.fixture(scope="module")
def llm(folder: Path) -> Iterator[LLM]:
    with LLM.from_engine_args(
        tiny_args(folder, profiler_config={"torch_profiler_dir": str(folder / "traces")})
    ) as llm:
        yield llm


class Bar:
    """Stands in for `tqdm`."""

    def __init__(self, **options: Any) -> None:
        self.options = options
        self.num_done = 0
        self.postfixes: list[str] = []
        self.format_dict = {"elapsed": 2.0}

    def update(self) -> None:
        self.num_done += 1

    def set_postfix_str(self, text: str, refresh: bool) -> None:
        self.postfixes.append(text)

    def close(self) -> None:
        self.options["closed"] = True


def test_a_bar_of_one_s_own_is_told_of_every_request(llm: LLM) -> None:
    bars: list[Bar] = []

    def make_bar(**options: Any) -> Bar:
        bars.append(Bar(**options))
        return bars[-1]

    llm.generate(PROMPTS, [greedy(4), greedy(6), greedy(5)], use_tqdm=make_bar)
    (bar,) = bars
    assert (bar.options["total"], bar.options["desc"], bar.num_done) == (3, "Processed prompts", 3)
    assert bar.options["closed"]
    assert bar.postfixes[-1] == "input: 51.50 tokens/s, output: 7.50 tokens/s"


def test_the_usual_bar_shows_tokens_per_second(llm: LLM, capsys: pytest.CaptureFixture[str]) -> None:
    llm.generate(PROMPTS, greedy(4))
    said = capsys.readouterr().err
    assert "Processed prompts: 100%" in said
    assert "tokens/s, output: " in said
    llm.generate(PROMPTS, greedy(4), use_tqdm=False)
    assert capsys.readouterr().err == ""


def test_what_is_enqueued_comes_out_in_that_order_beside_other_calls(llm: LLM) -> None:
    expected = llm.generate(PROMPTS, greedy(9), use_tqdm=False)
    names = llm.enqueue(PROMPTS[:2], greedy(9)) + llm.enqueue(PROMPTS[2], greedy(9))
    (between,) = llm.generate(PROMPTS[1], greedy(3), use_tqdm=False)
    outputs = llm.wait_for_completion(use_tqdm=False)
    assert [output.request_id for output in outputs] == names
    assert [output.outputs for output in outputs] == [output.outputs for output in expected]
    assert between.outputs[0].token_ids == expected[1].outputs[0].token_ids[:3]
    assert llm.wait_for_completion(use_tqdm=False) == []


def test_after_a_failure_nobody_waits_for_what_is_lost(llm: LLM) -> None:
    def broken(token_ids: list[int], logits: torch.Tensor) -> torch.Tensor:
        raise ValueError("broken on purpose")

    llm.enqueue(PROMPT, greedy(4, logits_processors=(broken,)))
    with pytest.raises(RequestError, match="broken on purpose"):
        llm.generate(PROMPTS, greedy(9), use_tqdm=False)
    assert llm.wait_for_completion(use_tqdm=False) == []
    assert not llm.llm_engine.has_unfinished_requests()


def test_an_interrupt_ends_what_is_enqueued_too(llm: LLM, monkeypatch: pytest.MonkeyPatch) -> None:
    def interrupt(awaited: object) -> None:
        raise KeyboardInterrupt

    llm.enqueue(PROMPTS, greedy(9))
    with monkeypatch.context() as patch:
        patch.setattr(llm.llm_engine, "step", interrupt)
        with pytest.raises(KeyboardInterrupt):
            llm.generate(PROMPT, greedy(9), use_tqdm=False)
    assert llm.wait_for_completion(use_tqdm=False) == []
    assert llm.reset_prefix_cache(), "something is still open"


def test_offline_outputs_are_final_whatever_the_kind(llm: LLM) -> None:
    for kind in RequestOutputKind:
        (output,) = llm.generate(PROMPT, greedy(7, output_kind=kind), use_tqdm=False)
        assert len(output.outputs[0].token_ids) == 7


def test_conversations_are_rendered_and_answered(llm: LLM) -> None:
    chat = [{"role": "user", "content": "hi"}]
    one, other = llm.chat([chat, [*chat, *chat]], greedy(5), use_tqdm=False)
    assert one.prompt == "<|im_start|>user\nhi<|im_end|>\n<|im_start|>assistant\n"
    assert other.prompt == one.prompt.replace("<|im_start|>assistant\n", "") + one.prompt
    (plain,) = llm.generate(
        one.prompt, greedy(5), use_tqdm=False, tokenization_kwargs={"add_special_tokens": False}
    )
    assert (plain.prompt_token_ids, plain.outputs) == (one.prompt_token_ids, one.outputs)
    names = llm.enqueue_chat(chat, greedy(5))
    (enqueued,) = llm.wait_for_completion(use_tqdm=False)
    assert [enqueued.request_id] == names
    assert enqueued.outputs == one.outputs


def test_the_options_of_a_chat_reach_the_template(llm: LLM) -> None:
    template = (
        "{{ shout }}{% for tool in tools or [] %}{{ tool.name }}{% endfor %}"
        "{% for message in messages %}[{{ message.content }}]{% endfor %}"
    )
    (output,) = llm.chat(
        [{"role": "user", "content": [{"type": "text", "text": "a"}, {"type": "text", "text": "b"}]}],
        greedy(2),
        use_tqdm=False,
        chat_template=template,
        tools=[{"name": "tool "}],
        chat_template_kwargs={"shout": "HEY "},
        chat_template_content_format="string",
    )
    assert output.prompt == "HEY tool [a\nb]"
    chat = [{"role": "user", "content": "a"}, {"role": "assistant", "content": "Sure"}]
    (output,) = llm.chat(
        chat, greedy(2), use_tqdm=False, add_generation_prompt=False, continue_final_message=True
    )
    assert output.prompt is not None
    assert output.prompt.endswith("Sure")
    with pytest.raises(TypeError, match="chat_tempalte"):
        llm.chat(chat, chat_tempalte="a")  # type: ignore[call-arg]


def test_prompts_may_be_cut(llm: LLM) -> None:
    (output,) = llm.generate(
        PROMPT, greedy(2), use_tqdm=False, tokenization_kwargs={"truncate_prompt_tokens": 9}
    )
    assert output.prompt_token_ids == PROMPT[-9:]
    with pytest.raises(
        InvalidRequestError, match="tokenization_kwargs is 'padding'; allowed: truncate_prompt"
    ):
        llm.generate(PROMPT, greedy(2), use_tqdm=False, tokenization_kwargs={"padding": True})
    unset = {"padding": False, "truncation": None, "max_length": None}
    (output,) = llm.generate(PROMPT, greedy(2), use_tqdm=False, tokenization_kwargs=unset)
    assert output.prompt_token_ids == PROMPT


def test_functions_are_called_with_the_model_and_the_runner(llm: LLM) -> None:
    assert llm.apply_model(lambda model: type(model).__name__) == ["LlamaForCausalLM"]
    assert llm.apply_model("builtins:type")[0].__name__ == "LlamaForCausalLM"
    assert llm.collective_rpc("builtins:isinstance", args=(object,)) == [True]
    (name,) = llm.collective_rpc(lambda runner, **given: (type(runner).__name__, given), kwargs={"a": 1})
    assert name == ("ModelRunner", {"a": 1})
    nothing = StepPlan(step_id=1, slices=())
    assert llm.collective_rpc("execute", args=(nothing,)) == [StepResult(step_id=1, sampled=())]
    for call, said in (
        (lambda: llm.apply_model("nowhere:function"), "func is 'nowhere:function'; allowed: a function, or"),
        (lambda: llm.collective_rpc("fly"), "method is 'fly'; allowed: a method of the runner"),
    ):
        with pytest.raises(InvalidRequestError, match=said):
            call()


def test_logits_processors_may_be_functions(llm: LLM) -> None:
    def only_seven(output_token_ids: list[int], logits: torch.Tensor) -> torch.Tensor:
        mask = torch.full_like(logits, -torch.inf)
        mask[7] = 0.0
        return mask

    (output,) = llm.generate(PROMPT, greedy(3, logits_processors=(only_seven,)), use_tqdm=False)
    assert output.outputs[0].token_ids == [7, 7, 7]
    no_numbers = greedy(3, logits_processors=(lambda tokens, logits: logits * torch.nan,))
    with pytest.raises(RequestError, match="leave a token: here all logits are minus infinity or NaN"):
        llm.generate(PROMPT, no_numbers, use_tqdm=False)


def test_a_form_that_cannot_be_compiled_now_ends_its_request_alone(
    llm: LLM, monkeypatch: pytest.MonkeyPatch
) -> None:
    formed = greedy(3, ignore_eos=False, structured_outputs=StructuredOutputsParams(choice=["a", "b"]))
    monkeypatch.setattr(compiler, "MAX_WAITING", 0)
    with pytest.raises(RequestError, match="0 grammars wait to be compiled; allowed: 0") as caught:
        llm.generate(PROMPT, formed, use_tqdm=False)
    assert caught.value.code is ErrorCode.OVERLOADED
    monkeypatch.undo()
    (output,) = llm.generate(PROMPT, formed, use_tqdm=False)
    assert output.outputs[0].text in ("a", "b")


def test_a_profile_is_written_where_the_arguments_say(llm: LLM, folder: Path) -> None:
    with pytest.raises(InvalidRequestError, match="delay_iterations is 1; allowed: None: a trace is of all"):
        llm.start_profile("mine", delay_iterations=1)
    llm.start_profile("mine")
    llm.generate(PROMPT, greedy(2), use_tqdm=False)
    with pytest.raises(
        InvalidRequestError, match="start_profile is 'called again'; allowed: stop_profile first"
    ):
        llm.start_profile()
    llm.stop_profile()
    (trace,) = (folder / "traces").glob("mine_dp0_pp0_tp0.*.json")
    assert json.loads(trace.read_text())["traceEvents"]
    with pytest.raises(InvalidRequestError, match="stop_profile is 'called'; allowed: start_profile first"):
        llm.stop_profile()


def test_the_tokenizer_is_transformers(llm: LLM) -> None:
    tokenizer = llm.get_tokenizer()
    text = tokenizer.apply_chat_template([{"role": "user", "content": "a"}], tokenize=False)
    assert text == "<|im_start|>user\na<|im_end|>\n"
    ids = tokenizer.encode("hello")
    assert llm.generate("hello", greedy(1), use_tqdm=False)[0].prompt_token_ids == ids


def test_seeds_follow_from_the_engine_s(folder: Path) -> None:
    drawn = SamplingParams(max_tokens=8, ignore_eos=True)
    outputs = []
    for seed in (1, 1, 2):
        with LLM.from_engine_args(tiny_args(folder, seed=seed)) as llm:
            outputs.append(
                [one.outputs[0].token_ids for one in llm.generate([PROMPT] * 2, drawn, use_tqdm=False)]
            )
    assert outputs[0] == outputs[1]
    assert outputs[0] != outputs[2]
    assert outputs[0][0] != outputs[0][1]


def test_without_a_prefix_cache_every_prompt_is_computed_whole(folder: Path, llm: LLM) -> None:
    with LLM.from_engine_args(tiny_args(folder, enable_prefix_caching=False)) as other:
        outputs = [other.generate([PROMPT] * 2, greedy(5), use_tqdm=False) for _ in range(2)]
    assert [one.num_cached_tokens for both in outputs for one in both] == [0] * 4
    expected = llm.generate(PROMPT, greedy(5), use_tqdm=False)[0].outputs
    assert all(one.outputs == expected for both in outputs for one in both)


def test_defaults_come_from_where_the_arguments_say(folder: Path, tmp_path: Path) -> None:
    (tmp_path / "generation_config.json").write_text('{"temperature": 0.3, "top_k": 9}')
    for given, expected in (
        ({}, SamplingParams()),
        ({"override_generation_config": {"top_p": 0.5}}, SamplingParams(top_p=0.5)),
        ({"generation_config": str(tmp_path)}, SamplingParams(temperature=0.3, top_k=9)),
        (
            {
                "generation_config": str(tmp_path),
                "override_generation_config": {"max_new_tokens": 5, "top_k": 2},
            },
            SamplingParams(temperature=0.3, top_k=2, max_tokens=5),
        ),
        (
            {"generation_config": "vllm", "override_generation_config": {"min_p": 0.1}},
            SamplingParams(min_p=0.1),
        ),
    ):
        with LLM.from_engine_args(tiny_args(folder, **given)) as llm:
            assert llm.get_default_sampling_params() == expected
    for given, said in (
        (
            {"generation_config": "/nowhere"},
            "generation_config is '/nowhere'; allowed: auto, vllm, or a folder",
        ),
        (
            {"override_generation_config": {"top": 1}},
            "override_generation_config has the key 'top'; allowed: ",
        ),
        ({"override_generation_config": {"top_p": 7}}, "override_generation_config: top_p is 7; allowed: "),
    ):
        with pytest.raises(InvalidConfigError, match=said):
            LLM.from_engine_args(tiny_args(folder, **given))


def test_a_tokenizer_may_come_from_another_folder(folder: Path, tmp_path: Path) -> None:
    from tests.models import make_tokenizer

    make_tokenizer().save_pretrained(tmp_path)
    template = CHAT_TEMPLATE.replace("assistant", "robot")
    (tmp_path / "chat_template.jinja").write_text(template)
    with LLM.from_engine_args(tiny_args(folder, tokenizer=str(tmp_path))) as llm:
        (output,) = llm.chat([{"role": "user", "content": "a"}], greedy(2), use_tqdm=False)
        assert output.prompt is not None
        assert output.prompt.endswith("<|im_start|>robot\n")
        assert llm.get_tokenizer().chat_template == template


def test_weights_are_read_in_the_format_that_is_asked_for(folder: Path) -> None:
    LLM.from_engine_args(tiny_args(folder, load_format="safetensors")).close()
    with pytest.raises(InvalidConfigError, match=r"load_format is 'pt'; allowed: auto, for .*safetensors"):
        LLM.from_engine_args(tiny_args(folder, load_format="pt"))


def test_names_that_nobody_knows_are_refused(folder: Path) -> None:
    with pytest.raises(TypeError, match="max_length"):
        LLM(str(folder), max_length=3)
    with pytest.raises(InvalidModelError, match="model is '/nowhere'"):
        LLM("/nowhere")


def test_it_shows_what_it_is(llm: LLM, folder: Path) -> None:
    shown = repr(llm)
    assert shown.startswith("LlamaForCausalLM(\n")
    assert "(attention): SelfAttention(" in shown
    llm.sleep(1)
    assert repr(llm) == f"LLM(model={str(folder)!r}, max_model_len=512)"
    llm.wake_up()
    llm.generate({"prompt_token_ids": PROMPT}, greedy(1), use_tqdm=False)
    metrics = {metric.name: metric for metric in llm.get_metrics()}
    assert metrics["vllm:num_requests_running"].value == 0  # type: ignore[union-attr]
    assert metrics["vllm:prompt_tokens"].value > 0  # type: ignore[union-attr]


def test_an_output_has_everything_at_once(llm: LLM) -> None:
    params = greedy(4, logprobs=2, prompt_logprobs=0, n=1)
    (output,) = llm.generate({"prompt_token_ids": PROMPT, "prompt": "shown"}, params, use_tqdm=False)
    (completion,) = output.outputs
    assert output.prompt == "shown"
    assert completion.logprobs is not None
    assert len(completion.logprobs) == 4
    own = [position[token] for position, token in zip(completion.logprobs, completion.token_ids, strict=True)]
    assert completion.cumulative_logprob == pytest.approx(sum(entry.logprob for entry in own))
    assert [entry.rank for entry in own] == [1] * 4
    assert output.prompt_logprobs is not None
    assert [None if one is None else list(one) for one in output.prompt_logprobs] == [
        None,
        *([token] for token in PROMPT[1:]),
    ]
    (flat,) = llm.generate(PROMPT, msgspec.structs.replace(params, flat_logprobs=True), use_tqdm=False)
    assert list(flat.outputs[0].logprobs or []) == completion.logprobs
    assert list(flat.prompt_logprobs or []) == [one or {} for one in output.prompt_logprobs]


def test_it_computes_with_the_threads_that_the_control_groups_give_time(
    folder: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    before = torch.get_num_threads()
    monkeypatch.setattr(in_process_executor, "within_quota", lambda num_threads: 1)
    try:
        torch.set_num_threads(2)
        with LLM.from_engine_args(tiny_args(folder)):
            assert torch.get_num_threads() == 1
    finally:
        torch.set_num_threads(before)
