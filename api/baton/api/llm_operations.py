"""Operations on an `LLM`: caches, sleep, calls into workers, profiles, its end."""

from __future__ import annotations

from collections.abc import Callable, Iterable, Mapping, Sequence
from contextlib import AbstractContextManager
from typing import Any, Self

from baton.api.llm_engine import LLMEngine
from baton.api.refused import Refused
from baton.api.turns import in_turn


class LLMOperations:
    """The part of `LLM` that is the same whatever it generates."""

    llm_engine: LLMEngine
    _turn: AbstractContextManager[Any]

    def __enter__(self) -> Self:
        return self

    def __exit__(self, *exc_info: object) -> None:
        self.close()

    @in_turn
    def close(self) -> None:
        """End the open requests and the workers; it cannot generate afterwards."""
        self.llm_engine.close()

    @in_turn
    def reset_prefix_cache(self, reset_running_requests: bool = False, reset_connector: bool = False) -> bool:
        """Forget every cached block; False, and nothing is done, while requests are open.

        With `reset_running_requests` these lose their blocks too, and compute their tokens again.
        False then means that blocks are still on their way to other workers.
        `reset_connector` has no effect: a transfer of KV blocks keeps none.
        """
        return self.llm_engine.reset_prefix_cache(reset_running_requests, reset_connector)

    def reset_mm_cache(self) -> None:
        """Do nothing: models of text alone are supported, so there is no cache of other inputs."""

    @in_turn
    def sleep(self, level: int = 1, mode: str = "abort") -> None:
        """Stop computing until `wake_up`.

        Args:
            level: 0 pauses; 1 gives up the KV cache, and on a GPU moves the weights to the host's memory; 2
                gives up both.
            mode: the fate of enqueued requests: `abort` ends them with the tokens they have, `wait` finishes
                them first, `keep` resumes them after `wake_up`, which only level 0 allows.

        Raises:
            InvalidRequestError: level or mode is none of these, or they do not go together.
        """
        self.llm_engine.sleep(level, mode)

    @in_turn
    def wake_up(self, tags: Iterable[str] | None = None) -> bool:
        """Take back what `sleep` gave up: of `weights`, `kv_cache`, `scheduling` those named, or all.

        Returns True if the engine computes again.

        Raises:
            InvalidRequestError: a tag is none of these.
        """
        return self.llm_engine.wake_up(tags)

    @property
    def is_sleeping(self) -> bool:
        return self.llm_engine.is_sleeping()

    @in_turn
    def apply_model(self, func: Callable[..., Any] | str) -> list[Any]:
        """Call a function with each worker's model, an `nn.Module`; returns the list of its results.

        The module shows the tensors as Baton's kernels have them: Q, K and V in one, on a CPU mostly packed.

        Args:
            func: in process any function; else the name of one, `package.module:function`.

        Raises:
            InvalidRequestError: there is no such function, or it is none that another process can find.
        """
        return self.llm_engine.apply_model(func)

    @in_turn
    def collective_rpc(
        self,
        method: Callable[..., Any] | str,
        timeout: float | None = None,
        args: Sequence[Any] = (),
        kwargs: Mapping[str, Any] | None = None,
    ) -> list[Any]:
        """Call a method of each worker's `ModelRunner`, or a function with the runner as its first argument.

        Args:
            method: the method's name, or `package.module:function`; in process any function.
            timeout: seconds that workers in other processes may take; ranks of this one's worker are awaited.

        Raises:
            InvalidRequestError: there is no such method or function.
        """
        return self.llm_engine.collective_rpc(method, timeout, args, kwargs)

    @in_turn
    def start_profile(
        self,
        profile_prefix: str | None = None,
        *,
        delay_iterations: int | None = None,
        max_iterations: int | None = None,
    ) -> None:
        """Begin a trace with torch's profiler, into the folder of `profiler_config`.

        Raises:
            InvalidRequestError: no folder is set, a trace has begun already, or steps are counted.
        """
        self.llm_engine.start_profile(
            profile_prefix, delay_iterations=delay_iterations, max_iterations=max_iterations
        )

    @in_turn
    def stop_profile(self) -> None:
        """End the trace and write it.

        Raises:
            InvalidRequestError: none has begun.
        """
        self.llm_engine.stop_profile()

    release_kv_cache_memory = Refused("sleep(level=1) gives the KV cache up and keeps the weights")
