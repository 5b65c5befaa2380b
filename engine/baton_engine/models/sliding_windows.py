"""Models without their sliding windows, for sequences of which a window would leave out no token."""

from __future__ import annotations

from dataclasses import replace

from baton_core.errors import InvalidConfigError
from baton_engine.checkpoint.model_config import ModelConfig
from baton_engine.models.decoder_config import DecoderConfig
from baton_engine.models.encoder_config import EncoderConfig
from baton_engine.models.transformers_config import TransformersConfig


def without_windows(config: ModelConfig, max_model_len: int | None) -> ModelConfig:
    """Return the configuration in which all layers see all tokens, of sequences as long as its least window.

    A model without windows stays as it is.

    Raises:
        InvalidConfigError: `max_model_len`, which the operator asks for, is longer than the window, or code
            from elsewhere has the windows.
    """
    windows = [window for window in _windows(config) if window is not None]
    if not windows:
        return config
    if not isinstance(config, DecoderConfig | EncoderConfig | TransformersConfig):
        text = f"disable_sliding_window is True; allowed with {config.architecture}: False"
        raise InvalidConfigError(f"{text} (a registered model keeps its own windows)")
    # A window to both sides of a token leaves its own place out.
    longest = min(windows) + (not getattr(config, "is_causal", True))
    if max_model_len is not None and max_model_len > longest:
        text = f"max_model_len is {max_model_len}; allowed with disable_sliding_window: at most {longest}"
        raise InvalidConfigError(f"{text}, the sliding window of {config.architecture}")
    return _opened(config, min(longest, config.max_position_embeddings))


def _windows(config: ModelConfig) -> list[int | None]:
    if isinstance(config, DecoderConfig | EncoderConfig):
        return [layer.window for layer in config.layers]
    return [group.window for group in config.kv_spec(1, config.dtype).groups]


def _opened(config: DecoderConfig | EncoderConfig | TransformersConfig, longest: int) -> ModelConfig:
    match config:
        case DecoderConfig():
            decoder_layers = tuple(replace(layer, window=None) for layer in config.layers)
            return replace(config, layers=decoder_layers, max_position_embeddings=longest)
        case EncoderConfig():
            encoder_layers = tuple(replace(layer, window=None) for layer in config.layers)
            return replace(config, layers=encoder_layers, max_position_embeddings=longest)
        case TransformersConfig():
            windows = (None,) * len(config.layer_windows)
            return replace(config, layer_windows=windows, max_position_embeddings=longest)
