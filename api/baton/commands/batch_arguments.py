"""Flags of `baton run-batch`."""

from __future__ import annotations

from typing import Final

from baton.commands.client_arguments import SERVER_URL
from baton.commands.security_arguments import KEY
from baton.config.environment import KEY_VARIABLES
from baton.config.flags import Flag, Range

BATCH_FLAGS: Final = (
    Flag(
        "--input-file",
        str,
        None,
        "requests, one a line in OpenAI's batch format, also -i: a path, or a URL to read",
        metavar="FILE",
    ),
    Flag("--output-file", str, None, "answers, also -o: a path, or a URL to PUT them to", metavar="FILE"),
    Flag(
        "--output-tmp-dir",
        str,
        ".",
        "folder of the answers so far where --output-file is a URL",
        metavar="FOLDER",
    ),
    Flag("--max-inflight", int, 64, "requests at a time", Range(1, 65_536), metavar="N"),
    Flag(
        "--priority",
        int,
        4,
        "priority of requests that name none, at servers of Baton; lower values come first",
        Range(-(2**31), 2**31 - 1),
        metavar="N",
    ),
    Flag(
        "--url",
        str,
        None,
        "the server of OpenAI's interface that answers, such as http://127.0.0.1:8000/v1; default: one that "
        "is started for the batch",
        SERVER_URL,
    ),
    Flag(
        "--api-key",
        str,
        None,
        f"a key of the server; default: {' or '.join(KEY_VARIABLES)} of the environment",
        KEY,
        metavar="KEY",
    ),
    Flag(
        "--ssl-ca-certs",
        str,
        "",
        "authority of the certificate behind --url, PEM; default: the system's",
        metavar="FILE",
    ),
    Flag("--enable-metrics", bool, False, "changes nothing: a server that is started always has /metrics"),
)
BATCH_SHORT_FLAGS: Final = {"-i": "--input-file", "-o": "--output-file"}
