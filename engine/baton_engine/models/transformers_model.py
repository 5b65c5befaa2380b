"""Runs a decoder of Transformers over the paged cache: its own code, with the engine's attention plugged in.

All tokens of a step go through as one sequence of the batch; only the attention knows which belong together.
Imported only where Transformers is installed. Called from the engine thread under inference mode.
"""

from __future__ import annotations

import copy
from dataclasses import dataclass
from typing import Any, Final

import torch
import transformers
from torch import Tensor, nn
from torch.nn import functional
from transformers.modeling_outputs import MoeModelOutputWithPast

from baton_core.errors import InvalidModelError
from baton_engine.checkpoint.weights import WeightReader
from baton_engine.models.input_embeds import InputEmbeds
from baton_engine.models.step_attention import StepAttention
from baton_engine.models.transformers_attention import ATTENTION, AttentionCall, plugged, register
from baton_engine.models.transformers_config import (
    TransformersConfig,
    failure,
    first_line,
    load_transformers_config,
)
from baton_kernels.interface.kernels import LayerKernels

_CHECKED_POSITIONS: Final = (0, 3, 1, 3, 2)
_CHECKED_ROWS: Final = (1, 3)
"""The two tokens that stand at the same position; the others are NaN."""
_CHECK_TOLERANCE: Final = 0.05


class TransformersModel:
    """A loaded model: token ids to hidden states, hidden states to logits.

    Raises:
        InvalidModelError: weights are missing, or tokens of different sequences would meet outside the
            attention.
    """

    def __init__(self, config: TransformersConfig, weights: WeightReader, kernels: LayerKernels) -> None:
        self._config = config
        self.dtype = weights.dtype
        self.device = weights.device
        self.is_capturable = False  # nobody here knows what a family's own code does
        self._model = _load(config, weights)
        self._embedding = self._model.get_input_embeddings()
        self.embedding_size: int = self._embedding.weight.shape[-1]
        """Width of the embeddings that may stand in the place of tokens."""
        self._decoder: nn.Module = getattr(self._model, self._model.base_model_prefix)
        self._head = _head_of(self._model)
        self._check_independence()

    def forward(
        self,
        token_ids: Tensor,
        attention: StepAttention,
        rows: Tensor | None = None,
        embeds: InputEmbeds | None = None,
    ) -> Tensor:
        """Return the final hidden states `[num_rows, hidden_size]` of `token_ids` `[num_tokens] int64`.

        `rows` `[num_rows] int64` are the tokens whose hidden states are wanted; None wants those of all.
        `embeds` stand in the place of embeddings of tokens.
        Writes the K and V of every token to the cache behind `attention`.
        """
        head_dim = self._config.head_dim

        def paged_attention(call: AttentionCall) -> Tensor:
            assert call.layer is not None, "the trace refuses attention without a layer"
            q, k, v = (_padded(side, head_dim) for side in (call.query, call.key, call.value))
            out = attention.attention(call.layer, q, k, v, scale=call.scale, softcap=call.softcap)
            return out[..., : call.value.shape[-1]]

        with plugged(paged_attention):
            given = {"input_ids": token_ids[None]}
            if embeds is not None:
                given = {"inputs_embeds": embeds.put(self._embedding(token_ids))[None]}
            output = self._decoder(**given, position_ids=attention.positions[None], use_cache=False)
        hidden: Tensor = output.last_hidden_state[0]
        return hidden if rows is None else hidden[rows]

    def logits(self, hidden: Tensor) -> Tensor:
        """Return the logits `[num_rows, vocab_size]` of hidden states `[num_rows, hidden_size]`."""
        logits: Tensor = self._head(inputs_embeds=hidden[None], use_cache=False).logits[0]
        return logits

    @torch.inference_mode()
    def _check_independence(self) -> None:
        """Run one token twice at the same position among NaNs, each attending to itself alone.

        What is NaN afterwards has met another token; what differs takes its position from the step.
        """
        rows: list[Tensor] = []

        def note_rows(call: AttentionCall) -> Tensor:
            rows.extend(side[list(_CHECKED_ROWS)].flatten(1) for side in (call.query, call.key))
            return call.value.repeat_interleave(call.query.shape[1] // call.value.shape[1], dim=1)

        positions = torch.tensor([_CHECKED_POSITIONS], device=self.device)
        token_ids = torch.full_like(positions, self._config.vocab_size // 2)
        embedded = self._model.get_input_embeddings()(token_ids)
        is_clean = torch.zeros_like(positions, dtype=torch.bool)
        is_clean[:, list(_CHECKED_ROWS)] = True
        embedded = embedded.masked_fill(~is_clean[..., None], torch.nan)
        inputs: dict[str, Any] = {"position_ids": positions, "use_cache": False}
        try:
            with plugged(note_rows):
                # Clones, because some families scale embeddings in place.
                whole = self._model(inputs_embeds=embedded.clone(), **inputs).logits[is_clean]
                hidden = self._decoder(inputs_embeds=embedded.clone(), **inputs).last_hidden_state[is_clean]
            logits = torch.stack((whole[0], self.logits(hidden)[0]))
        except Exception as error:  # Code of many authors: it may raise anything.
            raise self._refusal(f"code that {failure(error)}") from error
        if not all(map(_are_alike, [hidden, *rows])):
            raise self._refusal("tokens that meet outside its attention")
        if not _are_alike(logits):
            raise self._refusal("logits that depend on more than the last hidden state")

    def _refusal(self, reason: str) -> InvalidModelError:
        return InvalidModelError(
            f"{self._config.folder}: {self._config.architecture} has {reason}; "
            "allowed: decoders whose tokens meet in the attention alone"
        )


@dataclass
class _DecoderOutput(MoeModelOutputWithPast):  # type: ignore[misc]  # mypy does not follow transformers
    """The fields of a decoder's output that the head of any family reads."""

    cross_attentions: Any = None
    shared_kv_states: Any = None


class _GivenHidden(nn.Module):
    """Stands where a head expects its decoder: hands on the hidden states that it is given."""

    def forward(self, *_: Any, inputs_embeds: Tensor, **__: Any) -> _DecoderOutput:
        return _DecoderOutput(last_hidden_state=inputs_embeds)


def _head_of(model: nn.Module) -> nn.Module:
    """Return the model without its decoder: the head with all scales and caps that the family applies."""
    head = copy.copy(model)
    head._modules = {**model._modules, str(model.base_model_prefix): _GivenHidden()}
    return head


def _load(config: TransformersConfig, weights: WeightReader) -> Any:
    register()
    transformers.utils.logging.disable_progress_bar()
    try:
        model, info = transformers.AutoModelForCausalLM.from_pretrained(
            config.folder,
            config=load_transformers_config(config.folder, config.overrides),
            dtype=weights.dtype,
            attn_implementation=ATTENTION,
            trust_remote_code=False,
            output_loading_info=True,
        )
    except (OSError, RuntimeError, ValueError) as error:
        raise InvalidModelError(
            f"{config.folder}: {first_line(error)}; allowed: the weights of its config.json"
        ) from error
    for name in sorted(info["missing_keys"]):
        raise InvalidModelError(f"{config.folder}: tensor {name} is missing; allowed: weights that hold it")
    model = model.to(weights.device).eval().requires_grad_(False)
    weights.loaded_bytes += sum(tensor.nbytes for tensor in (*model.parameters(), *model.buffers()))
    return model


def _padded(side: Tensor, head_dim: int) -> Tensor:
    """Widen `[num_tokens, num_heads, size]` with zeros to the head size of the cache."""
    return functional.pad(side, (0, head_dim - side.shape[-1])).contiguous()


def _are_alike(rows: Tensor) -> bool:
    """Say whether two rows are finite and equal but for rounding."""
    first, second = rows.float()
    return bool((first - second).abs().max() <= _CHECK_TOLERANCE * first.abs().max())
