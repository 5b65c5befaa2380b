"""The events of a run, in order: kept as values, formatted only when they are read."""

from __future__ import annotations

from typing import Any

from baton_core.kv_events.cache_delta import CacheDelta
from baton_core.sessions.peer_messages import (
    BlocksReady,
    Confirm,
    Confirmed,
    LeaseGone,
    LeaseRenew,
    Subscribe,
)
from baton_core.sessions.router_messages import (
    Cancel,
    FirstToken,
    Generate,
    Prefill,
    RequestSpec,
    Reserve,
    SequenceOutput,
    Start,
    TokenBatch,
)
from baton_core.worker.worker_events import Pull
from baton_simulator.clock import Clock

_MAX_SHOWN = 160


class EventLog:
    """Lines of (time, node, what, of what). The same run writes the same bytes."""

    def __init__(self, clock: Clock) -> None:
        self._clock = clock
        self._lines: list[tuple[float, str, str, Any]] = []

    def __len__(self) -> int:
        return len(self._lines)

    def add(self, node: str, what: str, value: Any = "") -> None:
        self._lines.append((self._clock.now, node, what, value))

    def text(self) -> str:
        """One line for each event: seconds, node, what."""
        width = max((len(node) for _, node, _, _ in self._lines), default=0)
        lines = (
            f"{now:10.6f}  {node:<{width}}  {what} {describe(value)}".rstrip() + "\n"
            for now, node, what, value in self._lines
        )
        return "".join(lines)


def describe(value: Any) -> str:
    """A message, an effect or a reason in a few words."""
    match value:
        case Generate(spec=spec) | Prefill(spec=spec):
            return f"{type(value).__name__} {_spec(spec)}"
        case Reserve(spec=spec, source=source):
            return f"Reserve {_spec(spec)} from {source.worker_id} (epoch {source.epoch})"
        case Start(request_id=name, first_tokens=tokens):
            return f"Start {name} {_tokens((token.index, token.token_id) for token in tokens)}"
        case Cancel(request_id=name, indices=indices):
            return f"Cancel {name}" + (f" sequences {indices}" if indices else "")
        case FirstToken(request_id=name, outputs=outputs):
            return f"FirstToken {name} {', '.join(map(_output, outputs))}"
        case TokenBatch(outputs=outputs):
            return "TokenBatch " + ", ".join(f"{one.request_id} {_output(one)}" for one in outputs)
        case CacheDelta(stored=stored, removed=removed, number=number):
            return f"CacheDelta {number}: {len(stored)} blocks stored, {len(removed)} removed"
        case Subscribe():
            return f"Subscribe {value.transfer_id} for {value.request_id}, places {_list(value.indices)}"
        case LeaseRenew():
            return f"LeaseRenew {value.renewal} of {value.transfer_id}, missing {_list(value.missing)}"
        case BlocksReady():
            blocks = _list(f"{offer.index}: {offer.block_id}" for offer in value.offers)
            return f"BlocksReady {value.transfer_id} (renewal {value.renewal}), blocks {blocks}"
        case Confirm():
            return f"Confirm {value.transfer_id}, blocks {_list(offer.block_id for offer in value.offers)}"
        case Confirmed():
            return f"Confirmed {value.transfer_id}: {'held' if value.is_held else 'not held'}"
        case LeaseGone():
            return f"LeaseGone {value.transfer_id}: {value.reason}"
        case Pull(pull_id=pull_id, source=source, blocks=blocks):
            pairs = _list(f"{block.remote_block_id} to {block.local_block_id}" for block in blocks)
            return f"{pull_id} from {source.worker_id} (epoch {source.epoch}), blocks {pairs}"
        case SequenceOutput():
            return _output(value)
        case _:
            return str(value) if len(str(value)) <= _MAX_SHOWN else str(value)[: _MAX_SHOWN - 3] + "..."


def _spec(spec: RequestSpec) -> str:
    text = f"{spec.request_id}, {len(spec.prompt_token_ids)} tokens, n {spec.params.n}"
    if spec.resumed:
        text += f", resumed after {_tokens((one.index, len(one.token_ids)) for one in spec.resumed)}"
    return text


def _output(output: SequenceOutput) -> str:
    end = f" ({output.finish_reason})" if output.finish_reason is not None else ""
    return f"[{output.index}] {_list(output.token_ids)}{end}"


def _tokens(pairs: Any) -> str:
    return _list(f"{index}: {token}" for index, token in pairs)


def _list(values: Any) -> str:
    return ", ".join(map(str, values)) or "none"
