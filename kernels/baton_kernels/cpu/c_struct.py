"""Structs that Python and the C++ kernels share: defined in Python, written as C++ for the compiler.

A field is annotated with one of the aliases below, or with another struct. When a build is loaded, the layout
that its compiler chose is compared with that of ctypes.
"""

from __future__ import annotations

import ctypes
from collections.abc import Iterator, Mapping, Sequence
from enum import IntEnum
from typing import Annotated, Any, Final, TypeVar, dataclass_transform, get_type_hints

from torch import Tensor

Struct = TypeVar("Struct", bound=ctypes.Structure)

Int32 = Annotated[int, "int32_t"]
Int64 = Annotated[int, "int64_t"]
Flag = Annotated[bool, "int32_t"]
Float = Annotated[float, "float"]
Source = Annotated[int | None, "const void*"]
Target = Annotated[int | None, "void*"]
SourceBytes = Annotated[int, "const char*"]
TargetBytes = Annotated[int, "char*"]
SourceInt8 = Annotated[int, "const int8_t*"]
TargetInt8 = Annotated[int, "int8_t*"]
SourceInt32 = Annotated[int, "const int32_t*"]
SourceInt64 = Annotated[int | None, "const int64_t*"]
TargetInt64 = Annotated[int, "int64_t*"]
SourceFloat = Annotated[int | None, "const float*"]
TargetFloat = Annotated[int, "float*"]
SourceDouble = Annotated[int, "const double*"]

_SCALARS: Final = {"int32_t": ctypes.c_int32, "int64_t": ctypes.c_int64, "float": ctypes.c_float}
"""Other C types are pointers."""


def address_of(tensor: Tensor | None) -> int | None:
    """Return where a tensor lies, or a null pointer without one."""
    return None if tensor is None else tensor.data_ptr()


@dataclass_transform(kw_only_default=True)
def c_struct(cls: type[Struct]) -> type[Struct]:
    """Give a class the ctypes fields of its annotations."""
    cls._fields_ = [(name, _ctypes_type(annotation)) for name, annotation in _annotations(cls).items()]
    return cls


def header(
    structs: Sequence[type[ctypes.Structure]],
    enums: Mapping[type[IntEnum], str],
    constants: Mapping[str, int],
    functions: Mapping[type[ctypes.Structure], str],
) -> str:
    """Return the C++ header: enumerations by their C type, structs, and the functions that take them.

    `kStructLayout` holds what `layout` returns, as the compiler sees it, behind the number of its entries.
    """
    lines = ["#pragma once", "#include <cstddef>", "#include <cstdint>", "namespace baton {"]
    for enum, c_type in enums.items():
        members = (f"k{_pascal(member.name)} = {member.value}" for member in enum)
        lines.append(f"enum {enum.__name__} : {c_type} {{ {', '.join(members)} }};")
    lines += [f"constexpr int {name} = {value};" for name, value in constants.items()]
    for struct in structs:
        fields = (f"  {_c_type(annotation)} {name};" for name, annotation in _annotations(struct).items())
        lines += [f"struct {struct.__name__} {{", *fields, "};"]
    entries = [f"  {expression}," for _, expression, _ in layout(structs)]
    lines += [
        f"constexpr int64_t kStructLayout[] = {{{len(entries)},",
        *entries,
        "};",
        "}  // namespace baton",
    ]
    lines += [
        f'extern "C" int {name}(const baton::{struct.__name__}* args);' for struct, name in functions.items()
    ]
    return "\n".join(lines) + "\n"


def layout(structs: Sequence[type[ctypes.Structure]]) -> Iterator[tuple[str, str, int]]:
    """Yield the name, the C++ expression and the ctypes value of each size and offset, in bytes."""
    for struct in structs:
        name = struct.__name__
        yield f"the size of {name}", f"sizeof({name})", ctypes.sizeof(struct)
        for field in _annotations(struct):
            place = getattr(struct, field)
            yield f"the offset of {name}.{field}", f"offsetof({name}, {field})", place.offset
            yield f"the size of {name}.{field}", f"sizeof({name}::{field})", place.size


def _annotations(struct: type[ctypes.Structure]) -> dict[str, Any]:
    return get_type_hints(struct, include_extras=True)


def _c_type(annotation: Any) -> str:
    c_type: str = annotation.__name__ if isinstance(annotation, type) else annotation.__metadata__[0]
    return c_type


def _ctypes_type(annotation: Any) -> Any:
    return annotation if isinstance(annotation, type) else _SCALARS.get(_c_type(annotation), ctypes.c_void_p)


def _pascal(name: str) -> str:
    return "".join(part.capitalize() for part in name.split("_"))
