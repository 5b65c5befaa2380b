"""An engine whose tokens are a hash of everything it reads, so a wrong block shows as a wrong token."""

from __future__ import annotations

from hashlib import blake2b

from baton_core.sampling_params import SamplingParams, sequence_seed
from baton_core.step_plan import SampleSpec, SequenceSlice, StepPlan, StepResult
from baton_core.worker_events import BlockPull

VOCAB_SIZE = 50_000


def digest(*parts: object) -> int:
    return int.from_bytes(blake2b(repr(parts).encode(), digest_size=8).digest(), "little")


def draw(slots: list[int], seed: int, position: int) -> int:
    """The token that follows a context of `slots`."""
    return digest(tuple(slots), seed, position) % VOCAB_SIZE


def expected_tokens(prompt: tuple[int, ...], params: SamplingParams, index: int, count: int) -> list[int]:
    """What the engine generates when nothing disturbs it."""
    assert params.seed is not None
    slots: list[int] = []
    for token_id in prompt:
        slots.append(digest(slots[-1] if slots else 0, token_id))
    tokens: list[int] = []
    for _ in range(count):
        tokens.append(draw(slots, sequence_seed(params.seed, index), len(prompt) + len(tokens)))
        slots.append(digest(slots[-1], tokens[-1]))
    return tokens


class HashEngine:
    """One worker's KV pool and its steps. A slot holds a chained hash, read from the block before it."""

    def __init__(self, num_blocks: int, block_size: int) -> None:
        self.block_size = block_size
        self.blocks = [[0] * block_size for _ in range(num_blocks)]

    def execute(self, plan: StepPlan) -> StepResult:
        copied = [list(self.blocks[source]) for source, _ in plan.block_copies]
        for (_, destination), content in zip(plan.block_copies, copied, strict=True):
            self.blocks[destination] = content
        for piece in plan.slices:
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

    def _slot(self, piece: SequenceSlice, position: int) -> int:
        return self.blocks[piece.block_tables[0][position // self.block_size]][position % self.block_size]

    def _write(self, piece: SequenceSlice) -> None:
        for position, token_id in enumerate(piece.token_ids, start=piece.start):
            before = self._slot(piece, position - 1) if position else 0
            block = self.blocks[piece.block_tables[0][position // self.block_size]]
            block[position % self.block_size] = digest(before, token_id)

    def _draw(self, piece: SequenceSlice, spec: SampleSpec) -> int:
        end = piece.start + piece.num_scheduled_tokens
        return draw([self._slot(piece, position) for position in range(end)], spec.seed, spec.position)
