"""Messages of one rank to others through shared memory; the ranks are threads, and once a process."""

from __future__ import annotations

import mmap
import os
import subprocess
import sys
import time
from concurrent.futures import ThreadPoolExecutor
from random import Random

import pytest

from baton_kernels.cpu.selection import load_build
from baton_kernels.cpu.shared_queue import NUM_SLOTS, SLOT_BYTES, SharedQueue, queue_bytes
from baton_kernels.interface.collectives import RankLostError

SIZE, WRITER = 4, 2
READERS = (0, 1, 3)


def linked() -> dict[int, SharedQueue]:
    """Return every rank's end of a queue that does not begin where its memory does."""
    library = load_build()
    if library is None:
        pytest.skip("it needs the C++ kernels, which this process has not")
    memory = mmap.mmap(-1, 64 + queue_bytes(SIZE))
    return {
        rank: SharedQueue(library, memory, 64, SIZE, rank=rank, writer=WRITER, readers=READERS)
        for rank in range(SIZE)
    }


def test_every_reader_takes_every_message_in_order() -> None:
    random = Random(1)
    lengths = [0, 1, SLOT_BYTES - 8, SLOT_BYTES - 7, 5 * SLOT_BYTES, 2 * NUM_SLOTS * SLOT_BYTES]
    lengths += [random.randrange(2000) for _ in range(4 * NUM_SLOTS)]
    messages = [random.randbytes(length) for length in lengths]
    queue = linked()

    def put() -> None:
        for message in messages:
            queue[WRITER].put(message, 20)

    def take(rank: int) -> list[bytes | None]:
        return [queue[rank].take(20) for _ in messages]

    with ThreadPoolExecutor(SIZE) as threads:
        putting = threads.submit(put)
        for taken in threads.map(take, READERS):
            assert taken == messages
        putting.result()


def test_one_that_does_not_read_is_lost_once_the_ring_is_full() -> None:
    queue = linked()
    for number in range(NUM_SLOTS):
        queue[WRITER].put(bytes([number]), 20)
    for reader in (0, 3):
        assert [queue[reader].take(20) for _ in range(NUM_SLOTS)] == [bytes([n]) for n in range(NUM_SLOTS)]
    with pytest.raises(RankLostError, match=r"rank 1 is lost: it has not read within 0\.05 s"):
        queue[WRITER].put(b"more", 0.05)


def test_who_waits_gets_nothing_in_time_and_the_next_message_later() -> None:
    queue = linked()
    assert queue[0].take(0.01) is None
    queue[WRITER].put(b"late", 20)
    assert queue[0].take(20) == b"late"


def test_the_end_of_a_queue_ends_waits() -> None:
    queue = linked()
    with ThreadPoolExecutor(1) as threads:
        waiting = threads.submit(queue[0].take, 60)
        time.sleep(0.1)  # asleep by now
        assert not queue[0].has_ended
        queue[3].end()
        assert waiting.result(5) is None
    assert all(end.has_ended for end in queue.values())


def test_a_message_whose_rest_does_not_come_is_no_message() -> None:
    queue = linked()
    with ThreadPoolExecutor(1) as threads:
        putting = threads.submit(queue[WRITER].put, bytes((NUM_SLOTS + 1) * SLOT_BYTES), 0.2)
        with pytest.raises(RankLostError, match="it has begun a message and not ended it"):
            queue[0].take(0.5)  # ranks 1 and 3 do not read
        assert isinstance(putting.exception(5), RankLostError)


READ = """
import mmap, sys
from baton_kernels.cpu.selection import load_build
from baton_kernels.cpu.shared_queue import SharedQueue
memory = mmap.mmap(int(sys.argv[1]), int(sys.argv[2]))
queue = SharedQueue(load_build(), memory, 64, 4, rank=1, writer=2, readers=(1,))
for _ in range(int(sys.argv[3])):
    print(queue.take(30).decode(), flush=True)
"""


@pytest.mark.slow
def test_another_process_that_sleeps_is_woken_by_each_message() -> None:
    num_bytes = 64 + queue_bytes(SIZE)
    descriptor = os.memfd_create("queue")
    os.ftruncate(descriptor, num_bytes)
    library = load_build()
    if library is None:
        pytest.skip("it needs the C++ kernels, which this process has not")
    memory = mmap.mmap(descriptor, num_bytes)
    queue = SharedQueue(library, memory, 64, SIZE, rank=WRITER, writer=WRITER, readers=(1,))
    command = [sys.executable, "-c", READ, str(descriptor), str(num_bytes), "3"]
    with subprocess.Popen(command, pass_fds=[descriptor], stdout=subprocess.PIPE, text=True) as process:
        assert process.stdout is not None
        for text in ("first", "second", "third"):
            queue.put(text.encode(), 30)
            assert process.stdout.readline() == text + "\n"
            time.sleep(0.05)  # the reader has given up yielding
    assert process.returncode == 0
