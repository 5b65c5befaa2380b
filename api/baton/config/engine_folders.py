"""The folders of a model and its tokenizer on this machine, and what is to be changed of its config.json.

It loads no torch, since launchers use it too.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping
from dataclasses import replace
from functools import partial
from pathlib import Path
from typing import Any, Final

from baton.config.engine_args import EngineArgs
from baton_core.errors import InvalidConfigError
from baton_core.model.config_overrides import overridden
from baton_engine.checkpoint.config_fields import read_json_object
from baton_engine.checkpoint.model_fields import (
    find_lone_gguf,
    read_base_config,
    read_gguf_config,
    read_model_fields,
)
from baton_engine.checkpoint.model_source import resolve_model
from baton_engine.models.transformers_config import load_transformers_config
from baton_engine.pooling.settings import default_runner

NO_TOKENIZER: Final = Path(__file__).parents[1] / "no_tokenizer"
"""A tokenizer without words: token ids have no text."""
_TOKENIZER_FILES: Final = ("tokenizer.json", "vocab.json")


def with_local_folders(args: EngineArgs) -> EngineArgs:
    """Return the arguments with folders of this machine in the place of ids, fetched where they are not here.

    What changes config.json is one mapping afterwards, `hf_overrides`.

    Raises:
        InvalidModelError: a model cannot be found.
        InvalidConfigError: the function of `hf_overrides` fails.
    """
    resolve = partial(resolve_model, cache_dir=args.download_dir, token=args.hf_token)
    model = resolve(args.model, revision=args.revision)
    tokenizer = args.tokenizer
    if tokenizer is not None:
        tokenizer = str(resolve(tokenizer, revision=args.tokenizer_revision, field="tokenizer"))
    elif args.skip_tokenizer_init and not any((model / name).exists() for name in _TOKENIZER_FILES):
        tokenizer = str(NO_TOKENIZER)
    gguf = find_lone_gguf(model)
    overrides: Mapping[str, Any] | None = None if gguf is None else read_gguf_config(gguf)
    if args.hf_config_path is not None:
        overrides = _replacing(
            model, read_json_object(resolve(args.hf_config_path, field="hf_config_path") / "config.json")
        )
    if callable(args.hf_overrides):
        if gguf is not None:
            text = f"hf_overrides is a function; allowed with {gguf}, which has no config.json: a mapping"
            raise InvalidConfigError(text)
        overrides = _from_function(model, overrides or {}, args.hf_overrides)
    elif args.hf_overrides:
        overrides = overridden(overrides or {}, args.hf_overrides)
    return replace(
        args,
        model=str(model),
        tokenizer=tokenizer,
        served_model_name=args.model_names,
        revision=None,
        download_dir=None,
        hf_token=None,
        hf_config_path=None,
        hf_overrides=overrides,
    )


def pools(args: EngineArgs) -> bool:
    """Say whether workers with these arguments pool; `runner` auto asks the model's files.

    Raises:
        InvalidModelError: the model cannot be found, or a file is broken.
        InvalidConfigError: as `with_local_folders`.
    """
    if args.runner != "auto":
        return args.runner == "pooling"
    local = with_local_folders(args)
    folder = Path(local.model)
    fields = read_model_fields(folder, dict(local.hf_overrides or {}))
    return default_runner(folder, fields) == "pooling"


def _replacing(model: Path, config: Mapping[str, Any]) -> dict[str, Any]:
    """Overrides that turn a model's config.json into another one; null stands for a key that is not there."""
    return {**dict.fromkeys(read_base_config(model)), **config}


def _from_function(
    model: Path, overrides: Mapping[str, Any], function: Callable[[Any], Any]
) -> dict[str, Any]:
    """Return the overrides with what a function changes of the Transformers configuration."""
    config = load_transformers_config(model, overrides)
    before = config.to_dict()
    try:
        after = function(config).to_dict()
    # The caller's code may raise anything.
    except Exception as error:
        raise InvalidConfigError(
            f"hf_overrides fails with {type(error).__name__}: {error}; allowed: a function that returns "
            "the Transformers configuration that it is given, changed"
        ) from error
    changed = {key: value for key, value in after.items() if key not in before or before[key] != value}
    return overridden(overrides, changed)
