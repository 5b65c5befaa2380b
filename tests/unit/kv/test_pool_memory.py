from __future__ import annotations

import ctypes
import mmap
import os

import pytest

from baton_core.errors import InvalidConfigError
from baton_kv import pool_memory
from baton_kv.pool_memory import give_back, map_read_only, reserve_memory, take_back


def test_reserved_memory_is_zeroed_and_seen_through_its_descriptor() -> None:
    memory, file = reserve_memory(5000)
    try:
        assert memory[:] == bytes(5000)
        memory[4999] = 7
        with map_read_only(file, 5000) as view:
            assert view[4999] == 7
    finally:
        os.close(file)
        memory.close()


def test_reserved_memory_is_charged_at_once() -> None:
    memory, file = reserve_memory(1 << 20)
    with memory:
        assert os.fstat(file).st_blocks * 512 == 1 << 20
    os.close(file)


def test_memory_of_another_size_is_not_mapped() -> None:
    memory, file = reserve_memory(4096)
    with memory, pytest.raises(ValueError, match="size is 4096; allowed: 8192"):
        map_read_only(file, 8192)
    os.close(file)


def test_memory_that_could_shrink_is_not_mapped() -> None:
    file = os.memfd_create("unsealed", os.MFD_CLOEXEC | os.MFD_ALLOW_SEALING)
    os.ftruncate(file, 4096)
    with pytest.raises(ValueError, match="seals are 0x0"):
        map_read_only(file, 4096)
    os.close(file)


def test_pages_that_are_given_back_are_zeros_for_every_reader_until_they_are_written_again() -> None:
    num_bytes = 8 * mmap.PAGESIZE + 100
    memory, file = reserve_memory(num_bytes)
    memory[:] = bytes([7]) * num_bytes
    address = ctypes.addressof(ctypes.c_char.from_buffer(memory))
    with map_read_only(file, num_bytes) as view:
        give_back(address, num_bytes - 100)
        assert os.fstat(file).st_blocks * 512 == mmap.PAGESIZE
        assert view[:] == bytes(8 * mmap.PAGESIZE) + bytes([7]) * 100
        take_back(address, num_bytes - 100)
        assert os.fstat(file).st_blocks * 512 == 9 * mmap.PAGESIZE
        memory[0] = 1
        assert view[0] == 1
    os.close(file)


def test_memory_is_not_taken_back_where_there_is_none(monkeypatch: pytest.MonkeyPatch) -> None:
    memory, file = reserve_memory(1 << 20)
    address = ctypes.addressof(ctypes.c_char.from_buffer(memory))
    give_back(address, 1 << 20)
    monkeypatch.setattr(pool_memory, "available_bytes", lambda: 4096)
    with pytest.raises(InvalidConfigError, match="is 1048576 bytes; allowed: at most the 4096 bytes"):
        take_back(address, 1 << 20)
    os.close(file)
