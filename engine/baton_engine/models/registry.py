"""The readers and models by architecture."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from dataclasses import dataclass
from pathlib import Path
from types import MappingProxyType
from typing import Any, Final

from baton_core.errors import InvalidConfigError
from baton_engine.checkpoint.config_fields import ConfigFields
from baton_engine.checkpoint.dummy_weights import DummyWeights
from baton_engine.checkpoint.model_config import ModelConfig, read_architecture
from baton_engine.checkpoint.weights import WeightReader
from baton_engine.models import decoder_reading, learned_positions_config
from baton_engine.models.decoder import Decoder
from baton_engine.models.decoder_config import DecoderConfig
from baton_engine.models.learned_positions import LearnedPositionsDecoder
from baton_engine.models.learned_positions_config import LearnedPositionsConfig
from baton_engine.models.model import Model
from baton_engine.models.transformers_config import TransformersConfig, read_transformers_config
from baton_kernels.interface.kernels import LayerKernels


@dataclass(frozen=True, slots=True, kw_only=True)
class Family:
    """Architectures that share their code.

    `read_config` takes the model folder, its config.json and the length that the operator asks for; `build`
    takes what `read_config` returned.
    Both raise InvalidModelError for what the family cannot run.
    """

    architectures: tuple[str, ...]
    read_config: Callable[[Path, ConfigFields, int | None], ModelConfig]
    build: Callable[[Any, WeightReader, LayerKernels], Model]


FAMILIES: Final = (
    Family(
        architectures=decoder_reading.ARCHITECTURES,
        read_config=decoder_reading.read_decoder_config,
        build=Decoder,
    ),
    Family(
        architectures=learned_positions_config.ARCHITECTURES,
        read_config=learned_positions_config.read_learned_positions_config,
        build=LearnedPositionsDecoder,
    ),
)
_FAMILY_OF: Final = {name: family for family in FAMILIES for name in family.architectures}


def read_model_config(
    folder: Path, max_model_len: int | None = None, overrides: Mapping[str, Any] = MappingProxyType({})
) -> ModelConfig:
    """Read and check a model folder's configuration.

    `max_model_len` is the longest sequence that the operator asks for; None takes the model's. `overrides`
    come before the values of config.json.

    Raises:
        InvalidModelError: a file or key is missing, or a value is of the wrong type, contradicts another or
            asks for what the engine does not implement.
    """
    fields = ConfigFields.from_file(folder / "config.json").updated(overrides)
    architecture = read_architecture(fields)
    if architecture not in _FAMILY_OF:
        return read_transformers_config(folder, fields, native=tuple(_FAMILY_OF), overrides=overrides)
    return _FAMILY_OF[architecture].read_config(folder, fields, max_model_len)


def why_not_dense(config: ModelConfig) -> str:
    """Name a model that has more than dense layers of native code, and what it has; empty for others."""
    match config:
        case DecoderConfig(mixture=None) | LearnedPositionsConfig():
            return ""
        case DecoderConfig():
            return f"{config.architecture}, a mixture of experts"
    return f"{config.architecture}, which runs through Transformers"


def build_model(config: ModelConfig, weights: WeightReader, kernels: LayerKernels) -> Model:
    """Build the model of a configuration that `read_model_config` returned.

    Raises:
        InvalidModelError: the weights do not fit the configuration.
        InvalidConfigError: the model cannot have dummy weights.
    """
    if isinstance(config, TransformersConfig):
        if isinstance(weights, DummyWeights):
            allowed = "auto: it runs through Transformers, which reads its weights itself"
            raise InvalidConfigError(f"load_format is 'dummy'; allowed with {config.architecture}: {allowed}")
        # Imports Transformers, which is optional.
        from baton_engine.models.transformers_model import TransformersModel

        return TransformersModel(config, weights, kernels)
    return _FAMILY_OF[config.architecture].build(config, weights, kernels)
