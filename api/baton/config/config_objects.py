"""Parts of a configuration as objects, under the names of vLLM's classes; a None is not said.

`EngineArgs` take each in place of the mapping of that name, and check its values.
"""

from __future__ import annotations

from dataclasses import make_dataclass
from typing import Any, Final

from baton.config.engine_arg_values import PROFILER_KEYS
from baton_core.worker import speculative_config
from baton_engine.pooling.pooler_config import KEYS as POOLER_KEYS


def _values(name: str, keys: tuple[str, ...]) -> type:
    return make_dataclass(
        name, [(key, Any, None) for key in keys], kw_only=True, namespace={"__module__": __name__}
    )


PoolerConfig: Final = _values("PoolerConfig", POOLER_KEYS)
ProfilerConfig: Final = _values("ProfilerConfig", PROFILER_KEYS)
SpeculativeConfig: Final = _values("SpeculativeConfig", speculative_config.KEYS)
