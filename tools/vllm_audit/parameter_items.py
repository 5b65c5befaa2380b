"""`SamplingParams` and what requests return: each parameter is tried by what it changes in an output."""

from __future__ import annotations

import math
from collections.abc import Callable
from typing import Any, Final

import baton
from baton import RepetitionDetectionParams, SamplingParams, StructuredOutputsParams
from tools.vllm_audit.checkpoints import secondary_end_reason
from tools.vllm_audit.probes import all_of, attribute, gives, holds
from tools.vllm_audit.subjects import configured, expect, generated, llm
from tools.vllm_audit.verdict import Group, Probe

FORCED: Final = 42
END: Final = 2
SPECIAL: Final = 1
_LONG: Final = 24


def _ids(**params: Any) -> list[int]:
    return list(generated(**{"max_tokens": 8, **params}).outputs[0].token_ids)


def _text(**params: Any) -> str:
    return str(generated(**params).outputs[0].text)


def _changes(**params: Any) -> Probe:
    """A long greedy output becomes another one."""
    return holds(lambda: _ids(max_tokens=_LONG, **params) != _ids(max_tokens=_LONG), "the output is the same")


def _greedy(**params: Any) -> Probe:
    """A parameter leaves the likeliest token alone."""
    return holds(lambda: _ids(temperature=1.0, seed=3, **params) == _ids(), "the output is not the likeliest")


def _bad_words() -> None:
    word = llm().get_tokenizer().decode(_ids()[:1]).strip()
    expect(_ids(bad_words=[word])[0] != _ids()[0], f"{word!r} is generated")


def _ends(**params: Any) -> int:
    """The length of an output whose end token is the likeliest everywhere."""
    return len(_ids(logit_bias={END: 100.0}, **params))


def _stop() -> None:
    text = _text(max_tokens=8)
    stop = text[len(text) // 2 :][:2]
    output = generated(max_tokens=8, stop=[stop]).outputs[0]
    expect(
        output.finish_reason == "stop" and output.stop_reason == stop, f"it ends by {output.stop_reason!r}"
    )
    expect(not output.text.endswith(stop), "the stop string is part of the text")
    expect(_text(max_tokens=8, stop=[stop], include_stop_str_in_output=True).endswith(stop), "it is cut")


def _stop_token() -> None:
    token = _ids()[2]
    output = generated(max_tokens=8, stop_token_ids=[token]).outputs[0]
    expect(output.stop_reason == token, f"stop_reason is {output.stop_reason!r}")


def _seed() -> None:
    first, again, other = (_ids(temperature=1.0, seed=seed, max_tokens=_LONG) for seed in (1, 1, 2))
    expect(first == again != other, "a seed does not decide the output")


def _special_tokens(**params: Any) -> str:
    return _text(allowed_token_ids=[SPECIAL], ignore_eos=True, max_tokens=2, **params)


def _thinking() -> object:
    return generated(subject=configured(), thinking_token_budget=1)


def _masked_logprobs() -> None:
    choice = StructuredOutputsParams(choice=["yes", "no"])
    entry = generated(structured_outputs=choice, logprobs=5).outputs[0].logprobs[0]
    total = sum(math.exp(one.logprob) for one in entry.values() if one.logprob > -math.inf)
    expect(total > 0.99, f"listed tokens have {total:.3g} of the probability: they are those before the mask")


def _token_ranks() -> None:
    entry = generated(logprob_token_ids=[FORCED, FORCED + 1], max_tokens=1).outputs[0].logprobs[0]
    ranks = [entry[token].rank for token in (FORCED, FORCED + 1)]
    expect(ranks == [1, 2], "ranks are those among all tokens; vLLM numbers the list")


def _flat_logprobs() -> None:
    first = generated(prompt_logprobs=1, flat_logprobs=True).prompt_logprobs[0]
    expect(first == {}, f"the first position is {first!r}; vLLM has {{}}")


def _repetition() -> None:
    detection = RepetitionDetectionParams(max_pattern_size=1, min_pattern_size=1, min_count=3)
    output = generated(allowed_token_ids=[FORCED], max_tokens=16, repetition_detection=detection).outputs[0]
    expect(len(output.token_ids) < 16, "repetition goes on")
    expect(output.stop_reason == "repetition_detected", f"stop_reason is {output.stop_reason!r}")


def _defaults() -> None:
    params = SamplingParams()
    read = [getattr(params, name) for name in ("stop", "stop_token_ids", "bad_words")]
    expect(read == [[], [], []], f"they read {read}; vLLM's read []")


def _assigned() -> None:
    params = SamplingParams()
    params.max_tokens = 3
    params.temperature = 0.0
    output = llm().generate("The os module", params, use_tqdm=False)[0].outputs[0]
    expect(len(output.token_ids) == 3, "what is assigned has no effect")


def _cloned() -> None:
    params = SamplingParams(stop=["a"], max_tokens=3)
    clone = params.clone()
    expect(clone == params and clone is not params, "a clone is another value, or the same object")


def _from_generation_config() -> None:
    params = SamplingParams()
    params.update_from_generation_config({"eos_token_id": [END, FORCED]}, END)
    expect(FORCED in (params.stop_token_ids or ()), f"stop_token_ids are {params.stop_token_ids}")


def _takes(**params: Any) -> Probe:
    return lambda: SamplingParams(**params) and None


SAMPLING: Final = Group(
    "SamplingParams",
    {
        "allowed_token_ids": gives(lambda: set(_ids(allowed_token_ids=[FORCED])), {FORCED}),
        "bad_words": _bad_words,
        "detokenize": gives(lambda: _text(detokenize=False), ""),
        "extra_args": gives(lambda: SamplingParams(extra_args={"a": 1}).extra_args, {"a": 1}),
        "frequency_penalty": _changes(frequency_penalty=2.0),
        "ignore_eos": holds(lambda: _ends() == 1 and _ends(ignore_eos=True) == 8),
        "include_stop_str_in_output": _stop,
        "logit_bias": gives(lambda: set(_ids(logit_bias={FORCED: 200.0})), {FORCED}),
        "max_tokens": gives(lambda: len(_ids(max_tokens=3)), 3),
        "min_p": _greedy(min_p=1.0),
        "min_tokens": holds(lambda: _ends(min_tokens=3) == 4, "the end token comes earlier or later"),
        "n": gives(lambda: [one.index for one in generated(n=3, temperature=1.0).outputs], [0, 1, 2]),
        "presence_penalty": _changes(presence_penalty=2.0),
        "prompt_logprobs": holds(lambda: len(generated(prompt_logprobs=1).prompt_logprobs) > 1),
        "repetition_penalty": _changes(repetition_penalty=3.0),
        "seed": _seed,
        "skip_special_tokens": holds(
            lambda: _special_tokens() == "" != _special_tokens(skip_special_tokens=False)
        ),
        "spaces_between_special_tokens": holds(
            lambda: _special_tokens(skip_special_tokens=False, spaces_between_special_tokens=False)
        ),
        "stop": _stop,
        "stop_token_ids": _stop_token,
        "structured_outputs": holds(
            lambda: _text(structured_outputs=StructuredOutputsParams(choice=["yes", "no"])) in ("yes", "no")
        ),
        "temperature": holds(lambda: len({tuple(_ids(temperature=1.5, seed=one)) for one in range(3)}) > 1),
        "thinking_token_budget": _thinking,
        "top_k": _greedy(top_k=1),
        "top_p": _greedy(top_p=1e-6),
        "n up to VLLM_MAX_N_SEQUENCES": gives(lambda: len(generated(n=100, temperature=1.0).outputs), 100),
        "num_logprobs": gives(lambda: SamplingParams(logprobs=3).num_logprobs, 3),
        "skip_clone": _takes(skip_clone=True),
        "routed_experts_prompt_start": _takes(routed_experts_prompt_start=1),
        "clone()": _cloned,
        "for_sampler_warmup()": holds(
            lambda: isinstance(SamplingParams.for_sampler_warmup(), SamplingParams)
        ),
        "update_from_generation_config()": _from_generation_config,
        "_validate_logit_bias()": attribute(lambda: SamplingParams, "_validate_logit_bias"),
        "assigning to a field": _assigned,
        "positional arguments": gives(
            lambda: (SamplingParams(2).n, SamplingParams(1, 0.5).presence_penalty), (2, 0.5)
        ),
        "logprobs": _masked_logprobs,
        "logprob_token_ids": _token_ranks,
        "flat_logprobs": _flat_logprobs,
        "repetition_detection": _repetition,
        "defaults of stop, stop_token_ids, bad_words": _defaults,
    },
)

# --- outputs ---

_STATS: Final = (
    *(
        "num_generation_tokens",
        "arrival_time",
        "queued_ts",
        "scheduled_ts",
        "first_token_ts",
        "last_token_ts",
    ),
    *("first_token_latency", "is_corrupted", "num_preemptions"),
)


def _output() -> Any:
    return generated(logprobs=1)


def _has(name: str, check: Callable[[Any], object] = lambda value: True) -> Probe:
    return lambda: expect(check(getattr(_output(), name)), f"it is {getattr(_output(), name)!r}")


def _completion(name: str, check: Callable[[Any], object] = lambda value: True) -> Probe:
    def probe() -> None:
        value = getattr(_output().outputs[0], name)
        expect(check(value), f"it is {value!r}")

    return probe


def _metrics() -> None:
    metrics = _output().metrics
    absent = [name for name in _STATS if not hasattr(metrics, name)]
    expect(not absent, f"it lacks {', '.join(absent)}")


def _made() -> Any:
    first = baton.CompletionOutput(0, "a", [1], None, None)
    return baton.RequestOutput("0", "p", [7], None, [first], False)


def _by_position() -> None:
    made = _made()
    expect(
        (made.request_id, made.prompt, made.prompt_token_ids, made.finished) == ("0", "p", [7], False),
        "another order",
    )


def _added() -> None:
    made, more = _made(), _made()
    more.finished = True
    made.add(more, aggregate=True)
    expect(made.finished and list(made.outputs[0].token_ids) == [1, 1], f"it becomes {made!r}")


def _is_none(value: Any) -> bool:
    return value is None


REQUEST_OUTPUT: Final = Group(
    "RequestOutput",
    {
        "request_id": _has("request_id", str.isdigit),
        "prompt": _has("prompt", lambda prompt: prompt == "The os module"),
        "prompt_token_ids": _has("prompt_token_ids", lambda ids: isinstance(ids, list) and ids),
        "prompt_logprobs": _has("prompt_logprobs", _is_none),
        "outputs": _has("outputs", lambda outputs: len(outputs) == 1),
        "finished": _has("finished", lambda finished: finished is True),
        "num_cached_tokens": _has("num_cached_tokens", lambda number: isinstance(number, int)),
        "kv_transfer_params": _has("kv_transfer_params", _is_none),
        "metrics": _metrics,
        "lora_request": _has("lora_request", _is_none),
        "encoder_prompt": _has("encoder_prompt", _is_none),
        "encoder_prompt_token_ids": _has("encoder_prompt_token_ids", _is_none),
        "add(next_output, aggregate)": _added,
        "construction by position": _by_position,
    },
)


def _half_character(**params: Any) -> Any:
    """The output of one token that is the first byte of a character of two."""
    half = llm().get_tokenizer().convert_tokens_to_ids("\u00c3")
    return generated(allowed_token_ids=[half], max_tokens=1, **params).outputs[0]


def _half_token() -> None:
    (entry,) = _half_character(logprobs=0).logprobs[0].values()
    expect(entry.decoded_token == "", f"decoded_token is {entry.decoded_token!r}")


def _completion_by_position() -> None:
    made = baton.CompletionOutput(0, "a", [1], -0.5, None)
    expect((made.text, made.token_ids, made.cumulative_logprob) == ("a", [1], -0.5), "another order")


def _completion_assigned() -> None:
    made = _output().outputs[0]
    made.text = "b"
    expect(made.text == "b", "it keeps its text")


COMPLETION_OUTPUT: Final = Group(
    "CompletionOutput",
    {
        "index": _completion("index", lambda index: index == 0),
        "token_ids": _completion("token_ids", lambda ids: len(ids) == 4),
        "cumulative_logprob": _completion("cumulative_logprob", lambda value: value < 0),
        "finish_reason": _completion("finish_reason", lambda reason: reason == "length"),
        "text": all_of(_completion("text"), gives(lambda: _half_character().text, "")),
        "logprobs": all_of(_completion("logprobs", lambda entries: len(entries) == 4), _half_token),
        "stop_reason": gives(lambda: secondary_end_reason(FORCED), FORCED),
        "lora_request": _completion("lora_request", _is_none),
        "construction by position": _completion_by_position,
        "assigning to a field": _completion_assigned,
    },
)
