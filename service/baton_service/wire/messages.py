"""Messages of a session as protobuf, one pair of functions for each kind.

Pure. Incoming messages are checked as untrusted: one that no router or worker could mean
raises InvalidRequestError, which names the field.
"""

from baton_service.wire.wire_commands import decode_command, encode_command
from baton_service.wire.wire_reports import decode_report, encode_report, merge_reports, split_report
from baton_service.wire.wire_worker import decode_hello, decode_load, encode_hello, encode_load

__all__ = [
    "decode_command",
    "decode_hello",
    "decode_load",
    "decode_report",
    "encode_command",
    "encode_hello",
    "encode_load",
    "encode_report",
    "merge_reports",
    "split_report",
]
