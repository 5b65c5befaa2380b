"""An engine whose tokens are a hash of everything it reads, so a wrong block shows as a wrong token."""

from __future__ import annotations

from collections.abc import Callable
from hashlib import blake2b

from baton_core.paging import Paging
from baton_core.sampling_params import SamplingParams, sequence_seed
from baton_core.step_plan import SampleSpec, SequenceSlice, StepPlan, StepResult
from baton_core.worker_events import BlockPull

VOCAB_SIZE = 50_000
Windows = tuple[int | None, ...]
ReadSlot = Callable[[int, int], int]
"""(group, position) to what was written there."""


def digest(*parts: object) -> int:
    return int.from_bytes(blake2b(repr(parts).encode(), digest_size=8).digest(), "little")


def first_seen(window: int | None, position: int) -> int:
    return 0 if window is None else max(0, position - window + 1)


def new_slot(read: ReadSlot, windows: Windows, group: int, position: int, token_id: int) -> int:
    """What a token leaves in a group: a hash of itself and of both ends of what it sees there."""
    seen = range(first_seen(windows[group], position), position)
    ends = (read(group, seen[0]), read(group, seen[-1])) if seen else ()
    return digest(group, ends, token_id)


def draw(read: ReadSlot, windows: Windows, num_tokens: int, seed: int, position: int) -> int:
    """The token that follows `num_tokens`: it depends on all that the last of them sees."""
    seen = [
        [read(group, at) for at in range(first_seen(window, num_tokens - 1), num_tokens)]
        for group, window in enumerate(windows)
    ]
    return digest(seen, seed, position) % VOCAB_SIZE


def expected_tokens(
    prompt: tuple[int, ...], params: SamplingParams, index: int, count: int, windows: Windows = (None,)
) -> list[int]:
    """What the engine generates when nothing disturbs it."""
    assert params.seed is not None
    slots: dict[tuple[int, int], int] = {}

    def read(group: int, position: int) -> int:
        return slots[group, position]

    tokens = list(prompt)
    for position in range(len(prompt) + count):
        if position >= len(prompt):
            tokens.append(draw(read, windows, position, sequence_seed(params.seed, index), position))
        for group in range(len(windows)):
            slots[group, position] = new_slot(read, windows, group, position, tokens[position])
    return tokens[len(prompt) :]


class HashEngine:
    """One worker's KV pool and its steps. A slot holds a hash of what its token sees in its group."""

    def __init__(self, num_blocks: int, paging: Paging) -> None:
        self.paging = paging
        self.blocks = [[0] * paging.block_size for _ in range(num_blocks)]
        self.num_computed_tokens = 0

    def execute(self, plan: StepPlan) -> StepResult:
        copied = [list(self.blocks[source]) for source, _ in plan.block_copies]
        for (_, destination), content in zip(plan.block_copies, copied, strict=True):
            self.blocks[destination] = content
        for piece in plan.slices:
            self.num_computed_tokens += piece.num_scheduled_tokens
            self._write(piece)
        sampled = tuple(tuple(self._draw(piece, spec) for spec in piece.samples) for piece in plan.slices)
        return StepResult(step_id=plan.step_id, sampled=sampled)

    def checksum(self, block_id: int) -> int:
        return digest(self.blocks[block_id])

    def pull(self, blocks: tuple[BlockPull, ...], source: HashEngine) -> tuple[int, ...]:
        failed = []
        for block in blocks:
            self.blocks[block.local_block_id] = list(source.blocks[block.remote_block_id])
            if block.checksum not in (None, self.checksum(block.local_block_id)):
                failed.append(block.local_block_id)
        return tuple(failed)

    def _slots(self, piece: SequenceSlice) -> ReadSlot:
        block_size = self.paging.block_size

        def read(group: int, position: int) -> int:
            block_id = piece.block_tables[group][position // block_size]
            assert block_id >= 0, f"{piece.seq_id} reads position {position} of group {group}, given back"
            return self.blocks[block_id][position % block_size]

        return read

    def _write(self, piece: SequenceSlice) -> None:
        read, windows, block_size = self._slots(piece), self.paging.windows, self.paging.block_size
        for position, token_id in enumerate(piece.token_ids, start=piece.start):
            for group, table in enumerate(piece.block_tables):
                slot = new_slot(read, windows, group, position, token_id)
                self.blocks[table[position // block_size]][position % block_size] = slot

    def _draw(self, piece: SequenceSlice, spec: SampleSpec) -> int:
        end = piece.start + piece.num_scheduled_tokens
        return draw(self._slots(piece), self.paging.windows, end, spec.seed, spec.position)
