"""Beam searches for the prompts of a call, at one engine."""

from __future__ import annotations

from collections.abc import Sequence
from functools import partial
from pathlib import Path

from baton.api.beam_search import BeamSearch, BeamSearchOutput, Generate, run_searches
from baton.api.llm_engine import LLMEngine
from baton.api.offline_requests import LoRARequests
from baton.api.progress import UseTqdm, counted
from baton.api.prompts import one_each
from baton.api.request_builder import RequestOptions
from baton.inputs import PromptType, TokensPrompt
from baton.sampling_params import BeamSearchParams
from baton_core.errors import InvalidRequestError
from baton_engine.models.registry import read_model_config


def search_prompts(
    engine: LLMEngine,
    prompts: Sequence[PromptType],
    params: BeamSearchParams,
    generate: Generate,
    *,
    lora_request: LoRARequests,
    use_tqdm: UseTqdm,
    concurrency_limit: int | None,
) -> list[BeamSearchOutput]:
    """Return the completions of each prompt; `concurrency_limit` prompts at a time, None for all.

    Raises:
        InvalidRequestError: a prompt or a parameter is out of range.
        RequestError: a request failed, or the engine sleeps.
    """
    if not isinstance(params, BeamSearchParams):
        raise InvalidRequestError("params", params, "BeamSearchParams")
    params.check()
    limit = concurrency_limit
    if limit is not None and (isinstance(limit, bool) or not isinstance(limit, int) or limit < 1):
        raise InvalidRequestError("concurrency_limit", limit, "an integer of at least 1, or None")
    args = engine.args
    if 0 <= args.max_logprobs < 2 * params.beam_width:
        allowed = f"1 to {args.max_logprobs // 2}, half of max_logprobs"
        raise InvalidRequestError("beam_width", params.beam_width, allowed)
    end_ids = read_model_config(Path(args.model), overrides=args.hf_overrides or {}).eos_token_ids
    searches = []
    adapters = one_each("lora_request", lora_request, None, len(prompts))
    for prompt, adapter in zip(prompts, adapters, strict=True):
        options = RequestOptions(lora_request=adapter)
        spec = engine.requests.build(prompt, None, options, max_model_len=engine.max_model_len).spec
        if spec.prompt_embeds:
            raise InvalidRequestError("prompt_embeds", "given", "text or token ids in beam search")
        tokens = TokensPrompt(prompt_token_ids=spec.prompt_token_ids, cache_salt=spec.cache_salt)
        max_tokens = min(params.max_tokens, engine.max_model_len - len(spec.prompt_token_ids))
        searches.append(BeamSearch(tokens, params, max_tokens=max_tokens, end_ids=end_ids, adapter=adapter))
    at_once = limit or max(len(searches), 1)
    groups = [searches[start : start + at_once] for start in range(0, len(searches), at_once)]
    for group in counted(groups, use_tqdm, "Searching"):
        run_searches(group, params, generate)
    decode = partial(engine.requests.tokenizer.decode, skip_special_tokens=params.skip_special_tokens)
    return [search.output(decode) for search in searches]
