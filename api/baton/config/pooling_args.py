"""Arguments of models that pool: embeddings, classes and scores in the place of tokens."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any, Final

from baton.config.engine_arg_fields import arg
from baton_core.errors import InvalidConfigError

RUNNERS: Final = ("auto", "generate", "pooling")
CONVERSIONS: Final = ("auto", "none", "embed", "classify")


@dataclass(kw_only=True)
class PoolingArgs:
    """The part of `EngineArgs` on pooling."""

    runner: str = arg(
        str,
        "auto",
        "generate tokens, or pool hidden states; auto: as the model's files say",
        RUNNERS,
        reason="speculative_config says how tokens are drafted",
    )
    convert: str = arg(str, "auto", "make a model that generates one that embeds, or classifies", CONVERSIONS)
    pooler_config: Mapping[str, Any] | None = arg(
        dict, None, "JSON with task, pooling_type, use_activation, dimensions: how hidden states are pooled"
    )


def check_pooling_args(args: Any) -> None:
    """Check the fields together.

    Raises:
        InvalidConfigError: a conversion is asked of a model that is to generate.
    """
    if args.runner == "generate":
        for name in ("convert", "pooler_config"):
            if getattr(args, name) not in ("auto", "none", None):
                raise InvalidConfigError(
                    f"{name} is {getattr(args, name)!r}; allowed with runner generate: none"
                )
