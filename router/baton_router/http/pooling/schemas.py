"""The bodies of the routes that pool: what comes in. Names and meanings are OpenAI's, vLLM's and Cohere's."""

from __future__ import annotations

from typing import Annotated, Any, Literal

from msgspec import Meta, Struct

from baton_router.http.chat.schemas import ChatMessage, Messages, ReasoningEffort, Tools
from baton_router.http.sampling_fields import CallFields, Fields

PromptInput = str | list[str | int | ChatMessage | list[int | ChatMessage]]
Conversations = Annotated[list[ChatMessage | Messages], Meta(min_length=1)]


class PoolingFields(CallFields, kw_only=True):
    """Fields of every request that pools."""

    truncate_prompt_tokens: int | None = None
    """Tokens to keep of each prompt, special tokens included; -1 means as many as fit."""
    truncation_side: Literal["left", "right"] | None = None
    """The side on which a prompt is cut. Default: right."""
    use_activation: bool | None = None
    """Normalize embeddings, or turn class scores into probabilities. Default: as the model's files say."""
    user: Any = None
    """Ignored."""
    padding: Any = None
    """Ignored: prompts are computed without padding."""
    mm_processor_kwargs: Any = None
    """Ignored: prompts are text."""
    normalize: Any = None
    """Refused: `use_activation` has taken its place."""


class PromptFields(PoolingFields, kw_only=True):
    """Prompts (`input`), or conversations (`messages`)."""

    input: PromptInput | None = None
    """A text, token ids, a conversation, or a list of any; this or `messages`."""
    messages: Conversations | None = None
    """A conversation, or a list of them; this or `input`."""
    tools: Tools | None = None
    """Functions that the template offers to the model."""
    documents: list[dict[str, Any]] | None = None
    """Documents for templates that take them."""
    add_special_tokens: bool | None = None
    """The tokenizer adds its special tokens. Default: true for a text, false for a conversation."""
    add_generation_prompt: bool | None = None
    """Default: false."""
    continue_final_message: bool | None = None
    """The last message is left open."""
    chat_template: str | None = None
    """A Jinja template instead of the model's; only where the operator trusts those of requests."""
    chat_template_kwargs: dict[str, Any] | None = None
    """Further variables of the template."""
    enable_thinking: bool | None = None
    """The same as in `chat_template_kwargs`, which comes first."""
    reasoning_effort: ReasoningEffort | None = None
    """For the template."""


class VectorFields(PromptFields, kw_only=True):
    """Prompts, and the way in which vectors are written."""

    dimensions: int | None = None
    """Leading numbers of an embedding to keep, where the model allows that. Default: all."""
    encoding_format: Literal["float", "base64", "bytes", "bytes_only"] | None = None
    """Lists of numbers, text of their bytes, or the bytes alone, with or without a header about them.
    Default: float."""
    embed_dtype: Literal["float32", "float16", "bfloat16", "fp8_e4m3", "fp8_e5m2"] | None = None
    """Element type of bytes. Default: float32."""
    endianness: Literal["native", "little", "big"] | None = None
    """Order of an element's bytes. Default: little."""


class EmbeddingRequest(VectorFields, kw_only=True):
    """Texts to embed."""


class PoolingRequestBody(VectorFields, kw_only=True):
    """Prompts to pool in the way of a task."""

    task: Literal["embed", "classify", "token_embed", "token_classify", "score"] | None = None
    """The task to pool for. Default: the model's first task."""


class ClassifyRequest(PromptFields, kw_only=True):
    """Texts to classify."""


class InputContent(Fields, kw_only=True):
    """A part of an input."""

    type: str
    """text; others are refused."""
    text: str | None = None
    """The text."""


class TextItem(Fields, kw_only=True):
    """A text as an object: one of `text` and `content`."""

    text: str | None = None
    """The text."""
    content: list[InputContent] | None = None
    """Parts of the text, which are joined with line breaks; each is a text of its own where the object stands
    for the whole field."""


Texts = str | TextItem | list[str | TextItem]


class PairFields(PoolingFields, kw_only=True):
    """Fields of requests about pairs of texts."""

    max_tokens_per_query: int | None = None
    """Tokens to keep of each first text. Default: all."""
    max_tokens_per_doc: int | None = None
    """Tokens to keep of each second text. Default: all."""
    instruction: str | None = None
    """For templates that tell the model what fits together."""
    chat_template: str | None = None
    """A Jinja template of a pair; only where the operator trusts those of requests."""
    chat_template_kwargs: dict[str, Any] | None = None
    """Further variables of the template."""


class ScoreRequest(PairFields, kw_only=True):
    """Pairs of texts: one with each of many, or each with its counterpart."""

    text_1: Texts | None = None
    """The first texts."""
    text_2: Texts | None = None
    """The second texts."""
    data_1: Texts | None = None
    """The same as `text_1`."""
    data_2: Texts | None = None
    """The same as `text_2`."""
    queries: Texts | None = None
    """The same as `text_1`."""
    documents: Texts | None = None
    """The same as `text_2`."""
    items: Texts | None = None
    """The same as `text_2`."""


class RerankRequest(PairFields, kw_only=True):
    """A query, and documents to order by how well they answer it."""

    query: str | TextItem
    """The query."""
    documents: Texts
    """The documents, at least one."""
    top_n: int | None = None
    """Documents to return; 0 means all. Default: all."""
    return_documents: bool | None = None
    """Return the texts of the documents, too. Default: true."""
    rank_fields: Any = None
    """Ignored: documents are texts."""
    max_chunks_per_doc: Any = None
    """Ignored: a document is read whole."""


class EmbedInput(Fields, kw_only=True):
    """An input in parts, which are joined."""

    content: list[InputContent]
    """The parts, in order."""


class CohereEmbedRequest(Fields, kw_only=True):
    """Texts to embed, in Cohere's format: one of `texts` and `inputs`."""

    model: str | None = None
    """A name that `/v1/models` lists. Default: the served model."""
    input_type: str | None = None
    """search_query, search_document, or another name of a prompt of the model's, which is put before each
    text; without such a prompt nothing is."""
    texts: list[str] | None = None
    """Texts to embed."""
    inputs: list[EmbedInput] | None = None
    """The same in parts."""
    images: Any = None
    """Refused: inputs are text."""
    embedding_types: list[Literal["float", "base64", "binary", "ubinary"]] | None = None
    """Ways to write the embeddings. Default: float."""
    output_dimension: int | None = None
    """Leading numbers of an embedding to keep, where the model allows that. Default: all."""
    truncate: Literal["NONE", "START", "END"] | None = None
    """The side on which a text that is too long is cut; NONE refuses it. Default: END."""
    max_tokens: int | None = None
    """Tokens that each text may have, special tokens included; -1 means as many as fit. Default: -1."""
    priority: int | None = None
    """Lower comes earlier. Default: 0."""


class PoolingUsage(Struct, kw_only=True):
    """Tokens of a call."""

    prompt_tokens: int
    total_tokens: int
