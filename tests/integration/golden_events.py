"""Golden files of event streams: each line is an event with all its fields, in the order of the stream.

BATON_WRITE_GOLDEN=1 writes the files anew; read what changed before it is committed.
"""

from __future__ import annotations

import json
import os
import re
from pathlib import Path
from typing import Any

_FOLDER = Path(__file__).parents[1] / "fixtures" / "events"
_ID = re.compile(r"\b([a-z_-]+[_-])[0-9a-f]{16,}\b")
_TIME = re.compile(r'("[a-z]+_at": )[0-9.]+')


def check_golden(name: str, text: str) -> list[dict[str, Any]]:
    """Compare a stream of server-sent events, each of a type and its data, with a file; returns their data.

    Ids are numbered as they come, and times are 0.
    """
    *written, rest = text.split("\n\n")
    assert rest == "", "no line of [DONE]"
    events = []
    for event in written:
        kind, line = event.split("\n")
        events.append(json.loads(line.removeprefix("data: ")))
        assert kind == f"event: {events[-1]['type']}"
    ids: dict[str, str] = {}
    shown = _TIME.sub(r"\g<1>0", "".join(json.dumps(event) + "\n" for event in events))
    shown = _ID.sub(lambda found: ids.setdefault(found[0], f"{found[1]}{len(ids)}"), shown)
    path = _FOLDER / f"{name}.jsonl"
    if os.environ.get("BATON_WRITE_GOLDEN"):
        path.write_text(shown)
    assert shown.splitlines() == path.read_text().splitlines()
    return events
