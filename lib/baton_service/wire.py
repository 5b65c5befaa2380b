"""Messages of a session as protobuf, one pair of functions for each kind.

Pure. What arrives is checked as if a stranger had sent it: whatever a router or a worker could not mean
raises InvalidRequestError, which names the field.
"""

from baton_service.wire_commands import decode_command, encode_command
from baton_service.wire_reports import decode_report, encode_report, merge_reports, split_report
from baton_service.wire_worker import decode_hello, decode_load, encode_hello, encode_load

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
