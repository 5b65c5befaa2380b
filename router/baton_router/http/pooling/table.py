"""The routes that pool."""

from __future__ import annotations

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
from baton_router.http.pooling.schemas import (
    ClassifyRequest,
    CohereEmbedRequest,
    EmbeddingRequest,
    PoolingRequestBody,
    RerankRequest,
    ScoreRequest,
)
from baton_router.http.pooling.scoring import RerankReply, ScoreReply, rerank, score
from baton_router.http.route import BATCH_PRIORITY, Route, Tag

_ERRORS: Final = (404, 422, 429, 502, 503, 504)
_DOCUMENTS: Final = ["os.path joins paths.", "json reads JSON."]

POOLING_ROUTES: Final = (
    Route(
        method="POST",
        path="/v1/embeddings",
        operation_id="createEmbedding",
        tag=Tag.POOLING,
        summary="Embed texts",
        handler=embed,
        bodies=(EmbeddingRequest,),
        batch_defaults={"priority": BATCH_PRIORITY},
        example={"input": "The os module"},
        reply=EmbeddingReply,
        errors=_ERRORS,
    ),
    Route(
        method="POST",
        path="/v2/embed",
        operation_id="embedByType",
        tag=Tag.POOLING,
        summary="Embed texts, in Cohere's format",
        handler=embed_by_type,
        bodies=(CohereEmbedRequest,),
        example={"texts": ["The os module"], "embedding_types": ["float"]},
        reply=CohereEmbedReply,
        errors=_ERRORS,
    ),
    Route(
        method="POST",
        path="/pooling",
        operation_id="pool",
        tag=Tag.POOLING,
        summary="Pool the hidden states of prompts",
        handler=pool_prompts,
        bodies=(PoolingRequestBody,),
        example={"input": "The os module"},
        reply=PoolingReply,
        errors=_ERRORS,
    ),
    Route(
        method="POST",
        path="/classify",
        operation_id="classify",
        tag=Tag.POOLING,
        summary="Classify texts",
        handler=classify,
        bodies=(ClassifyRequest,),
        example={"input": "The os module"},
        reply=ClassifyReply,
        errors=_ERRORS,
    ),
    *(
        Route(
            method="POST",
            path=path,
            operation_id=name,
            tag=Tag.POOLING,
            summary=f"Score pairs of texts{beside}",
            handler=score,
            bodies=(ScoreRequest,),
            example={"text_1": "How are paths joined?", "text_2": _DOCUMENTS},
            reply=ScoreReply,
            errors=_ERRORS,
        )
        for path, name, beside in (("/score", "score", ""), ("/v1/score", "scoreV1", ", as at /score"))
    ),
    *(
        Route(
            method="POST",
            path=path,
            operation_id=name,
            tag=Tag.POOLING,
            summary=f"Order documents by how well they answer a query{beside}",
            handler=rerank,
            bodies=(RerankRequest,),
            example={"query": "How are paths joined?", "documents": _DOCUMENTS},
            reply=RerankReply,
            errors=_ERRORS,
        )
        for path, name, beside in (
            ("/rerank", "rerank", ""),
            ("/v1/rerank", "rerankV1", ", as Cohere's first version has it"),
            ("/v2/rerank", "rerankV2", ", as Cohere's second version has it"),
        )
    ),
)
