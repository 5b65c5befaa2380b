"""Writes docs/coming_from_vllm.md: a template's words, and tables of what trying every item showed."""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterable, Iterator, Sequence
from pathlib import Path
from typing import Final

from bench.peer import compare_decisions
from tools.vllm_audit.decisions import DECISIONS
from tools.vllm_audit.verdict import Status, Verdict, reason_of

ROOT: Final = Path(__file__).resolve().parents[2]
PAGE: Final = ROOT / "docs/coming_from_vllm.md"
TEMPLATE: Final = Path(__file__).with_name("page.md")


def page(verdicts: Sequence[Verdict]) -> str:
    """The page's text, from the verdicts on all items."""
    text = TEMPLATE.read_text(encoding="utf-8")
    tables = {
        "groups": _groups(verdicts),
        "decisions": _decisions(verdicts),
        "answers": _answers(),
        "refused": _refused(verdicts),
    }
    for name, table in tables.items():
        text = text.replace(f"<!-- {name} -->\n", table)
    return text


_MOST_NAMES: Final = 6
_COUNTED: Final = (Status.WORKS, Status.REFUSED, Status.DIFFERENT)


def group_row(title: str, verdicts: Iterable[Verdict]) -> str:
    """The line of the page that counts a group's items by their status."""
    found = Counter(one.status for one in verdicts)
    return f"| {title} | {' | '.join(str(found[status] or '') for status in _COUNTED)} |"


def _groups(verdicts: Sequence[Verdict]) -> str:
    titles = dict.fromkeys(one.group for one in verdicts)
    rows = [group_row(title, (one for one in verdicts if one.group == title)) for title in titles]
    head = _table(("vLLM's documentation", "works", "refused", "differs on purpose"), ())
    return head + "".join(f"{row}\n" for row in (*rows, group_row("all", verdicts)))


def _refused(verdicts: Sequence[Verdict]) -> str:
    """One row for each reason, with the items that have it."""
    items: dict[str, list[str]] = {}
    for one in verdicts:
        if one.status is Status.REFUSED:
            items.setdefault(reason_of(one.evidence.partition(": ")[2]), []).append(one.item)
    rows = [(_listed(_as_fields(names)), reason) for reason, names in items.items()]
    return _table(("refused", "reason"), rows)


def _decisions(verdicts: Sequence[Verdict]) -> str:
    found = {
        name: one.evidence
        for one in reversed(verdicts)
        for name in _names(one)
        if one.status is Status.DIFFERENT
    }
    rows = [(f"`{name}`", found[name], reason) for name, reason in DECISIONS.items() if name in found]
    return _table(("item", "here", "why, and how to have the other"), rows)


def _answers() -> str:
    """A row for each reason of `bench.peer.compare`, with what differs for it."""
    items: dict[str, list[str]] = {}
    for difference, reason in compare_decisions.DECISIONS.items():
        items.setdefault(reason, []).append(difference)
    return _table(("difference", "why"), ((_listed(items[reason]), reason) for reason in items))


def _names(one: Verdict) -> Iterator[str]:
    yield one.item
    yield one.item.removeprefix("--").replace("-", "_")


def _as_fields(items: Iterable[str]) -> list[str]:
    """Without the flag of a field or the parameters of a method that is listed as well, and each once."""
    names = list(dict.fromkeys(items))
    wholes = {one: one.split("--")[-1].replace("-", "_").partition("(")[0] for one in names}
    return [one for one, whole in wholes.items() if whole == one or whole not in names]


def _listed(names: Sequence[str]) -> str:
    """The first `_MOST_NAMES`, and the number of the others."""
    others = len(names) - _MOST_NAMES
    return ", ".join(f"`{name}`" for name in names[:_MOST_NAMES]) + (
        f" and {others} more" if others > 0 else ""
    )


def _table(head: Sequence[str], rows: Iterable[Sequence[str]]) -> str:
    lines = [head, ["---"] * len(head), *([cell.replace("|", "\\|") for cell in row] for row in rows)]
    return "".join(f"| {' | '.join(line)} |\n" for line in lines)
