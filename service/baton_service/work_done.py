"""Sums over all that workers report of requests they are done with."""

from __future__ import annotations

from baton_core.requests.phases import PhaseName, PhaseReport


class WorkDone:
    """Prompt tokens by source, and transfers."""

    def __init__(self) -> None:
        self.num_computed = 0
        self.num_local_cache = 0
        self.num_remote = 0
        self.num_recomputed = 0
        self.num_transfers = 0
        """Requests whose blocks were pulled."""
        self.transfer_bytes = 0
        self.transfer_s = 0.0

    def add(self, report: PhaseReport) -> None:
        """Count what a worker did for one attempt of a request."""
        sources = report.sources
        self.num_computed += sources.num_computed
        self.num_local_cache += sources.num_local_cache
        self.num_remote += sources.num_remote
        self.num_recomputed += sources.num_recomputed
        transfers = [phase for phase in report.phases if phase.name is PhaseName.TRANSFER]
        self.num_transfers += bool(transfers)
        self.transfer_bytes += sum(transfer.num_bytes for transfer in transfers)
        self.transfer_s += sum(transfer.end_s - transfer.start_s for transfer in transfers)
