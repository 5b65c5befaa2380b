"""The requests of one `LLM`: taken all at once or none of them, shown when they are over."""

from __future__ import annotations

from collections.abc import Iterable, Mapping, Sequence
from typing import Any, TypeAlias

from baton.api.llm_engine import LLMEngine
from baton.api.open_requests import AnyOutput, Builder
from baton.api.progress import Progress, UseTqdm, counted
from baton.api.prompts import one_each
from baton.api.request_builder import RequestOptions
from baton.inputs import PromptType
from baton.lora import LoRARequest
from baton.pooling_params import PoolingParams
from baton.sampling_params import RequestOutputKind, SamplingParams
from baton_router.text.chat_template import Conversation
from baton_router.text.prompts import TextPair

Params: TypeAlias = SamplingParams | Sequence[SamplingParams]
"""Sampling parameters for all prompts, or one for each."""
LoRARequests: TypeAlias = LoRARequest | Sequence[LoRARequest | None] | None
"""An adapter for all prompts, or one or None for each."""
AnyParams: TypeAlias = Params | PoolingParams | Sequence[PoolingParams]


class OfflineRequests:
    """Steps an engine until the requests that a caller waits for are over."""

    def __init__(self, engine: LLMEngine) -> None:
        self._engine = engine
        self._enqueued: list[str] = []
        """Ids of enqueued requests that no caller has waited for; other ends are noted by the next wait."""

    @property
    def unfinished(self) -> list[str]:
        """Ids of the requests that no caller has waited for: first the enqueued ones, in their order."""
        unfinished = self._engine.unfinished_requests
        enqueued = set(self._enqueued).intersection(unfinished)
        in_order = [name for name in self._enqueued if name in enqueued]
        return in_order + [name for name in unfinished if name not in enqueued]

    def enqueue(
        self,
        prompts: Sequence[PromptType | Conversation | TextPair],
        params: AnyParams | None,
        priority: Sequence[int] | None,
        tokenization_kwargs: Mapping[str, Any] | None,
        use_tqdm: UseTqdm,
        lora_request: LoRARequests = None,
    ) -> list[str]:
        """Check all requests, then submit them; a caller waits for them later. Returns their ids.

        Raises:
            InvalidRequestError: a prompt or parameter is out of range; nothing was taken.
            RequestError: UNAVAILABLE, the engine sleeps.
        """
        engine, num_prompts = self._engine, len(prompts)
        default: Any = engine.requests.default_params if engine.pooling is None else PoolingParams()
        field = "sampling_params" if engine.pooling is None else "pooling_params"
        all_params: list[Any] = one_each(field, params, default, num_prompts)
        priorities = one_each("priority", priority, 0, num_prompts)
        adapters = one_each("lora_request", lora_request, None, num_prompts)
        builders = []
        each = zip(counted(prompts, use_tqdm), all_params, priorities, adapters, strict=True)
        for prompt, one, rank, adapter in each:
            options = RequestOptions(
                priority=rank,
                kind=RequestOutputKind.FINAL_ONLY,
                tokenization=tokenization_kwargs,
                lora_request=adapter,
            )
            builder = engine.requests.build(
                prompt, one, options, max_model_len=engine.max_model_len, pooling=engine.pooling
            )
            builders.append(builder)
        self._submit(builders)
        names = [builder.request_id for builder in builders]
        self._enqueued += names
        return names

    def wait(self, names: Sequence[str], use_tqdm: UseTqdm) -> list[Any]:
        """Step until these requests are over; what others have to show stays with the engine.

        Raises:
            RequestError: a request failed, perhaps one of the others; these are over.
        """
        engine, missing = self._engine, set(names)
        outputs: dict[str, AnyOutput] = {}
        try:
            with Progress(len(missing), use_tqdm) as progress:
                while missing:
                    for output in engine.step(missing):
                        missing.discard(output.request_id)
                        outputs[output.request_id] = output
                        progress.add(output)
        except BaseException as error:
            # An interrupt may have cut a step short: what it brought the others is lost.
            lost = () if isinstance(error, Exception) else engine.open_requests
            engine.abort_request([*missing, *lost])
            raise
        finally:
            open_names = set(engine.unfinished_requests).difference(names)
            self._enqueued = [name for name in self._enqueued if name in open_names]
        return [outputs[name] for name in names]

    def _submit(self, builders: Iterable[Builder]) -> None:
        """Submit all requests, by their priorities: an executor runs a part of them at a time.

        Raises:
            BatonError: one was refused; none of them is open.
        """
        submitted: list[str] = []
        try:
            for builder in sorted(builders, key=lambda builder: builder.spec.priority):
                self._engine.submit(builder)
                submitted.append(builder.request_id)
        except BaseException:
            self._engine.abort_request(submitted)
            raise
