from __future__ import annotations

import os

import pytest

from baton_kv.pool_memory import map_read_only, reserve_memory


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
