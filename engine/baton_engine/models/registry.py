"""The readers and models by architecture."""

from __future__ import annotations

from collections.abc import Callable, Mapping, Set
from dataclasses import dataclass
from importlib import import_module
from pathlib import Path
from types import MappingProxyType
from typing import Any, ClassVar, Final

from baton_core.errors import InvalidConfigError
from baton_engine.checkpoint.config_fields import ConfigFields
from baton_engine.checkpoint.dummy_weights import DummyWeights
from baton_engine.checkpoint.model_config import ModelConfig, read_architecture
from baton_engine.checkpoint.model_fields import read_model_fields
from baton_engine.checkpoint.weights import WeightReader
from baton_engine.models import decoder_reading, encoder_reading, learned_positions_config
from baton_engine.models.decoder import Decoder
from baton_engine.models.decoder_config import DecoderConfig
from baton_engine.models.decoder_families import family_name
from baton_engine.models.encoder import Encoder
from baton_engine.models.encoder_config import EncoderConfig
from baton_engine.models.learned_positions import LearnedPositionsDecoder
from baton_engine.models.learned_positions_config import LearnedPositionsConfig
from baton_engine.models.model import Model
from baton_engine.models.sliding_windows import without_windows
from baton_engine.models.transformers_config import TransformersConfig, read_transformers_config
from baton_engine.ranks.ranks import ALONE, Ranks
from baton_kernels.interface.kernels import LayerKernels


@dataclass(frozen=True, slots=True, kw_only=True)
class Family:
    """Architectures that share their code.

    `read_config` takes the model folder, its config.json and the length that the operator asks for; `build`
    takes what that returned, the weights and the kernels, and for a part of a model its `Ranks`, too.
    Both raise InvalidModelError for what the family cannot run.
    """

    architectures: tuple[str, ...]
    read_config: Callable[[Path, ConfigFields, int | None], ModelConfig]
    build: Callable[[Any, WeightReader, LayerKernels], Model]


NATIVE: Final = (DecoderConfig, EncoderConfig, LearnedPositionsConfig)
"""Classes of configurations whose models are Baton's own code: others have neither quantization nor ranks."""
NATIVE_FAMILIES: Final = (
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
    Family(
        architectures=encoder_reading.ARCHITECTURES,
        read_config=encoder_reading.read_encoder_config,
        build=Encoder,
    ),
)
_NATIVE: Final = {name: family for family in NATIVE_FAMILIES for name in family.architectures}
_INTERFACE: Final = (
    "a class with read_config(folder, fields, max_model_len) and, of its result, weights and kernels, "
    "a Model of Baton's; vLLM's own layers and its vllm_config are not there"
)


class ModelRegistry:
    """Models of code from elsewhere, by architecture, in this process; each process registers its own.

    Such a class is a `Model` whose constructor takes what its static method `read_config` returned, the
    weights and the kernels, as `Family` says.
    """

    _registered: ClassVar[dict[str, type | str]] = {}

    @classmethod
    def register_model(cls, model_arch: str, model_cls: type | str) -> None:
        """Take a class, or `package.module:Class`, which is imported when such a model is read.

        It comes before the code that there is for the architecture.

        Raises:
            InvalidConfigError: the class is none that the engine can run.
        """
        if isinstance(model_cls, str):
            if not all(part for part in model_cls.partition(":")):
                raise InvalidConfigError(
                    f"model_cls is {model_cls!r}; allowed: a class, or package.module:Class"
                )
        else:
            _require_interface(model_arch, model_cls)
        cls._registered[model_arch] = model_cls

    @classmethod
    def get_supported_archs(cls) -> Set[str]:
        """Architectures with native or registered code; most other decoders run through Transformers."""
        return {**_NATIVE, **cls._registered}.keys()

    @classmethod
    def find(cls, architecture: str) -> Family | None:
        """Return the code of an architecture; None where only Transformers may have some.

        Raises:
            InvalidConfigError: a class was registered that cannot be imported, or cannot be run.
        """
        found: Any = cls._registered.get(architecture)
        if found is None:
            return _NATIVE.get(family_name(architecture) or architecture)
        if isinstance(found, str):
            module, _, name = found.partition(":")
            try:
                found = getattr(import_module(module), name)
            except (ImportError, AttributeError) as error:
                text = f"the model of {architecture} is {found!r} ({error})"
                raise InvalidConfigError(f"{text}; allowed: a class that can be imported") from error
        _require_interface(architecture, found)
        return Family(architectures=(architecture,), read_config=found.read_config, build=found)

    @classmethod
    def is_registered(cls, architecture: str) -> bool:
        """True if an architecture's code comes from elsewhere."""
        return architecture in cls._registered


def _require_interface(architecture: str, model: Any) -> None:
    missing = [name for name in ("read_config", "forward", "logits") if not hasattr(model, name)]
    if missing:
        what = f"{model!r:.200} without {', '.join(missing)}"
        raise InvalidConfigError(f"the model of {architecture} is {what}; allowed: {_INTERFACE}")


def read_model_config(
    folder: Path,
    max_model_len: int | None = None,
    overrides: Mapping[str, Any] = MappingProxyType({}),
    *,
    disable_sliding_window: bool = False,
) -> ModelConfig:
    """Read and check a model folder's configuration.

    `max_model_len` is the longest sequence that the operator asks for; None takes the model's. `overrides`
    come before the values of config.json. With `disable_sliding_window` no layer has a window, and the
    longest sequence is as long as the least of them.

    Raises:
        InvalidModelError: a file or key is missing, or a value is of the wrong type, contradicts another or
            asks for what the engine does not implement.
        InvalidConfigError: as `without_windows`.
    """
    config = _read_whole(folder, max_model_len, overrides)
    return without_windows(config, max_model_len) if disable_sliding_window else config


def _read_whole(folder: Path, max_model_len: int | None, overrides: Mapping[str, Any]) -> ModelConfig:
    fields = read_model_fields(folder, overrides)
    architecture = read_architecture(fields)
    family = ModelRegistry.find(architecture)
    if family is None:
        names = ModelRegistry.get_supported_archs()
        native = tuple(name for name in names if not name.endswith(encoder_reading.HEADS))
        return read_transformers_config(folder, fields, native=native, overrides=overrides)
    config = family.read_config(folder, fields, max_model_len)
    if config.architecture != architecture:
        allowed = f"{architecture}, for whose model it was asked"
        raise fields.refuse("the architecture of read_config's result", config.architecture, allowed)
    return config


def why_not_native(config: ModelConfig) -> str:
    """Name a model that Baton's own code does not run, and what does; empty for others."""
    if ModelRegistry.is_registered(config.architecture):
        return f"{config.architecture}, a registered model"
    if isinstance(config, NATIVE):
        return ""
    return f"{config.architecture}, which runs through Transformers"


def require_head(config: ModelConfig) -> None:
    """Refuse to generate with a model that has no logits, or whose tokens see those behind them.

    Raises:
        InvalidConfigError: naming the architecture.
    """
    is_decoder = getattr(config, "has_head", True) and getattr(config, "is_causal", True)
    if not is_decoder:
        text = f"runner is 'generate'; allowed with {config.architecture}: 'pooling'"
        raise InvalidConfigError(f"{text} (it has no logits, or its tokens see those behind them)")


def build_model(
    config: ModelConfig, weights: WeightReader, kernels: LayerKernels, ranks: Ranks = ALONE
) -> Model:
    """Build the model of a configuration that `read_model_config` returned, or the part of a rank.

    Only native models can be divided: see `require_divisible`.

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
    family = ModelRegistry.find(config.architecture)
    assert family is not None, "its configuration was read"
    if ranks.has_plain_sums:
        return family.build(config, weights, kernels)
    native: Any = family.build
    model: Model = native(config, weights, kernels, ranks)
    return model
