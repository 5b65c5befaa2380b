"""Builders of small models that pool, and what Baton's engine pools with them, without a worker."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from itertools import accumulate
from pathlib import Path
from types import MappingProxyType
from typing import Any, Final

import torch
from torch import Tensor
from transformers import PretrainedConfig, PreTrainedModel

from baton_core.requests.pooling import PoolingSpec, PoolingTask
from baton_engine.checkpoint.model_fields import read_model_fields
from baton_engine.checkpoint.weights import WeightReader
from baton_engine.models.registry import build_model, read_model_config
from baton_engine.models.step_attention import StepAttention
from baton_engine.pooling.pooler import load_pooler
from baton_engine.pooling.settings import PoolingSettings, read_pooling
from baton_kernels.interface.kernels import AttentionBatch, Kernels
from baton_kernels.selection import select_kernels
from tests.models import make_tokenizer, randomise

BLOCK_SIZE: Final = 8
SIZES: Final = MappingProxyType(
    {
        "vocab_size": 512,
        "hidden_size": 64,
        "intermediate_size": 96,
        "num_hidden_layers": 3,
        "num_attention_heads": 4,
        "max_position_embeddings": 128,
    }
)
EMBED: Final = PoolingSpec(task=PoolingTask.EMBED)
CLASSIFY: Final = PoolingSpec(task=PoolingTask.CLASSIFY)


def make_pooling_model(
    folder: Path, config: type[PretrainedConfig], model: type[PreTrainedModel], **values: Any
) -> PreTrainedModel:
    """Write a model of random weights to `folder` and return it as Transformers has it."""
    made = model(config(**{**SIZES, **values})).eval()
    randomise(made, seed=0)
    made.save_pretrained(folder)
    make_tokenizer().save_pretrained(folder)
    return made


class EnginePooler:
    """A model of a folder as the engine loads it, with its pooler."""

    def __init__(
        self,
        folder: Path,
        *,
        convert: str = "auto",
        pooler: Mapping[str, Any] = MappingProxyType({}),
        overrides: Mapping[str, Any] = MappingProxyType({}),
        kernels: Kernels | None = None,
        dtype: torch.dtype = torch.float32,
    ) -> None:
        self._kernels = kernels or select_kernels("cpu", dtype)
        fields = read_model_fields(folder, overrides)
        config = read_model_config(folder, overrides=overrides)
        settings = PoolingSettings(convert=convert, pooler=pooler)
        self.plan = read_pooling(folder, fields, config, settings)
        weights = WeightReader(folder, dtype)
        self._model = build_model(self.plan.config, weights, self._kernels.layers)
        self._pooler = load_pooler(self.plan, weights)
        self._spec = self.plan.config.kv_spec(BLOCK_SIZE, str(dtype).removeprefix("torch."))

    @torch.inference_mode()
    def hidden(
        self,
        prompts: Sequence[Sequence[int]],
        token_types: Tensor | None = None,
        spec: PoolingSpec | None = None,
    ) -> list[Tensor]:
        """Return the final hidden states of each prompt, or those that `spec` needs, computed in one step."""
        lens = [len(prompt) for prompt in prompts]
        counts = [-(-length // BLOCK_SIZE) for length in lens]
        starts = [sum(counts[:index]) for index in range(len(counts))]
        tables = [list(range(start, start + count)) for start, count in zip(starts, counts, strict=True)]
        batches = AttentionBatch.build_groups(
            query_lens=lens,
            context_lens=lens,
            block_tables=[tables] * len(self._spec.groups),
            windows=[group.window for group in self._spec.groups],
            block_size=BLOCK_SIZE,
        )
        pool = torch.full((sum(counts), *self._spec.block_shape), torch.nan, dtype=self._model.dtype)
        attention = StepAttention(self._kernels.attention, pool, self._spec, batches, token_types)
        token_ids = torch.tensor([token for prompt in prompts for token in prompt])
        if spec is None:
            return list(self._model.forward(token_ids, attention).split(lens))
        starts = list(accumulate(lens[:-1], initial=0))
        needed = [self._pooler.needed(spec, length) for length in lens]
        rows = [start + token for start, tokens in zip(starts, needed, strict=True) for token in tokens]
        kept = self._model.forward(token_ids, attention, torch.tensor(rows))
        return list(kept.split([len(tokens) for tokens in needed]))

    def pool(
        self, prompts: Sequence[Sequence[int]], spec: PoolingSpec, token_types: Tensor | None = None
    ) -> list[Tensor]:
        """Return what the model pools of each prompt."""
        with torch.inference_mode():
            return [
                self._pooler.pool(hidden, prompt, spec)
                for hidden, prompt in zip(self.hidden(prompts, token_types, spec), prompts, strict=True)
            ]
