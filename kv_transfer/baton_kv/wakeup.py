"""A flag that any thread may set and that a poll on file descriptors sees."""

from __future__ import annotations

import os
import weakref


class Wakeup:
    """`file` is readable while the flag is set. Valid for as long as somebody refers to this object."""

    def __init__(self) -> None:
        self.file = os.eventfd(0, os.EFD_NONBLOCK | os.EFD_CLOEXEC)
        weakref.finalize(self, os.close, self.file)

    def set(self) -> None:
        os.eventfd_write(self.file, 1)

    def clear(self) -> None:
        """Lower the flag, which must be set."""
        os.eventfd_read(self.file)
