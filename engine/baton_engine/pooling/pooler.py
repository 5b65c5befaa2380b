"""From hidden states to embeddings and class scores, in float32.

Called from the engine thread under inference mode.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import fields
from functools import partial
from pathlib import Path
from typing import Final

import torch
import xxhash
from torch import Tensor
from torch.nn import functional

from baton_core.requests.pooling import PoolingSpec
from baton_engine.checkpoint.weights import Part, WeightReader
from baton_engine.pooling.projection import IDENTITY, ProjectionPlan
from baton_engine.pooling.settings import PoolingPlan

_ACTIVATIONS: Final[dict[str, Callable[[Tensor], Tensor]]] = {
    IDENTITY: lambda x: x,
    "GELU": functional.gelu,
    "ReLU": functional.relu,
    "SiLU": functional.silu,
    "Sigmoid": torch.sigmoid,
    "Softmax": partial(torch.softmax, dim=-1),
    "Tanh": torch.tanh,
}


class Pooler:
    """Pools the hidden states of one prompt at a time: its result depends on nothing else in its step."""

    def __init__(self, plan: PoolingPlan, projections: Sequence[Projection]) -> None:
        self.model = plan.model
        self._plan = plan
        self._projections = projections

    def pool(self, hidden: Tensor, token_ids: Sequence[int], spec: PoolingSpec) -> Tensor:
        """Return an embedding or class scores `[size] float32` on the CPU, or those of tokens `[n, size]`.

        `hidden` is `[num_rows, hidden_size]`, the final hidden states of the tokens `needed` of the prompt
        `token_ids`. With steps, tasks per token return the rows of their tags alone.

        Raises:
            InvalidRequestError: the model does not pool what is asked for.
        """
        self.model.check(spec)
        pooled = hidden.float() if spec.task.is_per_token else self._pooled(hidden)
        for projection in self._projections:
            pooled = projection(pooled)
        pooled = self._embed(pooled, spec) if spec.task.is_embedding else self._score(pooled, token_ids, spec)
        return pooled.cpu()

    def needed(self, spec: PoolingSpec, num_tokens: int) -> range:
        """Return the tokens of the `num_tokens` in the step that ends a prompt whose states are pooled."""
        tokens = range(num_tokens)
        if not self.model.needs_whole_prompt(spec.task):
            return tokens[-1:]
        if spec.task.is_per_token:
            return tokens
        return {"CLS": tokens[:1], "LAST": tokens[-1:]}.get(self._plan.pooling_type, tokens)

    def _pooled(self, hidden: Tensor) -> Tensor:
        match self._plan.pooling_type:
            case "CLS":
                return hidden[0].float()
            case "LAST":
                return hidden[-1].float()
            case _:
                return hidden.float().mean(dim=0)

    def _embed(self, pooled: Tensor, spec: PoolingSpec) -> Tensor:
        dimensions = spec.dimensions or self._plan.dimensions
        if dimensions is not None:
            pooled = pooled[..., :dimensions]
        return functional.normalize(pooled, dim=-1) if self._is_activated(spec) else pooled.contiguous()

    def _score(self, scores: Tensor, token_ids: Sequence[int], spec: PoolingSpec) -> Tensor:
        plan = self._plan
        if spec.task.is_per_token:
            if plan.returned_classes is not None:
                scores = scores[:, list(plan.returned_classes)]
            if plan.step_tag_id is not None:
                scores = scores[[row for row, token in enumerate(token_ids) if token == plan.step_tag_id]]
        scores = (scores - plan.logit_mean) / plan.logit_sigma
        return _ACTIVATIONS[plan.activation](scores) if self._is_activated(spec) else scores

    def _is_activated(self, spec: PoolingSpec) -> bool:
        return self._plan.uses_activation if spec.use_activation is None else spec.use_activation


class Projection:
    """A linear layer in float32 with an activation, and a layer norm behind it.

    Raises:
        InvalidModelError: the weights do not fit the plan.
    """

    def __init__(self, plan: ProjectionPlan, weights: WeightReader, vocab_size: int) -> None:
        float32, name = torch.float32, next((one for one in plan.names if f"{one}.weight" in weights), None)
        name = name or plan.names[0]
        if plan.token_rows:
            self._weight = _head_rows(plan, weights, name, vocab_size)
        else:
            self._weight = weights.load(f"{name}.weight", (plan.out_size, plan.in_size), float32)
        has_bias = f"{name}.bias" in weights if plan.has_bias is None else plan.has_bias
        self._bias = weights.load(f"{name}.bias", (plan.out_size,), float32) if has_bias else None
        self._activation = _ACTIVATIONS[plan.activation]
        self._is_input_normalized = plan.is_input_normalized
        self._norm: Callable[[Tensor], Tensor] | None = None
        if plan.norm is not None:
            size = (plan.out_size,)
            scale = weights.load(f"{plan.norm}.weight", size, float32)
            has_shift = f"{plan.norm}.bias" in weights
            shift = weights.load(f"{plan.norm}.bias", size, float32) if has_shift else None
            norm = partial(functional.layer_norm, normalized_shape=size, weight=scale, bias=shift)
            self._norm = partial(norm, eps=plan.norm_eps)

    def __call__(self, x: Tensor) -> Tensor:
        """Map `[..., in_size] float32` to `[..., out_size]`."""
        if self._is_input_normalized:
            x = functional.normalize(x, dim=-1)
        out = self._activation(functional.linear(x, self._weight, self._bias))
        return out if self._norm is None else self._norm(out)


def load_pooler(plan: PoolingPlan, weights: WeightReader) -> Pooler:
    """Load what follows the hidden states of the model of `plan.config`, of which `weights` are.

    Raises:
        InvalidModelError: the weights do not fit the plan.
    """
    readers = {"": weights}
    for projection in plan.projections:
        if projection.folder not in readers:
            own = Path(weights.folder, projection.folder)
            readers[projection.folder] = type(weights)(own, torch.float32, weights.device)
    vocab_size = plan.config.vocab_size
    return Pooler(plan, [Projection(one, readers[one.folder], vocab_size) for one in plan.projections])


def digest_with_pooling(weights: WeightReader, plan: PoolingPlan | None) -> str:
    """Return `weights.digest()`, or for a model that pools a hash of how it does so and of its modules, too.

    `plan.config` is not part of it.

    Raises:
        InvalidModelError: a file is missing or ends too early.
    """
    digest = weights.digest()
    if plan is None:
        return digest
    settings = [(one.name, getattr(plan, one.name)) for one in fields(plan) if one.name != "config"]
    whole = xxhash.xxh3_128(repr((digest, settings)).encode())
    for module in plan.projections:
        if module.folder:
            reader = type(weights)(Path(weights.folder, module.folder), torch.float32)
            whole.update(reader.digest().encode())
    return whole.hexdigest()


def _head_rows(plan: ProjectionPlan, weights: WeightReader, name: str, vocab_size: int) -> Tensor:
    """Return rows of the output head, or differences of two, `[out_size, in_size]`."""

    def row(token: int) -> Tensor:
        part = Part(0, range(token, token + 1))
        return weights.load(f"{name}.weight", (vocab_size, plan.in_size), torch.float32, part)

    rows = [row(first) if less is None else row(first) - row(less) for first, less in plan.token_rows]
    return torch.cat(rows)
