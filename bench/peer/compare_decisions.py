"""Differences between Baton's answers and vLLM's that are on purpose, each with the reason."""

from __future__ import annotations

from collections.abc import Mapping
from fnmatch import fnmatchcase
from typing import Final

_ERROR_BODY: Final = "errors have OpenAI's body; `detail` is there as well where no route is found"
_RICHER: Final = "a stream's chunks have the keys of whole answers"
DECISIONS: Final[Mapping[str, str]] = {
    # sampling parameters
    "n 2, greedy: not refused": "n equal outputs are what was asked for",
    "temperature 3: not refused": "a temperature has no upper bound",
    "text keys in logit_bias: not refused": "keys are text in JSON, so text is read in Python too",
    "logprob_token_ids: ranks": "a rank is the one among all tokens, as in logprobs",
    "choice with logprobs: listed tokens": "tokens that the grammar excludes are not listed",
    "json schema: *": "disable_any_whitespace is honoured; vLLM ignores it",
    # requests that are taken here
    "model_one: status 404, here 200": "OpenAI's API has this route",
    "root: status 404, here 200": "a page to chat on",
    "head_health: status 405, here 200": "HEAD is answered wherever GET is",
    "generate: status 403, here 200": "tokens in, tokens out needs no switch",
    "render: status 403, here 200": "a prompt can be rendered without a switch",
    "no_ct: status 400, here 200": "a body without a content type is read as JSON",
    "chat_n2_greedy: status 400, here 200": "n equal choices are what was asked for",
    "chat_temp3: status 400, here 200": "a temperature has no upper bound",
    "chat_max_huge: status 400, here 200": "any max_tokens is cut to what the context leaves",
    "chat_mm_processor_kwargs: status 400, here 200": "accepted and ignored: models of text alone are served",
    "stop5: status 400, here 200": "more stop strings than OpenAI's four are taken",
    "content_str_parts: status 400, here 200": "a list of texts is read as parts of text",
    "json_schema_unsup: status 500, here 200": "vLLM fails; the other grammar library supports the keyword",
    # requests that are refused here
    "chat_batch: status 200, here 404": "one call for each conversation; the router batches them",
    "wrong_ct: status 400, here 415": "415 is HTTP's status for it",
    "chat_functions: status 200, here 400": "tools that are ignored change the answer",
    "*_best_of: status 200, here 400": "vLLM ignores it, which changes the answer",
    "*_beam: status 200, here 400": "a server does no beam search; LLM.beam_search does",
    "chat_kv: status 200, here 400": "the router chooses workers and moves blocks itself",
    "chat_n200: status 200, here 400": "sequences take memory; --max-n-sequences allows more",
    "web_search: status 200, here 400": "the model searches nowhere, and an answer would pretend it",
    # keys
    "*: without null *": "keys without a value are left out, but for those that clients read",
    "*: with *resume_token": "a broken stream can be resumed",
    "*: with *prompt_tokens_details*": "cached tokens are always told",
    "*: with *refusal": "OpenAI's API has it",
    "*: with *reasoning_content": "older clients read this name of message.reasoning",
    "*: with error": _ERROR_BODY,
    "*: without detail": _ERROR_BODY,
    "*: with *service_tier": _RICHER,
    "*: with *kv_transfer_params": _RICHER,
    "*: with *prompt_logprobs": _RICHER,
    "*tools_required: with *tool_calls": "a forced call that is cut stays a call",
    "chat_echo: without prompt_logprobs*": "prompt_logprobs come where they are asked for",
    "comp_echo_lp: without *prompt_logprobs*": "an echo's log-probabilities are in logprobs",
    "models: without *permission*": "OpenAI's API has dropped permissions",
    "openapi: with *": "the description has a text, servers and tags",
    "trailing_slash: text": "a redirect has a body that says where to",
    # results
    "chat_guided_*: another *": "the older names of constraints are honoured; vLLM ignores them",
    "chat_tools_*: another *": "a forced call has its tool's schema; vLLM's arguments are any JSON",
    "comp_echo_max0: another usage.completion_tokens": "max_tokens 0 makes no token; vLLM makes one",
    "comp_echo_stream: another *prompt_token_ids": "token ids come where return_token_ids asks for them",
}
"""`name: difference`, either with `*` for anything."""


def decision_of(name: str, difference: str) -> str:
    """Return why a difference is on purpose, and nothing for one that is not."""
    text = f"{name}: {difference}"
    return next((why for pattern, why in DECISIONS.items() if fnmatchcase(text, pattern)), "")
