"""Tries every item that vLLM documents against this tree, and says of each what its user finds.

python -m tools.vllm_audit                    all items; some start processes and take a minute
python -m tools.vllm_audit --group SUBSTRING  one group
python -m tools.vllm_audit --write            and write docs/coming_from_vllm.md
python -m tools.vllm_audit --check            exit with 1 for an item without a word, or a stale page
"""

from __future__ import annotations

import argparse
import signal
import sys
from collections import Counter
from collections.abc import Iterable

from tools.vllm_audit.decisions import decision_of
from tools.vllm_audit.groups import GROUPS
from tools.vllm_audit.page import PAGE, page
from tools.vllm_audit.verdict import Group, Status, Verdict, judge

_SHOWN_LETTERS = 150


def verdicts_of(groups: Iterable[Group]) -> list[Verdict]:
    """Try each item, in order."""
    return [judge(group.title, item, probe) for group in groups for item, probe in group.items.items()]


def unexplained(verdicts: Iterable[Verdict]) -> list[str]:
    """Items that are missing, or that differ without a decision."""
    return [
        f"{one.group}, {one.item}: {one.status}: {one.evidence}"
        for one in verdicts
        if one.status is Status.MISSING or (one.status is Status.DIFFERENT and not decision_of(one.item))
    ]


def print_verdicts(verdicts: Iterable[Verdict]) -> None:
    """A line for each item under its group's heading, with why for those that differ on purpose."""
    group = ""
    for one in verdicts:
        if one.group != group:
            group = one.group
            print(f"\n## {group}\n")
        why = decision_of(one.item) if one.status is Status.DIFFERENT else ""
        print(f"{one.status:9} {one.item}  {' | '.join(filter(None, (one.evidence[:_SHOWN_LETTERS], why)))}")


def main() -> None:
    parser = argparse.ArgumentParser(
        description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter
    )
    parser.add_argument("--group", default="", help="part of the title of the groups to try")
    parser.add_argument("--write", action="store_true", help="write the page")
    parser.add_argument(
        "--check", action="store_true", help="fail if an item has no word, or the page is stale"
    )
    args = parser.parse_args()
    signal.signal(signal.SIGTERM, signal.default_int_handler)  # a stopped audit tidies up, as with Ctrl-C
    groups = [group for group in GROUPS if args.group.lower() in group.title.lower()]
    verdicts = verdicts_of(groups)
    print_verdicts(verdicts)
    print(
        "\n"
        + ", ".join(f"{status} {count}" for status, count in Counter(one.status for one in verdicts).items())
    )
    is_whole = len(groups) == len(GROUPS)
    if args.write and is_whole:
        PAGE.write_text(page(verdicts), encoding="utf-8")
    if args.check:
        is_stale = is_whole and PAGE.read_text(encoding="utf-8") != page(verdicts)
        problems = unexplained(verdicts) + [f"{PAGE.name} is stale; run with --write"] * is_stale
        sys.exit("\n".join(problems) or 0)


if __name__ == "__main__":
    main()
