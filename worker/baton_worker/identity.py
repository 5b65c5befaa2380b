"""The identity of a loaded worker: its model and all else that its tokens depend on."""

from __future__ import annotations

from dataclasses import replace
from hashlib import blake2b
from pathlib import Path

from baton_core.model.model_identity import ModelIdentity
from baton_core.requests.pooling import encode_pooling_model
from baton_engine.engine_settings import EngineSettings
from baton_engine.loading import LoadedEngine
from baton_service.tokenizer_files import read_tokenizer_digest


def model_identity(
    settings: EngineSettings,
    engine: LoadedEngine,
    *,
    tokenizer: Path,
    structured_outputs_backend: str,
    transport: str,
) -> ModelIdentity:
    """Return the identity of a worker whose tokenizer lies in the folder `tokenizer`.

    Raises:
        InvalidModelError: the tokenizer is broken.
    """
    spec, variant = engine.kv_spec, engine.config.kv_variant
    return ModelIdentity(
        weights=engine.read.weights,
        dtype=engine.dtype,
        kv_layout=spec.layout,
        block_size=spec.block_size,
        kv_windows=spec.paging.windows,
        transport=transport,
        numerics=engine.numerics,
        description=replace(engine.read.description, tokenizer=read_tokenizer_digest(tokenizer)),
        kv_variant=variant and blake2b(variant.encode(), digest_size=16).hexdigest(),
        quantization=engine.quantization,
        structured_outputs_backend=structured_outputs_backend,
        logits_processors=tuple(sorted(settings.logits_processors)),
        logprobs_mode=settings.logprobs_mode,
        pooling=encode_pooling_model(engine.pooling),
    )
