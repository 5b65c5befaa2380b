"""Names of vLLM's package that Baton does not have."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Final

_NO_POOLING: Final = "models that pool are not supported yet; generation has LLM.generate and LLM.chat"
REFUSED: Final[Mapping[str, str]] = {
    **dict.fromkeys(("PoolingParams", "PoolingOutput", "PoolingRequestOutput"), _NO_POOLING),
    **dict.fromkeys(("EmbeddingOutput", "EmbeddingRequestOutput"), _NO_POOLING),
    **dict.fromkeys(("ClassificationOutput", "ClassificationRequestOutput"), _NO_POOLING),
    **dict.fromkeys(("ScoringOutput", "ScoringRequestOutput"), _NO_POOLING),
}
"""Why each is not there, by name."""
