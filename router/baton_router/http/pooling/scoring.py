"""POST /score and /rerank, under all their paths: how well pairs of texts go together."""

from __future__ import annotations

from collections.abc import Sequence
from functools import partial
from typing import Any, Final, Literal, NamedTuple

import msgspec

from baton_core.errors import InvalidRequestError
from baton_core.requests.pooling import PoolingModel, PoolingTask
from baton_router.http.calls import Call
from baton_router.http.pooling.cohere import COHERE, ApiVersion
from baton_router.http.pooling.requests import (
    ListReply,
    fields_of,
    list_reply,
    pool,
    pooled_model,
    task_request,
    usage_of_prompts,
)
from baton_router.http.pooling.schemas import (
    PairFields,
    PoolingUsage,
    RerankRequest,
    ScoreRequest,
    TextItem,
    Texts,
)
from baton_router.http.route import GENERATING, Routes, Tag
from baton_router.requests.generation import Finished
from baton_router.requests.pooling import (
    floats_of,
    lacks_task,
    late_interaction,
    pair_counts,
    pair_prompt,
    similarity,
)
from baton_router.text.prompts import Prompt, TextPair
from baton_router.text.tokenization import Tokenizer

ROUTES: Final = Routes(method="POST", tag=Tag.POOLING, errors=GENERATING)
_DOCUMENTS: Final = ["os.path joins paths.", "json reads JSON."]
_FIRST = ("text_1", "data_1", "queries")
_SECOND = ("text_2", "data_2", "documents", "items")


class ScoreItem(msgspec.Struct, kw_only=True):
    """The score of one pair."""

    index: int
    object: Literal["score"] = "score"
    score: float


class ScoreReply(ListReply, kw_only=True):
    """The scores of all pairs."""

    data: list[ScoreItem]


class RankedDocument(msgspec.Struct, kw_only=True):
    """A document as it was given."""

    text: str


class RankedItem(msgspec.Struct, kw_only=True):
    """A document and its score."""

    index: int
    """The document's place in the request."""
    document: RankedDocument | msgspec.UnsetType = msgspec.UNSET
    relevance_score: float


class RerankReply(msgspec.Struct, kw_only=True):
    """Documents, the one that fits best first."""

    id: str
    model: str
    usage: PoolingUsage
    results: list[RankedItem]


class RerankMeta(msgspec.Struct, kw_only=True):
    """Facts of a call."""

    api_version: ApiVersion


class CohereRerankReply(RerankReply, kw_only=True):
    """The same, for Cohere's clients."""

    meta: RerankMeta


class _Texts(NamedTuple):
    """The texts of a field."""

    field: str
    texts: list[str]


_score: Final = partial(ROUTES.route, example={"text_1": "How are paths joined?", "text_2": _DOCUMENTS})
_rerank: Final = partial(ROUTES.route, example={"query": "How are paths joined?", "documents": _DOCUMENTS})


@_score("/score", "score", "Score pairs of texts")
@_score("/v1/score", "scoreV1", "Score pairs of texts, as at /score")
async def score(call: Call[ScoreRequest]) -> ScoreReply:
    """Reply with the score of each pair.

    Raises:
        InvalidRequestError: a field is wrong, or the model cannot score; the message names the field.
        RequestError: as `pool`.
    """
    body = call.body
    scores, ends = await _score_pairs(call, body, _texts(body, _FIRST), _texts(body, _SECOND))
    items = [ScoreItem(index=index, score=one) for index, one in enumerate(scores)]
    return list_reply(ScoreReply, call, "score", items, ends)


@_rerank("/rerank", "rerank", "Order documents by how well they answer a query")
@_rerank(
    "/v1/rerank",
    "rerankV1",
    "Order documents by how well they answer a query, as Cohere's first version has it",
)
async def rerank(call: Call[RerankRequest]) -> RerankReply:
    """Reply with the documents in the order of their scores.

    Raises:
        InvalidRequestError: a field is wrong, or the model cannot score; the message names the field.
        RequestError: as `pool`.
    """
    body = call.body
    if body.top_n is not None and body.top_n < 0:
        raise InvalidRequestError("top_n", body.top_n, "an integer of at least 0; 0 means all")
    if body.documents == []:
        raise InvalidRequestError("documents", [], "at least one document")
    documents = texts_of("documents", body.documents)
    query = _Texts("query", [_text("query", body.query)])
    scores, ends = await _score_pairs(call, body, query, _Texts("documents", documents))
    order = sorted(range(len(scores)), key=lambda index: -scores[index])
    has_documents = body.return_documents is not False
    return RerankReply(
        id=f"rerank-{call.request_id}",
        model=body.model or call.state.service.model_names[0],
        usage=usage_of_prompts(ends),
        results=[
            RankedItem(
                index=index,
                document=RankedDocument(text=documents[index]) if has_documents else msgspec.UNSET,
                relevance_score=scores[index],
            )
            for index in order[: body.top_n or len(order)]
        ],
    )


@_rerank(
    "/v2/rerank",
    "rerankV2",
    "Order documents by how well they answer a query, as Cohere's second version has it",
    dialect=COHERE,
)
async def rerank_as_cohere(call: Call[RerankRequest]) -> CohereRerankReply:
    """Reply as `rerank` does, and with the version of the API.

    Raises:
        InvalidRequestError: as `rerank`.
        RequestError: as `pool`.
    """
    reply = await rerank(call)
    meta = RerankMeta(api_version=ApiVersion())
    return CohereRerankReply(
        id=reply.id, model=reply.model, usage=reply.usage, results=reply.results, meta=meta
    )


async def _score_pairs(
    call: Call[Any], body: PairFields, ones: _Texts, others: _Texts
) -> tuple[list[float], list[Finished]]:
    """Score the pairs: by a cross-encoder, or by the embeddings of each text, each computed once."""
    model, service = pooled_model(call), call.state.service
    first, second = ones.texts, others.texts
    repeats = pair_counts(len(first), len(second), (ones.field, others.field))
    if body.max_tokens_per_query is not None or body.max_tokens_per_doc is not None:
        first, second = await service.run_in_thread(call.tenant, _cut, service.tokenizer, body, first, second)
    task = model.scores_by
    if task is None:
        raise lacks_task(service.model_names[0], model, "embeds or has one class", PoolingTask.EMBED)
    if task is PoolingTask.CLASSIFY:
        prompts = _pair_prompts(service.tokenizer, model, body, first * repeats, second)
        fields = fields_of(others.field, len(prompts))
        results, ends = await pool(call, body, prompts, task_request(body, task), fields)
        return [floats_of(one)[0] for one in results], ends
    texts: list[Prompt | TextPair] = [*first, *second]
    fields = fields_of(ones.field, len(first)) + fields_of(others.field, len(second))
    results, ends = await pool(call, body, texts, task_request(body, task), fields)
    if task is PoolingTask.TOKEN_EMBED:
        pairs = zip(results[: len(first)] * repeats, results[len(first) :], strict=True)
        found = await service.run_in_thread(call.tenant, lambda: [late_interaction(*pair) for pair in pairs])
        return found, ends
    vectors = [floats_of(one) for one in results]
    ones_, others_ = vectors[: len(first)] * repeats, vectors[len(first) :]
    return [similarity(one, other) for one, other in zip(ones_, others_, strict=True)], ends


def _pair_prompts(
    tokenizer: Tokenizer, model: PoolingModel, body: PairFields, first: Sequence[str], second: Sequence[str]
) -> list[Prompt | TextPair]:
    """Return what a cross-encoder reads: decoders by their operator's template for pairs, if there is one."""
    template = body.chat_template
    if template is None and model.is_causal:
        template = tokenizer.chosen_template
    arguments = dict(body.chat_template_kwargs or {})
    if body.instruction is not None:
        arguments["instruction"] = body.instruction
    is_own = body.chat_template is not None
    return [
        pair_prompt(*pair, template, arguments, is_own=is_own) for pair in zip(first, second, strict=True)
    ]


def _cut(
    tokenizer: Tokenizer, body: PairFields, first: list[str], second: list[str]
) -> tuple[list[str], list[str]]:
    """Cut the texts to the tokens that are to be kept of each."""
    for field in ("max_tokens_per_query", "max_tokens_per_doc"):
        value = getattr(body, field)
        if value is not None and value < 1:
            raise InvalidRequestError(field, value, "an integer of at least 1")

    query, document = body.max_tokens_per_query, body.max_tokens_per_doc
    return (
        first if query is None else [tokenizer.cut(text, query) for text in first],
        second if document is None else [tokenizer.cut(text, document) for text in second],
    )


def _texts(body: ScoreRequest, names: Sequence[str]) -> _Texts:
    """Return the texts of whichever of these fields is given."""
    given = {name: value for name in names if (value := getattr(body, name)) is not None}
    if len(given) != 1:
        raise InvalidRequestError(names[0], ", ".join(given) or None, f"one of {', '.join(names)}")
    ((name, texts),) = given.items()
    return _Texts(name, texts_of(name, texts))


def texts_of(field: str, given: Texts) -> list[str]:
    """Return the texts of a field; each part of one object is a text of its own, as vLLM has it.

    Raises:
        InvalidRequestError: an object has no text; the message names its place.
    """
    if isinstance(given, list):
        return [_text(f"{field}[{index}]", one) for index, one in enumerate(given)]
    if isinstance(given, TextItem) and given.text is None:
        return _parts(field, given)
    return [_text(field, given)]


def _text(name: str, given: str | TextItem) -> str:
    if isinstance(given, str):
        return given
    return "\n".join(_parts(name, given))


def _parts(name: str, given: TextItem) -> list[str]:
    if (given.text is None) == (given.content is None):
        raise InvalidRequestError(f"{name}.text", given.text, "a text, or parts of one as content")
    if given.content is None:
        return [given.text or ""]
    for index, part in enumerate(given.content):
        if part.type != "text":
            allowed = "text: this router serves models of text"
            raise InvalidRequestError(f"{name}.content[{index}].type", part.type, allowed)
        if part.text is None:
            raise InvalidRequestError(f"{name}.content[{index}].text", None, "a text")
    if not given.content:
        raise InvalidRequestError(f"{name}.content", [], "at least one part")
    return [part.text or "" for part in given.content]
