"""Long work has its turns on the loop, in order, and never more than its share of one."""

from __future__ import annotations

import asyncio

from baton_router.streams.loop_turns import LoopShare


async def test_all_work_of_a_turn_that_has_time_left_is_done_in_it() -> None:
    share, is_next_turn = LoopShare(slice_s=60.0), False

    def note() -> None:
        nonlocal is_next_turn
        is_next_turn = True

    asyncio.get_running_loop().call_soon(note)
    for _ in range(100):
        await share.turn()
    assert not is_next_turn


async def test_work_beyond_the_slice_leaves_the_loop_to_others_between_any_two_pieces() -> None:
    share, done = LoopShare(slice_s=0.0), list[str]()

    async def work(name: str) -> None:
        for _ in range(3):
            await share.turn()
            done.append(name)

    async def other() -> None:
        while len(done) - done.count(".") < 6:
            done.append(".")
            await asyncio.sleep(0)

    await asyncio.gather(work("a"), work("b"), other())
    pieces = "".join(done)
    assert pieces.replace(".", "") == "aababb" or pieces.replace(".", "") == "ababab"
    assert "aa" not in pieces
    assert "bb" not in pieces


async def test_one_that_is_cancelled_while_it_waits_holds_up_nobody() -> None:
    share = LoopShare(slice_s=0.0)
    await share.turn()
    waiting = [asyncio.create_task(share.turn()) for _ in range(3)]
    await asyncio.sleep(0)
    waiting[0].cancel()
    waiting[1].cancel()
    async with asyncio.timeout(20):
        await waiting[2]
        await share.turn()
