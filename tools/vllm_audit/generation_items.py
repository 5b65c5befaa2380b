"""Generation by `LLM`: each parameter of `generate`, `chat` and `enqueue` is tried by what it changes."""

from __future__ import annotations

from typing import Any, Final

import baton
from baton import SamplingParams
from tools.vllm_audit.effects import EFFECTS
from tools.vllm_audit.probes import all_of, holds, raises
from tools.vllm_audit.subjects import ADAPTER, CHAT_TEMPLATE, NO_ADAPTERS, PROMPT, expect, generated, llm
from tools.vllm_audit.verdict import Group, Probe

MESSAGES: Final = [{"role": "user", "content": "Hello"}]
_TOOL: Final = {
    "type": "function",
    "function": {"name": "find_audited", "parameters": {"type": "object", "properties": {}}},
}
_ONE: Final = SamplingParams(temperature=0.0, max_tokens=1)


def _same_as_text(prompt: Any) -> Probe:
    def probe() -> None:
        expect(_texts(prompt)[0] == generated().outputs[0].text, "another text")

    return probe


def _texts(prompts: Any, params: Any = None, **arguments: Any) -> list[str]:
    params = params or SamplingParams(temperature=0.0, max_tokens=4)
    return [one.outputs[0].text for one in llm().generate(prompts, params, use_tqdm=False, **arguments)]


def _ids() -> list[int]:
    return list(generated().prompt_token_ids)


def _in_order() -> None:
    ids = _ids()
    outputs = llm().generate([ids, ids[:2]], SamplingParams(max_tokens=1), use_tqdm=False)
    expect([list(one.prompt_token_ids) for one in outputs] == [ids, ids[:2]], "another order")


def _one_for_each() -> None:
    many = [SamplingParams(max_tokens=length, ignore_eos=True) for length in (1, 3)]
    outputs = llm().generate([PROMPT, PROMPT], many, use_tqdm=False)
    expect([len(one.outputs[0].token_ids) for one in outputs] == [1, 3], "other lengths")


def _bars() -> None:
    made: list[Any] = []

    def bar(iterable: Any = None, **options: Any) -> Any:
        from tqdm import tqdm

        made.append(tqdm(iterable, **{**options, "disable": True}))
        return made[-1]

    llm().generate(PROMPT, SamplingParams(max_tokens=1), use_tqdm=bar)
    expect(made, "the function that makes the bar is not called")


def _ignored_priority() -> None:
    expect(len(_texts([PROMPT, PROMPT], priority=[1, 0])) == 2, "requests are lost")


def _tokenization() -> None:
    output = llm().generate(
        PROMPT,
        SamplingParams(max_tokens=1),
        use_tqdm=False,
        tokenization_kwargs={"truncate_prompt_tokens": 2},
    )[0]
    expect(list(output.prompt_token_ids) == _ids()[-2:], "the prompt is not cut to its end")
    options = {"truncation": True, "max_length": 2, "truncation_side": "right"}
    output = llm().generate(PROMPT, _ONE, use_tqdm=False, tokenization_kwargs=options)[0]
    expect(list(output.prompt_token_ids) == _ids()[:2], "the prompt is not cut as Transformers cuts it")


def _unknown_tokenization() -> object:
    return _texts(PROMPT, tokenization_kwargs={"padding": True})


def _no_multimodal(call: Any, *arguments: Any) -> Probe:
    """None is taken; other values are refused."""

    def probe() -> object:
        getattr(llm(), call)(*arguments, mm_processor_kwargs=None)
        llm().wait_for_completion()
        return getattr(llm(), call)(*arguments, mm_processor_kwargs={"num_crops": 4})

    return probe


def _adapter(call: str, *arguments: Any) -> Probe:
    return raises(lambda: getattr(llm(), call)(*arguments, lora_request=ADAPTER), NO_ADAPTERS)


def _unsupported_prompts() -> object:
    return _texts({"prompt": PROMPT, "multi_modal_data": {"image": object()}})


GENERATE: Final = Group(
    "LLM.generate",
    {
        "prompts: str": _same_as_text(PROMPT),
        "prompts: list[str]": _same_as_text([PROMPT]),
        "prompts: list[int]": lambda: _same_as_text(_ids())(),
        "prompts: list[list[int]]": lambda: _same_as_text([_ids()])(),
        "prompts: TextPrompt": _same_as_text(baton.TextPrompt(prompt=PROMPT)),
        "prompts: TokensPrompt": lambda: _same_as_text(baton.TokensPrompt(prompt_token_ids=_ids()))(),
        "sampling_params: None, one, a list": all_of(
            lambda: llm().generate(PROMPT, use_tqdm=False), _one_for_each
        ),
        "use_tqdm": _bars,
        "priority": all_of(EFFECTS["scheduling_policy"], _ignored_priority),
        "returns RequestOutputs in order": _in_order,
        "lora_request": _adapter("generate", PROMPT),
        "tokenization_kwargs": all_of(_tokenization, _unknown_tokenization),
        "prompts: encoder/decoder, multi_modal_data": _unsupported_prompts,
        "mm_processor_kwargs": _no_multimodal("generate", PROMPT),
    },
)
PROMPTS: Final = Group(
    "TextPrompt, TokensPrompt",
    {
        "TextPrompt.prompt": _same_as_text({"prompt": PROMPT}),
        "TokensPrompt.prompt": lambda: _same_as_text({"prompt": PROMPT, "prompt_token_ids": _ids()})(),
        "TokensPrompt.prompt_token_ids": lambda: _same_as_text({"prompt_token_ids": _ids()})(),
        "TokensPrompt.token_type_ids": lambda: _texts({"prompt_token_ids": _ids(), "token_type_ids": [0]}),
    },
)


def _chat(*arguments: Any, **named: Any) -> Any:
    return llm().chat(*arguments, **{"sampling_params": _ONE, "use_tqdm": False, **named})


def _asked(messages: Any = MESSAGES, **named: Any) -> str:
    """The prompt that a conversation became, by `chat`."""
    output = _chat(messages, **named)[0]
    return str(output.prompt or llm().get_tokenizer().decode(output.prompt_token_ids))


def _enqueued(messages: Any = MESSAGES, **named: Any) -> str:
    """The same, by `enqueue_chat`."""
    llm().enqueue_chat(messages, **{"sampling_params": _ONE, "use_tqdm": False, **named})
    output = llm().wait_for_completion(use_tqdm=False)[0]
    return str(output.prompt or llm().get_tokenizer().decode(output.prompt_token_ids))


def _templates(call: Any) -> dict[str, Probe]:
    """Items of what both methods make a prompt of."""
    template = {"chat_template": CHAT_TEMPLATE}
    with_kwargs = {"chat_template": "{{ audited }}", "chat_template_kwargs": {"audited": "as told"}}
    unfinished = [*MESSAGES, {"role": "assistant", "content": "Well"}]
    listed = {"chat_template": "{{ messages[0].content[0].text }}", "chat_template_content_format": "openai"}
    shows_tools = {"chat_template": "{{ tools[0].function.name }}", "tools": [_TOOL]}
    checks = {
        "chat_template": lambda: call(**template) == "[Hello]",
        "chat_template_content_format": lambda: call(**listed) == "Hello",
        "add_generation_prompt": lambda: len(call()) > len(call(add_generation_prompt=False)),
        "continue_final_message": lambda: call(
            unfinished, add_generation_prompt=False, continue_final_message=True
        ).endswith("Well"),
        "tools": lambda: call(**shows_tools) == "find_audited",
        "chat_template_kwargs": lambda: call(**with_kwargs) == "as told",
    }
    return {one: holds(check, "the prompt does not show it") for one, check in checks.items()}


def _many_conversations() -> None:
    outputs = _chat([MESSAGES, [{"role": "user", "content": "Hello again"}]])
    expect(
        len(outputs) == 2 and outputs[0].prompt_token_ids != outputs[1].prompt_token_ids, "not two answers"
    )
    expect(len(_chat(MESSAGES)) == 1, "not one answer")


def _by_position() -> None:
    output = llm().chat(MESSAGES, _ONE, False, None, CHAT_TEMPLATE, "auto", False)[0]
    expect(output.prompt == "[Hello]", f"the prompt is {output.prompt!r}")


def _image() -> object:
    part = {"type": "image_url", "image_url": {"url": "data:image/png;base64,AAAA"}}
    return _asked([{"role": "user", "content": [part]}])


def _cut(call: Any, prompt: Any) -> Probe:
    def probe() -> None:
        call(prompt, _ONE, use_tqdm=False, tokenization_kwargs={"truncate_prompt_tokens": 2})
        output = llm().wait_for_completion(use_tqdm=False)[0]
        expect(len(output.prompt_token_ids) == 2, "the prompt is not cut")

    return probe


def _more_lengths() -> None:
    output = _chat(MESSAGES, sampling_params=SamplingParams(max_tokens=3, ignore_eos=True))[0]
    expect(len(output.outputs[0].token_ids) == 3, "another length")


CHAT: Final = Group(
    "LLM.chat",
    {
        "messages: one conversation, many": _many_conversations,
        "sampling_params": _more_lengths,
        "use_tqdm": lambda: _chat(MESSAGES, use_tqdm=False),
        **_templates(_asked),
        "add_generation_prompt and continue_final_message are refused together": raises(
            lambda: _asked(add_generation_prompt=True, continue_final_message=True), "continue_final_message"
        ),
        "returns RequestOutputs": holds(lambda: isinstance(_chat(MESSAGES)[0], baton.RequestOutput)),
        "lora_request": _adapter("chat", MESSAGES),
        "tokenization_kwargs": lambda: _chat(MESSAGES, tokenization_kwargs={"padding": True}),
        "multi-modal messages": _image,
        "mm_processor_kwargs": _no_multimodal("chat", MESSAGES),
        "chat_template and the rest by position": _by_position,
    },
)


def _enqueues(call: Any, *prompts: Any) -> Probe:
    """Each name is that of an output, in order."""

    def probe() -> None:
        names = call(list(prompts), _ONE, use_tqdm=False)
        outputs = llm().wait_for_completion(use_tqdm=False)
        expect(all(isinstance(one, str) for one in names), f"ids are {names!r}")
        expect([one.request_id for one in outputs] == list(names), "outputs have other ids")

    return probe


def _enqueue(*arguments: Any, **named: Any) -> Probe:
    """Arguments are taken, and an output comes."""

    def probe() -> None:
        llm().enqueue(*arguments, **named)
        expect(llm().wait_for_completion(use_tqdm=False), "no output comes")

    return probe


def _enqueue_chat(*arguments: Any, **named: Any) -> Probe:
    def probe() -> None:
        llm().enqueue_chat(*arguments, **named)
        expect(llm().wait_for_completion(use_tqdm=False), "no output comes")

    return probe


def _recipe() -> None:
    """Requests that are enqueued while scheduling is paused begin together."""
    llm().sleep(level=0)
    try:
        names = llm().enqueue_chat([MESSAGES, MESSAGES], _ONE, use_tqdm=False)
    finally:
        llm().wake_up(["scheduling"])
    outputs = llm().wait_for_completion(use_tqdm=False)
    expect([one.request_id for one in outputs] == list(names), "outputs are lost")


def _enqueue_call(*arguments: Any, **named: Any) -> Any:
    return llm().enqueue(*arguments, **named)


def _enqueue_chat_call(*arguments: Any, **named: Any) -> Any:
    return llm().enqueue_chat(*arguments, **named)


ENQUEUE: Final = Group(
    "LLM.enqueue",
    {
        "prompts": _enqueue([PROMPT, [1, 2]], _ONE),
        "sampling_params": _enqueue(PROMPT, _ONE),
        "priority": _enqueue([PROMPT], _ONE, priority=[0]),
        "tokenization_kwargs": _cut(_enqueue_call, PROMPT),
        "returns ids": _enqueues(_enqueue_call, PROMPT, [1, 2]),
        "lora_request": _adapter("enqueue", PROMPT, _ONE),
        "use_tqdm": _enqueue(PROMPT, _ONE, use_tqdm=False),
        "mm_processor_kwargs": _no_multimodal("enqueue", PROMPT),
        "lora_request and priority by position": _enqueue([PROMPT], _ONE, None, [0]),
    },
)
ENQUEUE_CHAT: Final = Group(
    "LLM.enqueue_chat",
    {
        "messages": _enqueue_chat(MESSAGES, _ONE),
        "sampling_params": _enqueue_chat(MESSAGES, _ONE),
        "priority": _enqueue_chat([MESSAGES], _ONE, priority=[0]),
        **_templates(_enqueued),
        "tokenization_kwargs": _cut(_enqueue_chat_call, MESSAGES),
        "returns ids": _enqueues(_enqueue_chat_call, MESSAGES, MESSAGES),
        "sleep(level=0), enqueue, wake_up": _recipe,
        "lora_request": _adapter("enqueue_chat", MESSAGES, _ONE),
        "use_tqdm": _enqueue_chat(MESSAGES, _ONE, use_tqdm=False),
        "mm_processor_kwargs": _no_multimodal("enqueue_chat", MESSAGES),
        "use_tqdm and the rest by position": _enqueue_chat(MESSAGES, _ONE, False, None),
    },
)
