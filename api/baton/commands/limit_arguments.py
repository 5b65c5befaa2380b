"""Flags of a router's limits: requests that it takes, and connections of its HTTP server."""

from __future__ import annotations

import argparse
from typing import TYPE_CHECKING, Final

from baton.config.flags import BYTES, MAX_INT, NATURAL, OVER_0, POSITIVE, Flag, Pattern, Range

if TYPE_CHECKING:
    from baton_router.batches.batch_limits import BatchLimits
    from baton_router.process.admission_settings import AdmissionSettings
    from baton_router.process.http_settings import ConnectionLimits, ResponseStoreLimits

_COUNT: Final = r"0*[1-9][0-9]{0,11}"
_SECONDS: Final = r"(?=[0-9.]*[1-9])[0-9]{1,9}(\.[0-9]{1,9})?"
_SLO: Final = Pattern(
    rf"ttft={_SECONDS}(,tpot={_SECONDS})?|tpot={_SECONDS}",
    "ttft=SECONDS, tpot=SECONDS or ttft=SECONDS,tpot=SECONDS, each over 0",
    "ttft=S,tpot=S",
)
_RATE: Final = Pattern(
    rf"requests={_COUNT}(,tokens={_COUNT})?|tokens={_COUNT}",
    "requests=N, tokens=N or requests=N,tokens=N, each over 0",
    "requests=N,tokens=N",
)

ADMISSION_FLAGS: Final = (
    Flag(
        "--slo",
        str,
        None,
        "seconds to the first token, and a token after it, of requests that do not say themselves: what "
        "cannot be that fast is refused at once",
        _SLO,
    ),
    Flag(
        "--rate-limit",
        str,
        None,
        "requests and tokens of each key in a minute",
        _RATE,
    ),
    Flag("--max-queued-requests", int, 1024, "requests that wait for a worker", NATURAL),
    Flag("--queue-timeout", float, 30.0, "seconds they may wait", OVER_0),
    Flag("--priority-aging", float, 10.0, "seconds of waiting that count as one step of priority", OVER_0),
)


def admission_settings(args: argparse.Namespace) -> AdmissionSettings:
    """Read the admission settings from these flags."""
    from baton_core.requests.request_context import Slo
    from baton_router.core.admission.rate_limits import RateLimit
    from baton_router.process.admission_settings import AdmissionSettings

    slo, rates = _read(args.slo), _read(args.rate_limit)
    return AdmissionSettings(
        slo=Slo(ttft_s=slo.get("ttft"), tpot_s=slo.get("tpot")),
        rate_limit=RateLimit(requests=rates.get("requests"), tokens=rates.get("tokens")),
        max_queued_requests=args.max_queued_requests,
        queue_timeout_s=args.queue_timeout,
        priority_aging_s=args.priority_aging,
    )


def _read(pairs: str | None) -> dict[str, float]:
    split = [pair.partition("=") for pair in pairs.split(",")] if pairs else []
    return {name: float(value) for name, _, value in split}


_MAX_SECONDS: Final = 10**6


def _seconds(name: str, default: float, text: str) -> Flag:
    return Flag(name, float, default, f"seconds {text}", Range(0, _MAX_SECONDS, is_low_open=True))


CONNECTION_FLAGS: Final = (
    Flag("--max-connections", int, 8192, "HTTP connections that may be open at most", POSITIVE),
    Flag(
        "--max-header-bytes",
        int,
        64 * 2**10,
        "largest headers of an HTTP request",
        Range(1024, MAX_INT),
        suffixes=BYTES,
    ),
    _seconds("--header-timeout", 20.0, "within which the headers of an HTTP request have to come"),
    _seconds("--idle-timeout", 75.0, "for which an HTTP connection may be idle"),
    _seconds("--stall-timeout", 60.0, "for which an HTTP client may read nothing of an answer"),
)


def connection_limits(args: argparse.Namespace) -> ConnectionLimits:
    """Read the limits of connections from these flags."""
    from baton_router.process.http_settings import ConnectionLimits

    return ConnectionLimits(
        max_connections=args.max_connections,
        max_header_bytes=args.max_header_bytes,
        header_timeout_s=args.header_timeout,
        idle_timeout_s=args.idle_timeout,
        stall_timeout_s=args.stall_timeout,
    )


STORE_FLAGS: Final = (
    Flag(
        "--max-stored-responses",
        int,
        1024,
        "responses of /v1/responses that are kept, in Redis where --redis is given; 0 keeps none",
        NATURAL,
    ),
    Flag(
        "--max-stored-response-bytes",
        int,
        64 * 2**20,
        "bytes that they may take together, with their conversations and events",
        Range(1, 2**53),
        suffixes=BYTES,
    ),
    _seconds("--max-stored-response-age", 3600.0, "for which each of them is kept"),
)


def response_store_limits(args: argparse.Namespace) -> ResponseStoreLimits:
    """Read the bounds of stored responses from these flags."""
    from baton_router.process.http_settings import ResponseStoreLimits

    return ResponseStoreLimits(
        num_responses=args.max_stored_responses,
        num_bytes=args.max_stored_response_bytes,
        age_s=args.max_stored_response_age,
    )


BATCH_LIMIT_FLAGS: Final = (
    Flag(
        "--files-directory",
        str,
        "",
        "folder of files and batches, which routers of one model may share; default: there are none",
        metavar="FOLDER",
    ),
    Flag(
        "--max-file-bytes", int, 200 * 2**20, "largest file that is uploaded", Range(1, 2**53), suffixes=BYTES
    ),
    Flag("--max-files", int, 1000, "files of each key", POSITIVE),
    Flag(
        "--max-files-bytes",
        int,
        10 * 2**30,
        "bytes of the files of each key together",
        Range(1, 2**53),
        suffixes=BYTES,
    ),
    Flag(
        "--max-file-age",
        float,
        30 * 24 * 3600.0,
        "seconds for which files and batches are kept",
        Range(0, 365 * 24 * 3600, is_low_open=True),
    ),
    Flag("--max-batches", int, 100, "batches that are kept of each key", POSITIVE),
    Flag("--max-batch-lines", int, 50_000, "requests of a batch", POSITIVE),
    Flag(
        "--max-batch-inflight",
        int,
        8,
        "requests of all batches together that are answered at a time",
        Range(1, 65_536),
    ),
    Flag(
        "--batch-lines-beside",
        float,
        0.1,
        "those beside other requests, on average for each worker that computes prompts; more make batches "
        "faster and other requests slower",
        Range(0, 65_536),
    ),
)


def batch_limits(args: argparse.Namespace) -> BatchLimits:
    """Read the bounds of files and batches from these flags."""
    from baton_router.batches.batch_limits import BatchLimits

    return BatchLimits(
        folder=args.files_directory,
        max_file_bytes=args.max_file_bytes,
        max_files=args.max_files,
        max_files_bytes=args.max_files_bytes,
        max_age_s=args.max_file_age,
        max_batches=args.max_batches,
        max_lines=args.max_batch_lines,
        max_inflight=args.max_batch_inflight,
        lines_beside=args.batch_lines_beside,
    )
