"""Pipes between a launcher and the processes that it has started, on their loops."""

from __future__ import annotations

import asyncio
import os
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager


@asynccontextmanager
async def reading(file_descriptor: int) -> AsyncIterator[asyncio.StreamReader]:
    """Read a pipe, which is closed at the end of the block."""
    reader = asyncio.StreamReader()
    transport, _ = await asyncio.get_running_loop().connect_read_pipe(
        lambda: asyncio.StreamReaderProtocol(reader), os.fdopen(file_descriptor, "rb")
    )
    try:
        yield reader
    finally:
        transport.close()


@asynccontextmanager
async def writing(file_descriptor: int) -> AsyncIterator[asyncio.StreamWriter]:
    """Write a pipe, which is closed at the end of the block; unread data is lost then."""
    loop = asyncio.get_running_loop()
    transport, protocol = await loop.connect_write_pipe(
        lambda: asyncio.StreamReaderProtocol(asyncio.StreamReader()), os.fdopen(file_descriptor, "wb", 0)
    )
    try:
        yield asyncio.StreamWriter(transport, protocol, None, loop)
    finally:
        if not transport.is_closing():  # else asyncio has closed it already
            transport.abort()
