"""Arguments of the C++ kernels that exchange tensors between the ranks of one machine."""

from __future__ import annotations

import ctypes

from baton_kernels.cpu.c_struct import Flag, Int64, SourceBytes, Target, TargetBytes, TargetInt64, c_struct


@c_struct
class Meeting(ctypes.Structure):
    """Memory that ranks share, and how long one of them waits for the others."""

    aborted: TargetInt64
    """Not 0 once a rank is lost: nobody waits any more."""
    flags: Target
    """Counters of turns, each in a cache line of its own."""
    slots: TargetBytes
    """The bytes that are exchanged, in two halves that take turns."""
    slot_bytes: Int64
    turn: TargetInt64
    """This rank's own count of turns, which goes on from call to call."""
    deadline_ns: Int64
    lost: TargetInt64
    """Result: the rank that did not come."""


@c_struct
class ExchangeArgs(ctypes.Structure):
    """All ranks of a group come together: some write, and some read what was written or its sum."""

    meeting: Meeting
    source: SourceBytes
    """`[num_bytes]`, of a rank that writes."""
    target: TargetBytes
    """`[size, num_bytes]` of a rank that reads what all write, else `[num_bytes]`."""
    num_bytes: Int64
    rank: Int64
    size: Int64
    writer: Int64
    """-1 is all."""
    reader: Int64
    """-1 is all."""
    is_sum: Flag
    is_bfloat16: Flag
    """Numbers of a sum are bfloat16, else float32."""


@c_struct
class SendArgs(ctypes.Structure):
    """One rank hands bytes to another: flag 0 counts what was sent, flag 1 what was taken."""

    meeting: Meeting
    source: SourceBytes
    num_bytes: Int64
    peer: Int64


@c_struct
class ReceiveArgs(ctypes.Structure):
    """The other end of `SendArgs`."""

    meeting: Meeting
    target: TargetBytes
    num_bytes: Int64
    peer: Int64


@c_struct
class AwaitTurnArgs(ctypes.Structure):
    """A rank waits until a counter has come to a turn."""

    aborted: TargetInt64
    """As in `Meeting`."""
    flag: Target
    """The counter, in a cache line of its own."""
    turn: Int64
    deadline_ns: Int64
    longest_sleep_ns: Int64
    """Time until a rank that sleeps looks whether its group has ended."""


@c_struct
class SetTurnArgs(ctypes.Structure):
    """A rank sets a counter and wakes whoever waits for it."""

    flag: Target
    turn: Int64
