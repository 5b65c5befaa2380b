"""Every group, in the order of vLLM's documentation."""

from __future__ import annotations

from typing import Final

from tools.vllm_audit import (
    alias_items,
    engine_arguments,
    engine_items,
    generation_items,
    llm_items,
    parameter_items,
    route_items,
)
from tools.vllm_audit.verdict import Group

GROUPS: Final[tuple[Group, ...]] = (
    llm_items.PACKAGE,
    llm_items.CONSTRUCTOR,
    llm_items.ATTRIBUTES,
    llm_items.METHODS,
    generation_items.GENERATE,
    generation_items.CHAT,
    generation_items.ENQUEUE,
    generation_items.ENQUEUE_CHAT,
    llm_items.OTHERS,
    llm_items.POOLING,
    parameter_items.SAMPLING,
    parameter_items.REQUEST_OUTPUT,
    parameter_items.COMPLETION_OUTPUT,
    generation_items.PROMPTS,
    engine_items.ENGINE,
    engine_arguments.FIELDS,
    engine_arguments.FLAGS,
    engine_items.METHODS,
    alias_items.HELPERS,
    alias_items.MODULES,
    alias_items.COMMANDS,
    route_items.ROUTES,
    engine_items.QUANTIZATION,
    engine_items.ARCHITECTURE,
    engine_items.PREFIX_CACHING,
    alias_items.ENVIRONMENT,
    alias_items.EXAMPLES,
)
