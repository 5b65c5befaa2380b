"""A file that the process's log goes to."""

from __future__ import annotations

import logging
import os
from pathlib import Path
from typing import Any

from baton_service.logs import configure_logging


class LogFile:
    """The log, once it is configured."""

    def __init__(self, path: Path) -> None:
        self._path = path
        path.touch()

    def configure(self, **settings: Any) -> logging.Logger:
        """Send log lines to the file; the descriptor is the process's to its end."""
        descriptor = os.open(self._path, os.O_WRONLY | os.O_APPEND)
        configure_logging("router", file_descriptor=descriptor, **settings)
        return logging.getLogger("baton_router.test")

    def text(self) -> str:
        """All that was logged so far."""
        for handler in logging.getLogger().handlers:
            handler.flush()
        return self._path.read_text()
