"""A worker whose engine answers at once: the real session protocol, no model.

    python -m bench.router_cost.instant_engine --router 127.0.0.1:8100

Every millisecond it sends one token for each running sequence, in one batch, as a worker does after each
step; the tokens are those of a fixed text of the bundled model's vocabulary.
"""

from __future__ import annotations

import asyncio
from collections import defaultdict
from pathlib import Path

from baton.config.engine_args import BUNDLED_MODEL
from baton_core.model.model_identity import ModelIdentity
from baton_core.requests.finish import FinishReason
from baton_core.sessions.router_messages import (
    Cancel,
    FirstToken,
    Generate,
    RequestSpec,
    SequenceOutput,
    TokenBatch,
    ToWorker,
)
from baton_core.sessions.session import SessionTimings
from baton_core.sessions.worker_info import Role, WorkerInfo, WorkerLoad
from baton_router.text.model_folder import read_model_folder
from baton_router.text.model_to_serve import read_served_model
from baton_worker.router_links import RouterLinks
from baton_worker.session_client import RouterCallbacks, SessionClient
from bench.command_line import make_parser

NUM_BLOCKS = 1 << 20
STEP_S = 0.001
PATIENT = SessionTimings(max_unacknowledged=2**20, dead_after_s=60.0)
"""A router that is measured at its limit may fall behind its worker."""
MODEL = read_served_model(read_model_folder(Path(BUNDLED_MODEL)))
"""The model that the router serves."""
INFO = WorkerInfo(
    worker_id="instant",
    epoch=1,
    role=Role.MIXED,
    identity=ModelIdentity(
        weights="instant",
        dtype="float32",
        block_size=32,
        kv_layout="none",
        transport="none",
        description=MODEL.description,
    ),
    max_model_len=65_536,
    vocab_size=MODEL.vocab_size,
    num_blocks=NUM_BLOCKS,
    max_num_seqs=4096,
    peer_address="tcp://127.0.0.1:1",
    kv_description=b"",
)


class InstantEngine:
    """Answers requests of a router's processes with `tokens`, over and over."""

    def __init__(self, router: str, tokens: tuple[int, ...]) -> None:
        self._tokens = tokens
        self._running: dict[str, dict[str, tuple[RequestSpec, int]]] = defaultdict(dict)
        """For each process of the router, its requests and how many tokens each has been sent."""
        self._has_work = asyncio.Event()
        callbacks = RouterCallbacks(
            on_joined=lambda router_id, has_locality: None,
            on_message=self._on_message,
            on_lost=lambda router_id: None,
            on_processes=lambda address, processes: self._routers.on_processes(address, processes),
        )
        at_all = INFO, lambda: WorkerLoad(num_available_blocks=NUM_BLOCKS), callbacks, PATIENT
        self._routers = RouterLinks(
            (router,),
            lambda address, is_process: SessionClient(address, *at_all, names_process=is_process),
            finds_more=False,
        )

    async def run(self) -> None:
        stepping = asyncio.create_task(self._step_forever())
        try:
            await self._routers.run()
        finally:
            stepping.cancel()

    def _on_message(self, router_id: str, message: ToWorker) -> None:
        match message:
            case Generate(spec=spec):
                output = self._output(spec, 0)
                first = FirstToken(
                    request_id=spec.request_id,
                    outputs=(output,),
                    num_cached_tokens=0,
                    queue_s=0.0,
                    prefill_s=0.0,
                )
                self._routers.send(router_id, first)
                if output.finish_reason is None:
                    self._running[router_id][spec.request_id] = (spec, 1)
                    self._has_work.set()
            case Cancel(request_id=request_id):
                self._running[router_id].pop(request_id, None)

    async def _step_forever(self) -> None:
        while True:
            await self._has_work.wait()
            await asyncio.sleep(STEP_S)
            for router_id, running in self._running.items():
                if running:
                    self._step(router_id, running)
            if not any(self._running.values()):
                self._has_work.clear()

    def _step(self, router_id: str, running: dict[str, tuple[RequestSpec, int]]) -> None:
        outputs = []
        for request_id, (spec, num_sent) in list(running.items()):
            output = self._output(spec, num_sent)
            outputs.append(output)
            if output.finish_reason is None:
                running[request_id] = (spec, num_sent + 1)
            else:
                del running[request_id]
        self._routers.send(router_id, TokenBatch(outputs=tuple(outputs)))

    def _output(self, spec: RequestSpec, position: int) -> SequenceOutput:
        is_last = position + 1 == spec.params.max_tokens
        return SequenceOutput(
            request_id=spec.request_id,
            index=0,
            token_ids=(self._tokens[position % len(self._tokens)],),
            finish_reason=FinishReason.LENGTH if is_last else None,
        )


def main() -> None:
    parser = make_parser(__doc__)
    parser.add_argument("--router", required=True)
    parser.add_argument("--tokens", required=True, help="token ids, separated by commas")
    args = parser.parse_args()
    tokens = tuple(int(token) for token in args.tokens.split(","))

    async def run() -> None:
        await InstantEngine(args.router, tokens).run()

    asyncio.run(run())


if __name__ == "__main__":
    main()
