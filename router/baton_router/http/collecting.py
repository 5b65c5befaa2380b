"""Gathers the events of a generation for answers that go out whole."""

from __future__ import annotations

from dataclasses import dataclass, field

from baton_core.requests.logprobs import PositionLogprobs
from baton_core.sessions.router_messages import RequestSpec
from baton_router.generation import Delta, Finished, PromptDelta
from baton_router.http.generating import Generation


@dataclass(slots=True, kw_only=True)
class CollectedSequence:
    """One sequence from its first token to its end."""

    texts: list[str] = field(default_factory=list)
    token_ids: list[int] = field(default_factory=list)
    logprobs: list[PositionLogprobs] = field(default_factory=list)
    finish_reason: str | None = None
    stop_reason: str | int | None = None

    @property
    def text(self) -> str:
        return "".join(self.texts)

    def as_delta(self, index: int = 0) -> Delta:
        """The whole sequence in one piece."""
        return Delta(
            index=index,
            text=self.text,
            token_ids=tuple(self.token_ids),
            logprobs=tuple(self.logprobs),
            finish_reason=self.finish_reason,
            stop_reason=self.stop_reason,
        )

    def add(self, delta: Delta) -> None:
        self.texts.append(delta.text)
        self.token_ids += delta.token_ids
        self.logprobs += delta.logprobs
        if delta.finish_reason is not None:
            self.finish_reason, self.stop_reason = delta.finish_reason, delta.stop_reason


@dataclass(slots=True, kw_only=True)
class CollectedPrompt:
    """One prompt and all that became of it."""

    spec: RequestSpec
    sequences: list[CollectedSequence]
    prompt_logprobs: list[PositionLogprobs] = field(default_factory=list)
    """Of each prompt token but the first, where they are wanted."""
    finished: Finished | None = None


async def collect(generation: Generation) -> list[CollectedPrompt]:
    """Follow a generation to its end.

    Raises:
        RequestError: a prompt failed.
    """
    prompts = [
        CollectedPrompt(spec=spec, sequences=[CollectedSequence() for _ in range(spec.params.n)])
        for spec in generation.specs
    ]
    async for number, event in generation.events:
        match event:
            case Delta():
                prompts[number].sequences[event.index].add(event)
            case PromptDelta():
                prompts[number].prompt_logprobs += event.logprobs
            case Finished():
                prompts[number].finished = event
    return prompts
