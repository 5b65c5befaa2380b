"""The bars that `LLM` shows while it takes requests and generates."""

from __future__ import annotations

from collections.abc import Callable, Iterator, Sequence
from contextlib import closing
from typing import Any, Self, TypeAlias, TypeVar

from tqdm import tqdm

from baton.outputs import RequestOutput
from baton.pooling_outputs import PoolingOutput, PoolingRequestOutput

T = TypeVar("T")
UseTqdm: TypeAlias = bool | Callable[..., Any]
"""True to show a progress bar, or a function that makes one in place of `tqdm`."""


def counted(items: Sequence[T], use_tqdm: UseTqdm, description: str = "Adding requests") -> Iterator[T]:
    """Yield items that take their time, and show how far it is."""
    with closing(_bar(use_tqdm, total=len(items), desc=description, dynamic_ncols=True)) as bar:
        for item in items:
            yield item
            bar.update()


class Progress:
    """Counts finished requests and shows how many tokens per second went in and came out."""

    def __init__(self, num_requests: int, use_tqdm: UseTqdm) -> None:
        postfix = _postfix(0.0, 0.0)
        self._bar = _bar(
            use_tqdm, total=num_requests, desc="Processed prompts", dynamic_ncols=True, postfix=postfix
        )
        self._num_input_tokens = 0
        self._num_output_tokens = 0

    def __enter__(self) -> Self:
        return self

    def __exit__(self, *exc_info: object) -> None:
        self._bar.close()

    def add(self, output: RequestOutput | PoolingRequestOutput[PoolingOutput]) -> None:
        """Take a request that is over."""
        self._num_input_tokens += len(output.prompt_token_ids)
        if isinstance(output, RequestOutput):
            self._num_output_tokens += sum(len(completion.token_ids) for completion in output.outputs)
        elapsed_s = max(self._bar.format_dict["elapsed"], 1e-9)
        self._bar.set_postfix_str(
            _postfix(self._num_input_tokens / elapsed_s, self._num_output_tokens / elapsed_s), refresh=False
        )
        self._bar.update()


def _bar(use_tqdm: UseTqdm, **options: Any) -> Any:
    return use_tqdm(**options) if callable(use_tqdm) else tqdm(disable=not use_tqdm, **options)


def _postfix(input_rate: float, output_rate: float) -> str:
    return f"input: {input_rate:.2f} tokens/s, output: {output_rate:.2f} tokens/s"
