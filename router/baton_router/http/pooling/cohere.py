"""POST /v2/embed: embeddings in Cohere's format; and the format of the errors under /v2."""

from __future__ import annotations

from dataclasses import replace
from typing import Any, Final, Literal

import msgspec
from msgspec import UNSET, UnsetType

from baton_core.errors import InvalidRequestError
from baton_core.requests.pooling import PoolingTask
from baton_router.http.calls import Call
from baton_router.http.errors import OPENAI, ErrorBody, Failure, renamed
from baton_router.http.pooling.requests import fields_of, pool, pooled_model, task_request
from baton_router.http.pooling.schemas import CohereEmbedRequest, EmbedInput, PoolingFields
from baton_router.http.pooling.vectors import Numbers, numbers_of, signs_of, text_of
from baton_router.http.route import GENERATING, Routes, Tag
from baton_router.requests.request_reader import MAX_REQUEST_ID_CHARACTERS
from baton_router.text.prompts import Prompt


class CohereError(ErrorBody, kw_only=True):
    """The body of an error under /v2."""

    message: str
    """The error's message, where Cohere's clients look for it."""


def _error_body(failure: Failure, _: str) -> CohereError:
    body = failure.body
    return CohereError(error=body.error, detail=body.detail, message=body.error.message)


COHERE: Final = replace(OPENAI, error=CohereError, error_body=_error_body)
ROUTES: Final = Routes(method="POST", tag=Tag.POOLING, errors=GENERATING, dialect=COHERE)

_PROMPT_OF: Final = {
    "search_query": ("query",),
    "search_document": ("document", "passage"),
    "classification": ("Classification",),
    "clustering": ("Clustering",),
}
"""Names that prompts of models have for Cohere's types of input."""
_OWN_NAMES: Final = {"truncate_prompt_tokens": "max_tokens", "dimensions": "output_dimension"}


class EmbeddingsByType(msgspec.Struct, kw_only=True):
    """The embeddings in each way that was asked for."""

    float: list[Numbers] | UnsetType = UNSET
    base64: list[str] | UnsetType = UNSET
    binary: list[list[int]] | UnsetType = UNSET
    """Signs, eight in an integer from -128 to 127."""
    ubinary: list[list[int]] | UnsetType = UNSET
    """Signs, eight in an integer from 0 to 255."""


class ApiVersion(msgspec.Struct, kw_only=True):
    """The version of Cohere's API."""

    version: Literal["2"] = "2"


class BilledUnits(msgspec.Struct, kw_only=True):
    """Tokens of a call."""

    input_tokens: int


class EmbedMeta(msgspec.Struct, kw_only=True):
    """Facts of a call."""

    api_version: ApiVersion
    billed_units: BilledUnits


class CohereEmbedReply(msgspec.Struct, kw_only=True):
    """The embeddings of all texts."""

    id: str
    embeddings: EmbeddingsByType
    texts: list[str]
    meta: EmbedMeta
    response_type: Literal["embeddings_by_type"] = "embeddings_by_type"


@ROUTES.route(
    "/v2/embed",
    "embedByType",
    "Embed texts, in Cohere's format",
    example={"texts": ["The os module"], "embedding_types": ["float"]},
)
async def embed_by_type(call: Call[CohereEmbedRequest]) -> CohereEmbedReply:
    """Reply with the embedding of each text.

    Raises:
        InvalidRequestError: a field is wrong, or the model does not embed; the message names the field.
        RequestError: as `pool`.
    """
    body = call.body
    pooled_model(call)
    field, texts = _texts(body)
    prefix = prefix_of(body.input_type, call.state.service.model.sentence_prompts)
    is_cut = body.truncate != "NONE"
    fields = PoolingFields(
        model=body.model,
        truncate_prompt_tokens=-1 if body.max_tokens is None and is_cut else body.max_tokens,
        truncation_side="left" if body.truncate == "START" else "right",
        priority=body.priority,
    )
    prompts: list[Prompt] = [prefix + text for text in texts]
    asked = replace(task_request(fields, PoolingTask.EMBED, body.output_dimension), is_cut=is_cut)
    with renamed(_OWN_NAMES):
        results, ends = await pool(call, fields, prompts, asked, fields_of(field, len(prompts)))
    embeddings = EmbeddingsByType()
    for kind in body.embedding_types or ("float",):
        match kind:
            case "float":
                embeddings.float = [numbers_of(one) for one in results]
            case "base64":
                embeddings.base64 = [text_of(one, "float32", "little") for one in results]
            case "binary":
                embeddings.binary = [signs_of(one, is_signed=True) for one in results]
            case _:
                embeddings.ubinary = [signs_of(one, is_signed=False) for one in results]
    num_tokens = sum(end.num_prompt_tokens for end in ends)
    return CohereEmbedReply(
        id=call.request_id[:MAX_REQUEST_ID_CHARACTERS],
        embeddings=embeddings,
        texts=texts,
        meta=EmbedMeta(api_version=ApiVersion(), billed_units=BilledUnits(input_tokens=num_tokens)),
    )


def _texts(body: CohereEmbedRequest) -> tuple[str, list[str]]:
    """Return the field that is given, and its texts."""
    if body.images:
        raise InvalidRequestError("images", "given", "nothing: inputs are text")
    given = {name: value for name in ("texts", "inputs") if (value := getattr(body, name)) is not None}
    if len(given) > 1:  # an empty one says nothing
        given = {name: value for name, value in given.items() if value} or given
    if len(given) != 1:
        raise InvalidRequestError("texts", ", ".join(given) or None, "one of texts and inputs")
    ((field, values),) = given.items()
    if not values:
        raise InvalidRequestError(field, values, "at least one text")
    return field, [_joined(number, one) for number, one in enumerate(values)]


def _joined(number: int, given: str | EmbedInput) -> str:
    if isinstance(given, str):
        return given
    for part in given.content:
        if part.type != "text" or part.text is None:
            raise InvalidRequestError(f"inputs[{number}].content.type", part.type, "text")
    return "".join(part.text or "" for part in given.content)


def prefix_of(input_type: str | None, prompts: Any) -> str:
    """Return the text that the model wants before inputs of a type; empty where it names none."""
    if input_type is None:
        return ""
    names = (input_type, *_PROMPT_OF.get(input_type, ()))
    return next((prompts[name] for name in names if name in prompts), "")
