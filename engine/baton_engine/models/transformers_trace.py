"""Finds out, without weights, what a model of Transformers asks of the KV cache.

The model is built on torch's meta device and run once: its attention calls tell heads, head sizes and
windows of each layer, and its masks tell whether it attends as the engine can. What cannot work is refused
with the reason. Imported only where Transformers is installed.
"""

from __future__ import annotations

import math
from collections.abc import Sequence
from typing import Any, Final

import torch
import transformers
from torch import Tensor, nn

from baton_engine.models.model_trace import ModelTrace, UnsupportedError
from baton_engine.models.transformers_attention import (
    TRACED,
    AttentionCall,
    MaskFunction,
    plugged,
    register,
)

_NUM_TOKENS: Final = 8
_FAR: Final = 5000
"""A position beyond the usual sizes of chunks, to look at masks that name no size."""
_VALUES_NEEDED: Final = ("meta tensor", "register_meta")
"""Parts of the messages of torch where code asks for values that the meta device does not have."""
_OWN_ATTENTION: Final = "attention classes of its own instead of the attention interface"


def trace_model(config: Any, num_layers: int) -> ModelTrace:
    """Run the model of a configuration of Transformers without weights.

    Raises:
        UnsupportedError: the engine cannot run it.
    """
    recorder = _Recorder()
    vocab_size = _run_without_weights(config, recorder)
    if len(recorder.shapes) > 1:
        raise UnsupportedError(f"layers of different KV heads and head sizes: {sorted(recorder.shapes)}")
    windows = _windows_by_layer(recorder.windows, num_layers)
    _refuse_shorter_caches(config, windows)
    ((num_kv_heads, key_dim, value_dim),) = recorder.shapes
    return ModelTrace(
        num_kv_heads=num_kv_heads,
        head_dim=max(key_dim, value_dim),
        layer_windows=windows,
        vocab_size=vocab_size,
    )


def _run_without_weights(config: Any, recorder: _Recorder) -> int:
    """Run one forward pass on the meta device under the recorder; return the width of the logits."""
    register()
    try:
        # bfloat16: some products of Transformers' models have no shape function for other types.
        with torch.device("meta"):
            model = transformers.AutoModelForCausalLM.from_config(
                config, attn_implementation=TRACED, dtype=torch.bfloat16
            )
    except KeyError as error:
        if error.args != (TRACED,):
            raise
        raise UnsupportedError(_OWN_ATTENTION) from None
    _refuse_structure(model)
    model = model.eval()
    token_ids = torch.zeros(1, _NUM_TOKENS, dtype=torch.int64, device="meta")
    try:
        output = _forward(model, recorder, input_ids=token_ids)
    # Code of many authors, some of which was never meant to run like this: it may raise anything.
    except Exception as error:
        if isinstance(error, UnsupportedError) or (reason := _why_failed(model, error)) is None:
            raise
        raise UnsupportedError(reason) from error
    try:
        _forward(model, _Recorder(), inputs_embeds=model.get_input_embeddings()(token_ids))
    except Exception as error:
        raise UnsupportedError("layers that need token ids, and not their embeddings alone") from error
    return int(output.logits.shape[-1])


def _forward(model: Any, recorder: _Recorder, **tokens: Tensor) -> Any:
    with plugged(recorder.attention, recorder.make_mask), torch.no_grad():
        return model(
            **tokens,
            position_ids=torch.arange(_NUM_TOKENS, device="meta")[None],
            attention_mask=torch.ones(1, _NUM_TOKENS, dtype=torch.int64, device="meta"),
            use_cache=False,
        )


def _why_failed(model: Any, error: Exception) -> str | None:
    """Say what in a model makes its run without weights fail; None if only the error tells."""
    if model._is_stateful:
        return "layers that keep a state, which has no cache"
    if not model._supports_attention_backend:
        return _OWN_ATTENTION
    if any(text in str(error) for text in _VALUES_NEEDED):
        return "code that looks at the values of its tensors, such as a recurrent state or counts of experts"
    return None


class _Recorder:
    """Takes the attention calls of one traced forward pass."""

    def __init__(self) -> None:
        self.shapes: set[tuple[int, int, int]] = set()
        """KV heads, size of a key, size of a value."""
        self.windows: list[tuple[int | None, int | None]] = []
        """Layer and window of each call."""
        self._masks: list[tuple[Tensor, int | None]] = []

    def make_mask(self, sees: MaskFunction, size: int | None, device: torch.device) -> Tensor:
        if not _is_causal(sees, size):
            raise UnsupportedError("an attention mask that is neither causal nor a sliding window")
        self._masks.append((torch.empty(1, 1, _NUM_TOKENS, _NUM_TOKENS, device=device), size))
        return self._masks[-1][0]

    def attention(self, call: AttentionCall) -> Tensor:
        if call.extra_tensors:
            raise UnsupportedError(f"attention with further tensors: {', '.join(call.extra_tensors)}")
        windows = [window for mask, window in self._masks if mask is call.mask]
        if not windows:
            raise UnsupportedError("an attention mask of its own")
        self.windows.append((call.layer, windows[0]))
        self.shapes.add((call.key.shape[1], call.key.shape[2], call.value.shape[2]))
        return call.query.new_empty(*call.query.shape[:2], call.value.shape[2])


def _is_causal(sees: MaskFunction, window: int | None) -> bool:
    """Say whether a mask function is causal, within the window if there is one, looking at a few rows."""
    zero = torch.zeros((), dtype=torch.int64)
    positions = (0, 1, _FAR) if window is None else (0, window - 1, window, 2 * window + 1)
    for position in positions:
        keys = torch.arange(position + 2)
        expected = (keys <= position) & (keys > position - (window or len(keys)))
        try:
            seen = sees(zero, zero, torch.tensor(position), keys)
        except RuntimeError:  # It looks at more than positions: at tensors of the traced model.
            return False
        if not torch.equal(torch.as_tensor(seen).expand_as(keys), expected):
            return False
    return True


def _windows_by_layer(
    calls: Sequence[tuple[int | None, int | None]], num_layers: int
) -> tuple[int | None, ...]:
    if not calls:
        raise UnsupportedError("no layer that calls Transformers' attention interface")
    windows = {layer: window for layer, window in calls if layer is not None}
    if len(calls) != num_layers or set(windows) != set(range(num_layers)):
        called = [layer for layer, _ in calls]
        raise UnsupportedError(
            f"attention calls of the layers {called}, where each of {num_layers} layers has to call once"
        )
    return tuple(windows[layer] for layer in range(num_layers))


def _refuse_shorter_caches(config: Any, windows: Sequence[int | None]) -> None:
    """Refuse layers whose cache in Transformers forgets tokens that their mask shows.

    There the tokens of a generation depend on which of its steps computed them. A window that the family
    does not know, which its cache alone would read, came into the file from elsewhere and is passed over.
    """
    if not hasattr(type(config), "sliding_window"):
        return
    longest = getattr(config, "max_position_embeddings", None) or math.inf
    caches = transformers.DynamicCache(config=config).layers
    for layer, (cache, window) in enumerate(zip(caches, windows, strict=False)):
        kept = getattr(cache, "sliding_window", None) or longest
        if window is None and kept < longest:
            raise UnsupportedError(f"a cache of {kept} tokens in layer {layer}, whose mask has no window")


def _refuse_structure(model: nn.Module) -> None:
    """Refuse what the engine cannot take apart, and convolutions over tokens.

    Convolutions and the state spaces that come with them need a cache of their own.
    """
    if not hasattr(model, str(model.base_model_prefix)):
        raise UnsupportedError(f"no decoder under the name {model.base_model_prefix!r}")
    for name, module in model.named_modules():
        if isinstance(module, nn.Conv1d):
            raise UnsupportedError(f"a convolution over tokens ({name}), whose state has no cache")
