"""`baton explain`: where a request's time went, why it ran where it did, and where its prompt came from."""

from __future__ import annotations

import argparse
import math
import shutil
import sys
from collections.abc import Iterable, Iterator, Sequence
from itertools import groupby
from typing import Final
from urllib.parse import quote

import msgspec

from baton.commands.router_pages import fetch_page
from baton_core.requests.phases import Phase, TokenSources
from baton_router.core.placement.placement_record import Candidate, Decision
from baton_router.http.debug.schemas import Hop, RequestDetails

_DEFAULT_COLUMNS: Final = 110
_COSTS: Final = ("queue", "prefill", "gap", "stall", "affinity")


def explain(args: argparse.Namespace) -> int:
    """Print the record of a request at the router at `args.address`.

    Raises:
        RequestError: no router answers, or it refuses.
    """
    path = f"/debug/requests/{quote(args.request_id, safe='')}"
    details, body = fetch_page(args, path, RequestDetails)
    if args.json:
        sys.stdout.write(msgspec.json.format(body).decode() + "\n")
        return 0
    columns = shutil.get_terminal_size((_DEFAULT_COLUMNS, 24)).columns
    text = render(details, columns)
    encoding = sys.stdout.encoding or "ascii"
    sys.stdout.write(text.encode(encoding, errors="replace").decode(encoding))
    return 0


MIN_BAR: Final = 20
"""Columns of a bar, however narrow the terminal is."""
_BAR, _TRACK, _MOMENT = "█", "·", "│"


def render(details: RequestDetails, columns: int) -> str:
    """The whole, in lines of at most `columns` characters where bars can shrink to that.

    Characters that a terminal would obey, such as those of a client's session, are escaped.
    """
    parts = [_heading(details), _waterfall(details, columns)]
    parts += [_decision(decision) for decision in details.decisions]
    parts.append(_sources(details.hops))
    return "\n\n".join("\n".join(map(_printable, lines)) for lines in parts if lines) + "\n"


def seconds(value: float) -> str:
    """A duration in a unit that fits it."""
    if abs(value) < 1.0:
        return f"{1e3 * value:.1f} ms"
    return f"{value:.2f} s"


def _printable(line: str) -> str:
    return "".join(one if one.isprintable() else one.encode("unicode_escape").decode() for one in line)


def _heading(details: RequestDetails) -> list[str]:
    first = "no token" if details.first_token_s is None else f"first token {seconds(details.first_token_s)}"
    lines = [
        f"{details.request_id}: {details.state}, {seconds(details.duration_s)} in all, {first}",
        f"{details.num_prompt_tokens} prompt tokens ({details.num_cached_tokens} cached), "
        f"{details.num_output_tokens} new",
    ]
    if details.code is not None:
        lines.append(f"{details.code}: {details.message}")
    if details.session_id:
        lines.append(f"session {details.session_id}")
    return lines


def _waterfall(details: RequestDetails, columns: int) -> list[str]:
    rows = [row for hop in details.hops for row in _rows(hop)]
    if not rows:
        return []
    widths = [max(len(row[index]) for row, _ in rows) for index in range(4)]
    room = columns - sum(widths) - len("  ") * 4
    width = max(MIN_BAR, room)
    end_s = max([details.duration_s, *(phase.end_s for _, phases in rows for phase in phases)])
    lines = []
    for (process, name, length, note), phases in rows:
        bar = _bar(phases, end_s, width)
        cells = (process.ljust(widths[0]), name.ljust(widths[1]), bar, length.rjust(widths[2]), note)
        lines.append("  ".join(cells).rstrip())
    return lines


def _rows(hop: Hop) -> Iterator[tuple[tuple[str, str, str, str], list[Phase]]]:
    """A row for all phases of one name: process, name, duration and note, and the phases."""
    names = list(dict.fromkeys(phase.name for phase in hop.phases))
    in_order = sorted(hop.phases, key=lambda phase: names.index(phase.name))
    for number, (name, group) in enumerate(groupby(in_order, key=lambda phase: phase.name)):
        phases = list(group)
        length_s = sum(phase.end_s - phase.start_s for phase in phases)
        is_moment = all(phase.end_s == phase.start_s for phase in phases)
        length = f"at {seconds(phases[0].start_s)}" if is_moment else seconds(length_s)
        yield ("" if number else hop.process, name.value, length, _note(phases)), phases
    if hop.num_left_out:
        yield ("", f"and {hop.num_left_out} more phases", "", ""), []


def _note(phases: Sequence[Phase]) -> str:
    num_tokens, num_bytes = sum(one.num_tokens for one in phases), sum(one.num_bytes for one in phases)
    parts = [f"{len(phases)} times"] if len(phases) > 1 else []
    if num_tokens:
        parts.append(f"{num_tokens} tokens")
    if num_drafted := sum(one.num_drafted for one in phases):
        num_accepted = sum(one.num_accepted for one in phases)
        parts.append(f"{num_accepted} of {num_drafted} drafted ones right")
    if num_bytes:
        parts.append(f"{num_bytes / 2**20:.2f} MiB")
    parts += [f"from {peer}" for peer in dict.fromkeys(one.peer for one in phases) if peer]
    return ", ".join(parts)


def _bar(phases: Iterable[Phase], end_s: float, width: int) -> str:
    cells = [_TRACK] * width
    for phase in phases:
        begin = _cell(phase.start_s, end_s, width)
        if phase.end_s == phase.start_s:
            cells[begin] = _MOMENT
            continue
        last = max(begin, _cell(phase.end_s, end_s, width, is_end=True))
        cells[begin : last + 1] = _BAR * (last + 1 - begin)
    return "".join(cells)


def _cell(at_s: float, end_s: float, width: int, *, is_end: bool = False) -> int:
    """The cell of a moment; that of an end is the last one before it."""
    place = at_s / end_s * width if end_s > 0 else 0.0
    cell = math.ceil(place) - 1 if is_end else int(place)
    return min(max(cell, 0), width - 1)


def _decision(decision: Decision) -> list[str]:
    left_out = [f"  {worker} left out: {reason}" for worker, reason in decision.left_out]
    lines = [f"placed after {seconds(decision.at_s)} by {decision.policy}: {decision.reason}"]
    if decision.candidates:
        lines += _table(
            ("", "candidate", "cached", "at decoder", *_COSTS, "score"),
            [_candidate(one, decision.chosen) for one in decision.candidates],
        )
    num_more = decision.num_candidates - len(decision.candidates)
    return lines + ([f"  and {num_more} more candidates"] if num_more > 0 else []) + left_out


def _candidate(one: Candidate, chosen: Candidate | None) -> tuple[str, ...]:
    is_chosen = chosen is not None and (one.prefill, one.decode) == (chosen.prefill, chosen.decode)
    where = one.decode if one.prefill == one.decode else f"{one.prefill} > {one.decode}"
    cost = one.cost
    times = [getattr(cost, f"{name}_s") for name in (*_COSTS, "score")]
    counts = (str(one.num_cached_tokens), str(one.num_local_tokens))
    return (">" if is_chosen else "", where, *counts, *(seconds(time_s) for time_s in times))


def _sources(hops: Sequence[Hop]) -> list[str]:
    rows = [("", hop.process, *_counts(hop.sources)) for hop in hops if hop.sources is not None]
    if not rows:
        return []
    titles = ("", "", "computed", "local cache", "remote", "recomputed")
    return ["where the prompt's tokens came from", *_table(titles, rows)]


def _counts(one: TokenSources) -> tuple[str, ...]:
    counts = (one.num_computed, one.num_local_cache, one.num_remote, one.num_recomputed)
    return tuple(str(count) for count in counts)


def _table(titles: Sequence[str], rows: Sequence[Sequence[str]]) -> list[str]:
    """The first two columns are text, the others numbers."""
    lines = [titles, *rows]
    widths = [max(len(line[index]) for line in lines) for index in range(len(titles))]
    return [
        "  ".join(
            cell.ljust(width) if index < 2 else cell.rjust(width)
            for index, (cell, width) in enumerate(zip(line, widths, strict=True))
        ).rstrip()
        for line in lines
    ]
