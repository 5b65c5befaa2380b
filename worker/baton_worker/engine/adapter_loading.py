"""The result of loading a LoRA adapter, as the worker's core is told of it."""

from __future__ import annotations

import logging
from concurrent.futures import Future

from baton_core.errors import BatonError, ErrorCode, InvalidRequestError
from baton_core.requests.adapter import Adapter
from baton_core.worker.worker_events import AdapterLoaded

_log = logging.getLogger(__name__)


def adapter_loaded(adapter: Adapter, loading: Future[float]) -> AdapterLoaded:
    """Return the answer to a `LoadAdapter` whose loading has ended, with the seconds that it took."""
    error = loading.exception()
    if error is None:
        seconds = loading.result()
        _log.info("adapter %s is loaded, in %.3f s", adapter.name, seconds)
        return AdapterLoaded(digest=adapter.digest, seconds=seconds)
    if isinstance(error, InvalidRequestError):
        return AdapterLoaded(digest=adapter.digest, error=str(error), code=error.code)
    if isinstance(error, BatonError):
        _log.error("adapter %s could not be loaded: %s", adapter.name, error)
        text = f"adapter {adapter.name} could not be loaded: {error}"
        return AdapterLoaded(digest=adapter.digest, error=text, code=error.code)
    _log.error("adapter %s could not be loaded", adapter.name, exc_info=error)
    text = f"adapter {adapter.name} could not be loaded: {type(error).__name__}: {error}"
    return AdapterLoaded(digest=adapter.digest, error=text, code=ErrorCode.INTERNAL)
