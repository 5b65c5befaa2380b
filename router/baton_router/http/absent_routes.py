"""Routes of vLLM's servers that are not served here, with the reason or what to do instead."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Final

_SPEECH: Final = "those in /openapi.json: no speech models are served"
_OPERATOR: Final = "those in /openapi.json: this router runs without --enable-operator-routes"
ABSENT_ROUTES: Final[Mapping[str, str]] = {
    **dict.fromkeys(("/v1/audio/transcriptions", "/v1/audio/translations"), _SPEECH),
    "/v1/chat/completions/batch": "/v1/chat/completions: one call for each conversation, all at once",
    "/server_info": "/debug/cluster: it shows the workers and what they serve",
    "/tokenizer_info": "those in /openapi.json: this router runs without --enable-tokenizer-info-endpoint",
    **dict.fromkeys(
        (
            *("/reset_prefix_cache", "/sleep", "/wake_up", "/is_sleeping", "/collective_rpc"),
            *("/start_profile", "/stop_profile", "/v1/load_lora_adapter", "/v1/unload_lora_adapter"),
        ),
        _OPERATOR,
    ),
}
"""The part of a refusal that says what is allowed, by path."""
