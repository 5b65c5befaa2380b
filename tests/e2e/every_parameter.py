"""Requests that use every sampling parameter between them, and the logits processor that one names."""

from __future__ import annotations

from typing import Any, Final

from torch import Tensor

from baton import RepetitionDetectionParams, SamplingParams, StructuredOutputsParams

PROCESSOR: Final = f"{__name__}:favour"
THINK: Final = 31
"""The bundled model's token that `<think>` begins with."""
SCHEMA: Final = {
    "type": "object",
    "properties": {"name": {"enum": ["a", "bc"]}, "size": {"type": "integer", "minimum": 0, "maximum": 99}},
    "required": ["name", "size"],
    "additionalProperties": False,
}
TAG: Final = {
    "type": "structural_tag",
    "format": {
        "type": "tag",
        "begin": "[a]",
        "content": {"type": "regex", "pattern": "[xy]{3}"},
        "end": "[b]",
    },
}


def favour(
    prompt_token_ids: list[int], output_token_ids: list[int], logits: Tensor, extra_args: Any
) -> Tensor:
    """Make one token more likely, that the prompt and the number of tokens so far choose."""
    token_id = prompt_token_ids[len(output_token_ids) % len(prompt_token_ids)]
    logits[token_id] += extra_args["bias"]
    return logits


def _drawn(**params: Any) -> SamplingParams:
    return SamplingParams(**{"seed": 11, "max_tokens": 16, "ignore_eos": True, **params})


def _formed(**form: Any) -> SamplingParams:
    """Thinking, which would come before the form, is made impossible."""
    form_params = StructuredOutputsParams(**form)
    biases = {THINK: -100.0}
    return SamplingParams(
        seed=5, max_tokens=40, logit_bias=biases, structured_outputs=form_params, logprobs=4
    )


EVERY: Final[dict[str, SamplingParams]] = {
    "presence_penalty": _drawn(presence_penalty=1.5),
    "frequency_penalty": _drawn(frequency_penalty=1.5, temperature=0.0),
    "repetition_penalty": _drawn(repetition_penalty=1.3, temperature=0.0),
    "temperature": _drawn(temperature=1.5),
    "top_p": _drawn(top_p=0.5),
    "top_k": _drawn(top_k=3),
    "min_p": _drawn(min_p=0.2),
    "n": _drawn(n=4, logprobs=1),
    "stop": _drawn(stop=("e", " "), include_stop_str_in_output=True, max_tokens=40, min_tokens=3),
    "stop_token_ids": _drawn(stop_token_ids=tuple(range(60, 1000)), max_tokens=40, min_tokens=3),
    "end": SamplingParams(seed=3, max_tokens=40),
    "min_tokens": SamplingParams(seed=3, max_tokens=20, min_tokens=12, stop=(" ",)),
    "logprobs": _drawn(logprobs=5, flat_logprobs=True),
    "logprob_token_ids": _drawn(logprob_token_ids=(7, 8, 900)),
    "prompt_logprobs": _drawn(prompt_logprobs=3, logprobs=0),
    "logit_bias": _drawn(logit_bias={70: 8.0, 71: -100.0}),
    "allowed_token_ids": _drawn(allowed_token_ids=tuple(range(60, 90))),
    "bad_words": _drawn(temperature=0.0, bad_words=("the", "a", "import", "def")),
    "detokenize": _drawn(detokenize=False),
    "special_tokens": _drawn(skip_special_tokens=False, spaces_between_special_tokens=False),
    "json": _formed(json=SCHEMA, disable_any_whitespace=True),
    "regex": _formed(regex="[ab]{2,6}c"),
    "choice": _formed(choice=["left", "right", "up"]),
    "grammar": _formed(grammar='root ::= ("x" | "y" | "z"){3,9} "!"'),
    "json_object": _formed(json_object=True, disable_any_whitespace=True),
    "structural_tag": _formed(structural_tag=TAG),
    "repetition_detection": _drawn(
        logit_bias={70: 100.0},
        repetition_detection=RepetitionDetectionParams(max_pattern_size=3, min_count=4),
    ),
    "thinking_token_budget": _drawn(thinking_token_budget=4, logit_bias={70: 3.0}),
    "logits_processors": _drawn(logits_processors=(PROCESSOR,), extra_args={"bias": 6.0}),
    "skip_reading_prefix_cache": _drawn(skip_reading_prefix_cache=True),
    "unlimited": SamplingParams(seed=1, max_tokens=None, stop_token_ids=tuple(range(4, 1000)), min_tokens=5),
}
