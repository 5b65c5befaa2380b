"""The routes that pool."""

from __future__ import annotations

from functools import partial
from typing import Final

from baton_router.http.pooling.cohere import CohereEmbedReply, embed_by_type
from baton_router.http.pooling.embeddings import (
    ClassifyReply,
    EmbeddingReply,
    PoolingReply,
    classify,
    embed,
    pool_prompts,
)
from baton_router.http.pooling.scoring import RerankReply, ScoreReply, rerank, score
from baton_router.http.route import BATCH_PRIORITY, Route, Tag

_route: Final = partial(Route, method="POST", tag=Tag.POOLING, errors=(404, 422, 429, 502, 503, 504))
"""The fields that these routes share."""
_DOCUMENTS: Final = ["os.path joins paths.", "json reads JSON."]

POOLING_ROUTES: Final = (
    _route(
        "/v1/embeddings",
        "createEmbedding",
        "Embed texts",
        embed,
        batch_defaults={"priority": BATCH_PRIORITY},
        example={"input": "The os module"},
        reply=EmbeddingReply,
    ),
    _route(
        "/v2/embed",
        "embedByType",
        "Embed texts, in Cohere's format",
        embed_by_type,
        example={"texts": ["The os module"], "embedding_types": ["float"]},
        reply=CohereEmbedReply,
    ),
    _route(
        "/pooling",
        "pool",
        "Pool the hidden states of prompts",
        pool_prompts,
        example={"input": "The os module"},
        reply=PoolingReply,
    ),
    _route(
        "/classify",
        "classify",
        "Classify texts",
        classify,
        example={"input": "The os module"},
        reply=ClassifyReply,
    ),
    *(
        _route(
            path,
            name,
            f"Score pairs of texts{beside}",
            score,
            example={"text_1": "How are paths joined?", "text_2": _DOCUMENTS},
            reply=ScoreReply,
        )
        for path, name, beside in (("/score", "score", ""), ("/v1/score", "scoreV1", ", as at /score"))
    ),
    *(
        _route(
            path,
            name,
            f"Order documents by how well they answer a query{beside}",
            rerank,
            example={"query": "How are paths joined?", "documents": _DOCUMENTS},
            reply=RerankReply,
        )
        for path, name, beside in (
            ("/rerank", "rerank", ""),
            ("/v1/rerank", "rerankV1", ", as Cohere's first version has it"),
            ("/v2/rerank", "rerankV2", ", as Cohere's second version has it"),
        )
    ),
)
