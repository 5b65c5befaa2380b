"""Routes of vLLM's servers and of operators that are absent here, with the reason or what to do instead."""

from __future__ import annotations

import re
from collections.abc import Collection, Mapping
from typing import Final

from baton_router.http.routes import OPERATOR_ROUTES

_SERVED: Final = "those in /openapi.json"
_SPEECH: Final = "those in /openapi.json: no speech models are served"
_OPERATOR: Final = "those in /openapi.json: this router runs without --enable-operator-routes"
_ADAPTERS: Final = "those in /openapi.json: this router runs without --enable-lora-updates"
_FILES: Final = "those in /openapi.json: this router runs without --files-directory"
_NOT_SERVED: Final = "those in /openapi.json: responses are neither compacted nor counted here"
_BELOW: Final = re.compile(r"(/v1/(?:files|batches))/.*", re.DOTALL)
_ROUTES: Final[Mapping[str, str]] = {
    **dict.fromkeys(("/v1/audio/transcriptions", "/v1/audio/translations"), _SPEECH),
    **dict.fromkeys(("/v1/load_lora_adapter", "/v1/unload_lora_adapter"), _ADAPTERS),
    **dict.fromkeys(("/v1/files", "/v1/batches"), _FILES),
    "/v1/chat/completions/batch": "/v1/chat/completions: one call for each conversation, all at once",
    **dict.fromkeys(("/v1/responses/compact", "/v1/responses/input_tokens"), _NOT_SERVED),
    "/server_info": "/debug/cluster: it shows the workers and what they serve",
    "/tokenizer_info": "those in /openapi.json: this router runs without --enable-tokenizer-info-endpoint",
    **dict.fromkeys((route.path for route in OPERATOR_ROUTES), _OPERATOR),
}
"""The part of a refusal that says what is allowed, by path."""


def is_absent(method: str, path: str) -> bool:
    """Return whether a path that matches a route by a parameter is one of these routes, which take POST."""
    return method == "POST" and path in _ROUTES


def why_absent(path: str, served: Collection[str]) -> str:
    """Return what is allowed in the place of a path that has no route; `served` are those that have one."""
    absent = _BELOW.sub(r"\1", path)
    return _SERVED if absent in served else _ROUTES.get(absent, _SERVED)
