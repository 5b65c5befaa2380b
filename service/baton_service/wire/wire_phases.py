"""The phases of a worker's part in a request, as protobuf."""

from __future__ import annotations

from dataclasses import asdict

from baton_core.requests.phases import Phase, PhaseName, PhaseReport, TokenSources
from baton_proto.v1 import session_pb2 as pb
from baton_service.wire.wire_checks import checked_code, checked_name, checked_number


def encode_phase_report(report: PhaseReport) -> pb.PhaseReport:
    return pb.PhaseReport(
        request_id=report.request_id,
        phases=[
            pb.Phase(
                name=phase.name,
                start_s=phase.start_s,
                end_s=phase.end_s,
                num_tokens=phase.num_tokens,
                num_bytes=phase.num_bytes,
                peer=phase.peer,
                num_drafted=phase.num_drafted,
                num_accepted=phase.num_accepted,
            )
            for phase in report.phases
        ],
        sources=pb.TokenSources(**asdict(report.sources)),
        num_left_out=report.num_left_out,
        sent_s=report.sent_s,
        traceparent=report.traceparent,
    )


def decode_phase_report(report: pb.PhaseReport) -> PhaseReport:
    """Read a report.

    Raises:
        InvalidRequestError: a field is missing, unknown or out of range; the message names it.
    """
    sources = report.sources
    return PhaseReport(
        request_id=checked_name("request_id", report.request_id),
        phases=tuple(_decode_phase(phase) for phase in report.phases),
        sources=TokenSources(
            num_computed=sources.num_computed,
            num_local_cache=sources.num_local_cache,
            num_remote=sources.num_remote,
            num_recomputed=sources.num_recomputed,
        ),
        num_left_out=report.num_left_out,
        sent_s=checked_number("sent_s", report.sent_s),
        traceparent=report.traceparent,
    )


def _decode_phase(phase: pb.Phase) -> Phase:
    return Phase(
        name=checked_code("name", phase.name, PhaseName),
        start_s=checked_number("start_s", phase.start_s),
        end_s=checked_number("end_s", phase.end_s),
        num_tokens=phase.num_tokens,
        num_bytes=phase.num_bytes,
        peer=phase.peer,
        num_drafted=phase.num_drafted,
        num_accepted=phase.num_accepted,
    )
