"""The bundled model with int8 layers: the same greedy tokens again, and split over two workers."""

from __future__ import annotations

from pathlib import Path
from typing import Final

import pytest
from tokenizers import Tokenizer

from baton.config.engine_args import BUNDLED_MODEL
from baton_core.errors import IncompatibleWorkerError
from baton_core.requests.sampling_params import SamplingParams
from baton_core.sessions.router_messages import RequestSpec
from tests.sim.torch_cluster import Backend, Shape, TorchCluster

FOLDER: Final = Path(BUNDLED_MODEL)
GREEDY: Final = SamplingParams(temperature=0.0, seed=0, max_tokens=24, ignore_eos=True, logprobs=2)
TEXTS: Final = (
    "<|im_start|>user\nWhat does os.path.join do?<|im_end|>\n<|im_start|>assistant\n",
    "<|im_start|>user\nWhat is the json module?<|im_end|>\n<|im_start|>assistant\n",
    "<|im_start|>user\nHow do I open a file in Python?<|im_end|>\n<|im_start|>assistant\n",
)
"""Every token is far likelier than the next: what one activation is rounded to depends on the kind of CPU."""
MIN_GAP: Final = 1.0
"""Between the logarithms of their probabilities."""
SHAPE: Final = Shape(max_num_batched_tokens=32, max_model_len=256, quantization="int8")


def specs(name: str) -> list[RequestSpec]:
    tokenizer = Tokenizer.from_file(str(FOLDER / "tokenizer.json"))
    return [
        RequestSpec(
            request_id=f"{name}-{number}",
            prompt_token_ids=tuple(tokenizer.encode(text, add_special_tokens=False).ids),
            params=GREEDY,
        )
        for number, text in enumerate(TEXTS)
    ]


def greedy_tokens(backend: Backend | None) -> list[dict[int, list[int]]]:
    """Return the tokens of all texts, first computed in full, then over the cached blocks."""
    with TorchCluster(FOLDER, backend, SHAPE) as cluster:
        outcomes = [*cluster.serve(specs("first")), *cluster.serve(specs("second"))]
        if backend is not None:
            assert cluster.engines["d"].num_pulled_blocks > 0
    for outcome in outcomes:
        for position in outcome.logprobs[0]:
            first, second, *_ = sorted(set(position.logprobs), reverse=True)
            assert first - second > MIN_GAP
    return [outcome.tokens for outcome in outcomes]


def test_greedy_tokens_are_the_same_again_and_split_over_two_workers() -> None:
    together = greedy_tokens(None)
    assert all(len(tokens[0]) == GREEDY.max_tokens for tokens in together)
    assert together[: len(TEXTS)] == together[len(TEXTS) :]
    assert greedy_tokens(None) == together
    assert greedy_tokens("shared_memory") == together


def test_a_worker_with_int8_layers_does_not_join_one_without() -> None:
    with TorchCluster(FOLDER, None, SHAPE) as quantized, TorchCluster(FOLDER, None, Shape()) as plain:
        theirs, ours = (one.sim.workers["m"].core.config.identity for one in (quantized, plain))
    assert theirs.dtype == ours.dtype
    with pytest.raises(IncompatibleWorkerError, match=r"^quantization is 'int8'; allowed: ''.*--quantiz"):
        ours.require_compatible(theirs)
