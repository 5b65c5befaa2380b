"""A request's tokens as its client sees them: text, ends, and what is billed."""

from __future__ import annotations

from baton_core.finish import FinishReason
from baton_core.router_events import FinishRequest
from baton_core.router_messages import RequestSpec, SequenceOutput
from baton_proto.v1 import baton_pb2 as pb
from baton_router.detokenizer import DetokenizedDelta, IncrementalDetokenizer
from baton_router.tokenization import Tokenizer


class RequestText:
    """Turns the outputs of all sequences of one request into events. `num_tokens` counts what they show."""

    def __init__(self, spec: RequestSpec, tokenizer: Tokenizer) -> None:
        self.spec = spec
        self.num_tokens = 0
        n = spec.params.n
        self._texts = [
            IncrementalDetokenizer(tokenizer, spec.prompt_token_ids, spec.params) for _ in range(n)
        ]
        self._alive = set(range(n))

    def push(self, output: SequenceOutput) -> tuple[pb.TokensEvent | None, bool]:
        """Take new tokens: their event, and whether a stop string ends a sequence whose worker goes on.

        No event for tokens that come after their sequence's end.
        """
        if output.index not in self._alive:
            return None, False
        reason = output.finish_reason
        delta = self._texts[output.index].append(
            output.token_ids, reason is not None, is_stop_token=reason is FinishReason.STOP
        )
        event = self._event(output, delta)
        if event.finish_reason:
            self._alive.discard(output.index)
        self.num_tokens += len(event.token_ids)
        return event, delta.stop_text is not None and reason is None

    def finish(self, finished: FinishRequest) -> pb.FinishedEvent:
        """The last event."""
        timings = finished.timings
        return pb.FinishedEvent(
            usage=pb.Usage(
                prompt_tokens=finished.num_prompt_tokens,
                completion_tokens=self.num_tokens,
                cached_tokens=finished.num_cached_tokens,
            ),
            timings=pb.Timings(
                queue_s=timings.queue_s,
                prefill_s=timings.prefill_s,
                transfer_s=timings.transfer_s,
                first_token_s=timings.first_token_s,
                total_s=timings.total_s,
                per_token_s=timings.per_token_s,
                transferred_bytes=timings.transferred_bytes,
                prefill_worker=timings.prefill_worker,
                decode_worker=timings.decode_worker,
            ),
            seed=self.spec.params.seed or 0,
            request_id=self.spec.request_id,
        )

    def _event(self, output: SequenceOutput, delta: DetokenizedDelta) -> pb.TokensEvent:
        event = pb.TokensEvent(
            index=output.index, text=delta.text, token_ids=output.token_ids[: delta.num_kept_tokens]
        )
        if delta.stop_text is not None:
            event.finish_reason, event.stop_text = FinishReason.STOP, delta.stop_text
        elif output.finish_reason is not None:
            event.finish_reason = output.finish_reason
            is_stop = output.finish_reason is FinishReason.STOP
            if is_stop and output.token_ids[-1] in self.spec.params.stop_token_ids:
                event.stop_token_id = output.token_ids[-1]
        return event
