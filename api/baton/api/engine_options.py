"""Options of the constructors of engines, in all forms that vLLM has had: they come to one `EngineArgs`."""

from __future__ import annotations

import logging
from collections.abc import Mapping
from dataclasses import replace
from typing import Any, Final

from baton.api.ray_stat_logger import RayPrometheusStatLogger
from baton.config.engine_args import EngineArgs
from baton.config.vllm_config import ConfigPart, VllmConfig
from baton_core.errors import InvalidConfigError

_PARTS: Final = (
    *("model_config", "cache_config", "parallel_config", "scheduler_config", "device_config", "load_config"),
    *("lora_config", "speculative_config", "decoding_config", "observability_config"),
    "prompt_adapter_config",
)
"""Parts of a configuration, which vLLM's engines once took one by one."""
_WITHOUT_EFFECT: Final = (
    *("usage_context", "aggregate_engine_logging", "use_cached_outputs", "multiprocess_mode"),
    *("enable_multiprocessing", "start_engine_loop", "log_requests"),
)
_REASONS: Final = {
    "stat_loggers": "get_metrics returns the figures, and a router's /metrics has them",
    "mm_registry": "models of text alone are supported",
    "input_registry": "models of text alone are supported",
}
EngineConfig = EngineArgs | VllmConfig
_log = logging.getLogger(__name__)


def read_engine_options(
    who: str, config: EngineConfig | None, log_stats: bool | None, options: Mapping[str, Any]
) -> EngineArgs:
    """Return the arguments of an engine; `who` is the class that is constructed, for errors.

    Args:
        config: `EngineArgs`, or what their `create_engine_config` returned; None where `options` have its
            parts.
        log_stats: the opposite of `disable_log_stats`; None leaves that as it is.

    Raises:
        InvalidConfigError: an option asks for what there is not.
        TypeError: an option is unknown, or there is no configuration.
    """
    for name, value in options.items():
        if name == "stat_loggers" and value == [RayPrometheusStatLogger]:
            _log.warning("figures are not exported to Ray: %s", _REASONS[name])
            continue
        if name in _REASONS and value is not None:
            raise InvalidConfigError(f"{name} is {value!r:.80}; allowed: None ({_REASONS[name]})")
        if name not in (*_PARTS, *_WITHOUT_EFFECT, *_REASONS):
            raise TypeError(f"{who}.__init__() got an unexpected keyword argument {name!r}")
    if config is None:
        config = _whole(who, [options[name] for name in _PARTS if options.get(name) is not None])
    args = config if isinstance(config, EngineArgs) else config.engine_args
    assert isinstance(args, EngineArgs), "a configuration is made of them"
    return args if log_stats is None else replace(args, disable_log_stats=not log_stats)


def _whole(who: str, parts: list[Any]) -> EngineArgs:
    """Return the arguments that all parts were made of."""
    sources = [part.engine_args for part in parts if isinstance(part, ConfigPart)]
    if not sources:
        raise TypeError(f"{who}.__init__() needs vllm_config: EngineArgs, or their create_engine_config()")
    if any(source is not sources[0] for source in sources):
        allowed = "the parts of one configuration, as EngineArgs.create_engine_config returns it"
        raise InvalidConfigError(f"model_config and the other parts are of several; allowed: {allowed}")
    first: EngineArgs = sources[0]
    return first
