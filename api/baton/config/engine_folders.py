"""The folders of a model and its tokenizer on this machine. It loads no torch, since launchers use it too."""

from __future__ import annotations

from dataclasses import replace

from baton.config.engine_args import EngineArgs
from baton_engine.checkpoint.model_source import resolve_model


def with_local_folders(args: EngineArgs) -> EngineArgs:
    """Return the arguments with folders of this machine in the place of ids, fetched where they are not here.

    Raises:
        InvalidModelError: a model cannot be found.
    """
    cache_dir = args.download_dir
    model = resolve_model(args.model, revision=args.revision, cache_dir=cache_dir)
    tokenizer = args.tokenizer
    if tokenizer is not None:
        tokenizer = str(
            resolve_model(tokenizer, revision=args.tokenizer_revision, cache_dir=cache_dir, field="tokenizer")
        )
    return replace(
        args,
        model=str(model),
        tokenizer=tokenizer,
        served_model_name=args.model_names,
        revision=None,
        download_dir=None,
    )
