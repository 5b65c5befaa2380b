"""How many drafts of a head are right, by how much of the prompt it has seen:

    python -m bench.head_context

A head needs the target's hidden states of the prompt, which a worker has only of tokens that it computes
itself. Here the bundled EAGLE-3 head follows the bundled model from some tokens before the prompt's end on.
It drafts at each position of the greedy answer, with which the drafts are then compared.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, field
from pathlib import Path
from typing import Final

from baton.config.engine_args import BUNDLED_MODEL
from baton_core.worker.speculative_config import SpeculativeConfig, SpeculativeMethod
from baton_core.worker.step_plan import DraftOrder, SampleSpec, SeqId, SequenceSlice, StepPlan, StepResult
from baton_engine.drafting.draft_guard import Drafter
from baton_engine.drafting.draft_loading import plan_drafts
from baton_engine.engine_settings import EngineSettings
from baton_engine.loading import load_model
from baton_engine.sizing import KVCacheSettings
from baton_engine.steps.runner import ModelRunner
from baton_router.text.model_folder import read_model_folder
from baton_router.text.tokenization import Tokenizer
from bench.command_line import make_parser
from bench.speculative import BUNDLED_HEAD, question, repeating_text

_BLOCK_SIZE: Final = 16
_NUM_BLOCKS: Final = 128


@dataclass
class Follower:
    """A target and its head, which computes one sequence at a time, whose blocks are all of the pool's."""

    runner: ModelRunner
    drafter: Drafter
    num_drafts: int
    ended: list[SeqId] = field(default_factory=list)
    num_sequences: int = 0

    def begin(self) -> SeqId:
        """Return the name of another sequence."""
        self.num_sequences += 1
        return SeqId(str(self.num_sequences), 0)

    def step(self, name: SeqId, token_ids: Sequence[int], start: int, *, samples: bool = True) -> StepResult:
        """Compute tokens of a sequence from `start` on, and draft behind the token that is sampled."""
        end = start + len(token_ids)
        slice_ = SequenceSlice(
            seq_id=name,
            token_ids=tuple(token_ids),
            start=start,
            block_tables=(tuple(range(_NUM_BLOCKS)),),
            samples=(_greedy(end),) if samples else (),
            order=DraftOrder(num_tokens=self.num_drafts, start=0) if samples else None,
        )
        plan = StepPlan(step_id=1, slices=(slice_,), ended=tuple(self.ended))
        self.ended.clear()
        return self.drafter.draft(plan, self.runner.execute(plan))

    def count_right(self, prompt: Sequence[int], num_seen: int, num_tokens: int) -> tuple[int, int]:
        """Return how many drafts were made for an answer of some tokens, and how many of theirs are right."""
        before, name = self.begin(), self.begin()
        start = max(0, len(prompt) - num_seen)
        if start:
            self.step(before, prompt[:start], 0, samples=False)
        text, drafts = list(prompt), list[tuple[int, Sequence[int]]]()
        result = self.step(name, prompt[start:], start)
        while len(text) < len(prompt) + num_tokens:
            text += result.sampled[0]
            drafts.append((len(text), result.drafts[0]))
            result = self.step(name, text[-1:], len(text) - 1)
        self.ended += (before, name)
        whole = [(at, draft) for at, draft in drafts if at + self.num_drafts <= len(text)]
        return len(whole), sum(_num_right(draft, text[at:]) for at, draft in whole)


def _num_right(draft: Sequence[int], text: Sequence[int]) -> int:
    """Return how many tokens of a draft are those of the text, up to the first that is not."""
    pairs = enumerate(zip(draft, text, strict=False))
    return next((place for place, (drafted, token) in pairs if drafted != token), len(draft))


def _greedy(position: int) -> SampleSpec:
    return SampleSpec(seed=0, position=position, temperature=0.0, top_k=0, top_p=1.0, min_p=0.0)


def _load(num_drafts: int) -> Follower:
    settings = EngineSettings(
        model=BUNDLED_MODEL,
        dtype="float32",
        block_size=_BLOCK_SIZE,
        kv_cache=KVCacheSettings(num_gpu_blocks_override=_NUM_BLOCKS, max_num_batched_tokens=2048),
        speculative=SpeculativeConfig(
            method=SpeculativeMethod.EAGLE3, model=BUNDLED_HEAD, num_speculative_tokens=num_drafts
        ),
        max_num_seqs=4,
    )
    plan, model = plan_drafts(settings), load_model(settings)
    assert plan is not None, "the settings name a head"
    plan.tap(model)
    return Follower(model.start().runner, plan.load(model), num_drafts)


def main() -> None:
    """Print a row for each kind of text."""
    parser = make_parser(__doc__)
    parser.add_argument("--seen", type=int, nargs="+", default=[1, 4, 16, 1024], help="tokens of the prompt")
    parser.add_argument("--prompts", type=int, default=10)
    parser.add_argument("--tokens", type=int, default=40, help="of each answer")
    parser.add_argument("--drafts", type=int, default=4, help="tokens of each draft")
    args = parser.parse_args()
    tokenizer = Tokenizer(read_model_folder(Path(BUNDLED_MODEL)))
    follower = _load(args.drafts)
    print(f"| right of {args.drafts} | " + " | ".join(f"{num} seen" for num in args.seen) + " |")
    print("|---" * (1 + len(args.seen)) + "|")
    for name, make_text in (("questions", question), ("repeats", repeating_text)):
        prompts = [tokenizer.encode(make_text(number)) for number in range(args.prompts)]
        shares = []
        for num_seen in args.seen:
            counts = [follower.count_right(prompt, num_seen, args.tokens) for prompt in prompts]
            shares.append(sum(right for _, right in counts) / sum(drafts for drafts, _ in counts))
        print(f"| {name} | " + " | ".join(f"{share:.2f}" for share in shares) + " |")


if __name__ == "__main__":
    main()
