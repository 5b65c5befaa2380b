"""The methods of `LLM` for models that pool: embeddings, classes and scores."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from contextlib import AbstractContextManager
from typing import Any, TypeAlias

from baton.api.llm_engine import LLMEngine
from baton.api.offline_requests import OfflineRequests
from baton.api.progress import UseTqdm
from baton.api.prompts import as_list, one_each
from baton.api.refused import refuse_unsupported
from baton.api.turns import in_turn
from baton.inputs import PromptType
from baton.pooling_outputs import (
    ClassificationRequestOutput,
    EmbeddingRequestOutput,
    PoolingOutput,
    PoolingRequestOutput,
    ScoringOutput,
    ScoringRequestOutput,
)
from baton.pooling_params import PoolingParams
from baton_core.errors import InvalidRequestError
from baton_core.requests.pooling import PoolingModel, PoolingTask, cannot_pool
from baton_router.requests.pooling import pair_counts, pair_prompt, similarity

Poolings: TypeAlias = PoolingParams | Sequence[PoolingParams]
"""Pooling parameters for all prompts, or one for each."""


class PoolingMethods:
    """A part of `LLM`. Every method raises InvalidRequestError on a model that generates."""

    llm_engine: LLMEngine
    _offline: OfflineRequests
    _turn: AbstractContextManager[Any]

    @in_turn
    def encode(
        self,
        prompts: PromptType | Sequence[PromptType],
        pooling_params: Poolings | None = None,
        use_tqdm: UseTqdm = True,
        lora_request: None = None,
        pooling_task: str | None = None,
        tokenization_kwargs: Mapping[str, Any] | None = None,
    ) -> list[PoolingRequestOutput[PoolingOutput]]:
        """Pool the hidden states of prompts: text, token ids, `TextPrompt` or `TokensPrompt`, one or many.

        Args:
            pooling_params: for all prompts, or one for each; None is the model's way.
            pooling_task: embed, classify, score, token_embed or token_classify; None is the model's first.

        Raises:
            InvalidRequestError: a prompt or parameter is out of range, or the model cannot do that; nothing
                was pooled.
            RequestError: a request failed, or the engine sleeps.
        """
        refuse_unsupported(lora_request=lora_request)
        self.llm_engine.require_awake()
        given = as_list(prompts)
        params = one_each("pooling_params", pooling_params, PoolingParams(), len(given))
        of_task = [_of_task(one, pooling_task) for one in params]
        names = self._offline.enqueue(given, of_task, None, tokenization_kwargs, use_tqdm)
        outputs: list[Any] = self._offline.wait(names, use_tqdm)
        return outputs

    def embed(
        self,
        prompts: PromptType | Sequence[PromptType],
        pooling_params: Poolings | None = None,
        use_tqdm: UseTqdm = True,
        lora_request: None = None,
        tokenization_kwargs: Mapping[str, Any] | None = None,
    ) -> list[EmbeddingRequestOutput]:
        """Return an embedding of each prompt, in their order; the rest is as in `encode`."""
        outputs = self.encode(
            prompts, pooling_params, use_tqdm, lora_request, PoolingTask.EMBED, tokenization_kwargs
        )
        return [EmbeddingRequestOutput.from_base(output) for output in outputs]

    def classify(
        self,
        prompts: PromptType | Sequence[PromptType],
        pooling_params: Poolings | None = None,
        use_tqdm: UseTqdm = True,
        lora_request: None = None,
        tokenization_kwargs: Mapping[str, Any] | None = None,
    ) -> list[ClassificationRequestOutput]:
        """Return the classes of each prompt, in their order; the rest is as in `encode`."""
        outputs = self.encode(
            prompts, pooling_params, use_tqdm, lora_request, PoolingTask.CLASSIFY, tokenization_kwargs
        )
        return [ClassificationRequestOutput.from_base(output) for output in outputs]

    def reward(
        self,
        prompts: PromptType | Sequence[PromptType],
        pooling_params: Poolings | None = None,
        use_tqdm: UseTqdm = True,
        lora_request: None = None,
        tokenization_kwargs: Mapping[str, Any] | None = None,
    ) -> list[PoolingRequestOutput[PoolingOutput]]:
        """Return the rewards of each prompt's tokens; the rest is as in `encode`."""
        return self.encode(
            prompts, pooling_params, use_tqdm, lora_request, PoolingTask.TOKEN_CLASSIFY, tokenization_kwargs
        )

    def score(
        self,
        data_1: str | Sequence[str],
        data_2: str | Sequence[str],
        /,
        *,
        use_tqdm: UseTqdm = True,
        pooling_params: PoolingParams | None = None,
        lora_request: None = None,
        tokenization_kwargs: Mapping[str, Any] | None = None,
        chat_template: str | None = None,
    ) -> list[ScoringRequestOutput]:
        """Return the scores of pairs: one text with each of many, or each with its counterpart.

        A cross-encoder reads each pair; a model that embeds gives the cosine of two embeddings, one that
        embeds tokens the sum over the first text's tokens of their closest match in the second.

        Args:
            chat_template: Jinja source that makes the prompt of a pair, of messages with the roles query and
                document; None puts the texts together as the tokenizer does.

        Raises:
            InvalidRequestError: something is no text, the numbers of texts do not fit, or the model cannot
                score.
            RequestError: a request failed, or the engine sleeps.
        """
        refuse_unsupported(lora_request=lora_request)
        self.llm_engine.require_awake()
        first, second = _texts("data_1", data_1), _texts("data_2", data_2)
        first = first * pair_counts(len(first), len(second))
        model = self._require_pooling()
        params = pooling_params or PoolingParams()
        options: dict[str, Any] = {"use_tqdm": use_tqdm, "tokenization_kwargs": tokenization_kwargs}
        if model.scores_by is PoolingTask.CLASSIFY:
            prompts: list[Any] = [
                pair_prompt(*both, chat_template) for both in zip(first, second, strict=True)
            ]
            outputs = self.encode(prompts, params, pooling_task=PoolingTask.CLASSIFY, **options)
            return [ScoringRequestOutput.from_base(output) for output in outputs]
        if model.scores_by is None:
            allowed = "score with a model that embeds, or has one class"
            raise InvalidRequestError("task", "score", f"{', '.join(model.tasks)}; {allowed}")
        ones = self.encode([*first, *second], params, pooling_task=model.scores_by, **options)
        return [
            _scored(one, other) for one, other in zip(ones[: len(first)], ones[len(first) :], strict=True)
        ]

    def _require_pooling(self) -> PoolingModel:
        if (model := self.llm_engine.pooling) is None:
            raise cannot_pool("score")
        return model


def _texts(field: str, data: str | Sequence[str]) -> list[str]:
    texts = [data] if isinstance(data, str) else data
    if not isinstance(texts, Sequence) or not all(isinstance(text, str) for text in texts):
        raise InvalidRequestError(field, data, "a text, or a list of texts")
    return list(texts)


def _of_task(params: PoolingParams, task: str | None) -> PoolingParams:
    if not isinstance(params, PoolingParams):
        raise InvalidRequestError("pooling_params", params, "PoolingParams, or one for each prompt")
    return params.with_task(task)


def _scored(
    one: PoolingRequestOutput[PoolingOutput], other: PoolingRequestOutput[PoolingOutput]
) -> ScoringRequestOutput:
    first, second = one.outputs.data, other.outputs.data
    if first.ndim == 1:
        score = similarity(first.tolist(), second.tolist())
    else:
        score = float((first @ second.T).max(dim=1).values.sum())
    return ScoringRequestOutput(
        request_id=f"{one.request_id}_{other.request_id}",
        outputs=ScoringOutput(score),
        prompt_token_ids=[*one.prompt_token_ids, *other.prompt_token_ids],
        num_cached_tokens=one.num_cached_tokens + other.num_cached_tokens,
        finished=True,
    )
