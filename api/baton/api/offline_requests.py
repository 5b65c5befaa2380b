"""The requests of one `LLM`: taken all at once or enqueued, shown when they are over."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Any, TypeAlias

from baton.api.llm_engine import AnyOutput, LLMEngine
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
        self._enqueued: dict[str, AnyOutput | None] = {}
        """Enqueued requests that no caller waits for yet, each with its output once it has ended."""

    @property
    def enqueued(self) -> list[str]:
        """Ids of the requests that no caller has waited for, in their order."""
        return list(self._enqueued)

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
        # An executor runs a part of them at a time.
        for builder in sorted(builders, key=lambda builder: builder.spec.priority):
            engine.submit(builder)
        names = [builder.request_id for builder in builders]
        self._enqueued |= dict.fromkeys(names)
        return names

    def wait(self, names: Sequence[str], use_tqdm: UseTqdm) -> list[Any]:
        """Step until these requests are over; outputs of others are stored for them meanwhile.

        Raises:
            RequestError: a request failed, perhaps one of the others; these are over.
        """
        engine = self._engine
        missing = set(names)
        outputs: dict[str, AnyOutput] = {
            name: output for name in names if (output := self._enqueued.get(name)) is not None
        }
        missing -= outputs.keys()
        try:
            with Progress(len(missing), use_tqdm) as progress:
                while missing:
                    for output in engine.step():
                        if output.request_id in missing:
                            missing.discard(output.request_id)
                            outputs[output.request_id] = output
                            progress.add(output)
                        else:
                            self._enqueued[output.request_id] = output
        except BaseException as error:
            # An interrupt may have cut a step short: what the others had brought is lost.
            engine.abort_request(missing if isinstance(error, Exception) else engine.open_requests)
            alive = set(engine.open_requests)
            self._enqueued = {
                name: output for name, output in self._enqueued.items() if output or name in alive
            }
            raise
        finally:
            for name in names:
                self._enqueued.pop(name, None)
        return [outputs[name] for name in names]
