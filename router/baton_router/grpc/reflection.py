"""Reflection: the services that a server has, described under both names that clients ask for.

The package grpcio-reflection has `grpc.reflection.v1alpha` alone, and `grpc.reflection.v1` the same messages.
"""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from contextlib import suppress
from typing import Any, Final

import grpc
from google.protobuf import text_format
from google.protobuf.descriptor import FileDescriptor
from google.protobuf.descriptor_pb2 import FileDescriptorProto
from google.protobuf.descriptor_pool import DescriptorPool
from grpc_reflection.v1alpha import reflection, reflection_pb2, reflection_pb2_grpc

_V1ALPHA: Final = reflection.SERVICE_NAME
_V1: Final = _V1ALPHA.replace("v1alpha", "v1")


def add_reflection(server: grpc.aio.Server, services: Sequence[str]) -> None:
    """Describe the services (full names), and reflection itself, to those who ask."""
    pool = _pool((*services, _V1ALPHA))
    servicer = _Servicer((*services, _V1, _V1ALPHA), pool=pool)
    reflection_pb2_grpc.add_ServerReflectionServicer_to_server(servicer, server)
    handler = grpc.stream_stream_rpc_method_handler(
        servicer.ServerReflectionInfo,
        request_deserializer=reflection_pb2.ServerReflectionRequest.FromString,
        response_serializer=reflection_pb2.ServerReflectionResponse.SerializeToString,
    )
    methods = {"ServerReflectionInfo": handler}
    server.add_generic_rpc_handlers((grpc.method_handlers_generic_handler(_V1, methods),))


class _Servicer(reflection.aio.ReflectionServicer):  # type: ignore[misc]
    """Finds the file of a method, too."""

    def _file_containing_symbol(self, request: Any, symbol: str) -> Any:
        with suppress(KeyError):  # the pool has files of services, and none of methods
            symbol = self._pool.FindMethodByName(symbol).containing_service.full_name
        return super()._file_containing_symbol(request, symbol)


def _pool(services: Sequence[str]) -> DescriptorPool:
    """Return a pool of the files of these services and of `grpc.reflection.v1`.

    The default pool stays as it is: beside this file, another package's file of that service would not load.
    """
    known, pool = reflection_pb2.DESCRIPTOR.pool, DescriptorPool()
    files = [file for name in services for file in _with_imports(known.FindFileContainingSymbol(name))]
    for file in (*files, _renamed(reflection_pb2.DESCRIPTOR)):
        pool.Add(file)  # type: ignore[no-untyped-call]
    return pool


def _with_imports(file: Any) -> Iterator[FileDescriptorProto]:
    """Yield a file after those that it imports."""
    for imported in file.dependencies:
        yield from _with_imports(imported)
    yield FileDescriptorProto.FromString(file.serialized_pb)


def _renamed(file: FileDescriptor) -> FileDescriptorProto:
    text = text_format.MessageToString(FileDescriptorProto.FromString(file.serialized_pb))
    return text_format.Parse(text.replace("v1alpha", "v1"), FileDescriptorProto())
