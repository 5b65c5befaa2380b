"""The executor of an engine: processes of their own, or everything in this one."""

from __future__ import annotations

from collections.abc import Callable
from typing import TypeVar

from baton.config.engine_args import EngineArgs
from baton.config.engine_folders import pools
from baton.config.worker_parts import worker_settings
from baton_core.errors import InvalidConfigError
from baton_router.text.tokenization import Tokenizer
from baton_worker.worker_process import WorkerSettings

S = TypeVar("S")
L = TypeVar("L")


def make_executor(
    args: EngineArgs,
    tokenizer: Tokenizer,
    executor_class: type | None,
    *,
    spawned: Callable[[EngineArgs], S],
    local: Callable[[WorkerSettings, Tokenizer], L],
) -> S | L:
    """Start the executor that the arguments lead to, one of the two classes.

    Args:
        executor_class: None, or the class that the caller expects.

    Raises:
        InvalidConfigError: it expects another one; or a setting cannot hold.
        InvalidModelError: the model cannot be loaded.
    """
    used = spawned if args.is_disaggregated else local
    if executor_class is not None and executor_class is not used:
        raise InvalidConfigError(
            f"executor_class is {executor_class!r:.80}; allowed: None or {used.__name__} (prefill_workers "
            "and decode_workers decide where the model is computed)"
        )
    if args.is_disaggregated and args.nnodes > 1:
        text = f"nnodes is {args.nnodes} with prefill_workers {args.prefill_workers} and decode_workers"
        allowed = "1 in Python, or no such workers (baton serve starts them over several machines)"
        raise InvalidConfigError(f"{text} {args.decode_workers}; allowed: {allowed}")
    is_complete = args.prefill_workers and (args.decode_workers or pools(args))
    if args.is_disaggregated and not is_complete:
        text = f"prefill_workers is {args.prefill_workers} with decode_workers {args.decode_workers}"
        raise InvalidConfigError(f"{text}; allowed: both over 0; a model that pools needs no decode workers")
    return spawned(args) if args.is_disaggregated else local(worker_settings(args), tokenizer)
