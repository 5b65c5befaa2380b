"""Numbers in JSON schemas, and which of them each library keeps to."""

from __future__ import annotations

from collections.abc import Iterator
from decimal import Decimal
from fractions import Fraction
from itertools import chain
from math import ceil, floor, inf, isfinite, nextafter, trunc
from typing import Any, Final

BOUNDS: Final = ("minimum", "maximum", "exclusiveMinimum", "exclusiveMaximum")
COUNTS: Final = tuple(
    f"{end}{things}" for end in ("min", "max") for things in ("Items", "Length", "Properties")
)
INT64_END: Final = 2**63
XGRAMMAR_DECIMALS: Final = 6
"""As many as xgrammar writes of a number with bounds."""
_FLOAT_END: Final = 2**53
"""Where floats begin to leave out integers."""
_GUIDANCE_END: Final = INT64_END - 1024
"""The greatest bound that is a 64-bit float and within 64 bits, as llguidance reads bounds."""
_GREATEST_POWER: Final = 308
"""Decimal exponent of the greatest power that a float holds."""


def number_bounds(schema: dict[str, Any]) -> Iterator[tuple[str, float]]:
    """The keywords of a schema that are finite bounds, each with its value."""
    for name in BOUNDS:
        value = schema.get(name)
        if isinstance(value, int | float) and not isinstance(value, bool) and abs(value) < inf:
            yield name, value


def float_counts(schema: dict[str, Any]) -> Iterator[str]:
    """The keywords of a schema whose counts are written as floats, such as 2.0."""
    for name in COUNTS:
        value = schema.get(name)
        if isinstance(value, float) and value.is_integer():
            yield name


def listed_numbers(schema: dict[str, Any]) -> Iterator[float]:
    """The numbers in the values that `const` and `enum` list, at every depth."""
    waiting = [schema.get("const"), schema.get("enum")]
    while waiting:
        value = waiting.pop()
        if isinstance(value, int | float) and not isinstance(value, bool):
            yield value
        elif isinstance(value, dict | list):
            waiting.extend(value.values() if isinstance(value, dict) else value)


def is_int64(value: float) -> bool:
    """Return whether a number is within 64 bits."""
    return -INT64_END <= value < INT64_END


def is_float(value: int) -> bool:
    """Return whether a 64-bit float holds an integer exactly."""
    try:
        return value == float(value)
    except OverflowError:
        return False


def has_short_number(schema: dict[str, Any]) -> bool:
    """Return whether a number of `XGRAMMAR_DECIMALS` is within the bounds of a schema."""
    scaled = {name: Fraction(str(value)) * 10**XGRAMMAR_DECIMALS for name, value in number_bounds(schema)}
    least = max(
        ceil(scaled["minimum"]) if "minimum" in scaled else -inf,
        floor(scaled["exclusiveMinimum"]) + 1 if "exclusiveMinimum" in scaled else -inf,
    )
    most = min(
        floor(scaled["maximum"]) if "maximum" in scaled else inf,
        ceil(scaled["exclusiveMaximum"]) - 1 if "exclusiveMaximum" in scaled else inf,
    )
    return least <= most


def narrow_to_guidance(schema: dict[str, Any]) -> None:
    """Replace bounds that llguidance cannot hold, by the nearest within them that it can, and counts as 2.0.

    Raises:
        ValueError: `const` or `enum` has an integer that its process would not survive.
    """
    for value in listed_numbers(schema):
        if isinstance(value, int) and is_int64(value) and value < -_GUIDANCE_END:
            raise ValueError(f"{value} in 'const' or 'enum', where the least integer is {-_GUIDANCE_END}")
    schema.update({name: int(schema[name]) for name in float_counts(schema)})
    bounds = dict(number_bounds(schema))
    narrowed = {name: _narrowed(name, value) for name, value in bounds.items()}
    if not _has_range(narrowed):  # xgrammar may keep to it
        narrowed = {name: _clamped(name, value) for name, value in bounds.items()}
    schema.update(narrowed)


def number_unkept_by_guidance(schemas: list[dict[str, Any]]) -> str | None:
    """Return a number in schemas that llguidance does not keep to; None where it keeps to all.

    It reads numbers as 64-bit floats, and the greatest integer of 64 bits comes back as itself. Where the
    integer part of one bound is an exclusive one, such as 5 beside 5.5, it allows that integer.
    """
    for value in chain.from_iterable(map(listed_numbers, schemas)):
        if isinstance(value, int) and not (is_int64(value) and value in (float(value), INT64_END - 1)):
            return f"the integer {value}, which is not one of 64 bits that a float holds exactly,"
        if isinstance(value, float) and isfinite(value) and value != _read_by_guidance(value):
            return f"the number {value!r}, of which it reads another one,"
    bounds = [list(number_bounds(schema)) for schema in schemas]
    for schema in schemas:
        narrowed = {name: _narrowed(name, value) for name, value in number_bounds(schema)}
        end = _GUIDANCE_END if _has_range(narrowed) else _FLOAT_END
        for name, value in narrowed.items():
            if abs(value) > end:
                return f"{name!r} of {schema[name]!r}, which is beyond what a float holds exactly,"
    if any(map(_combines_bounds, schemas)):
        bounds = [list(chain.from_iterable(bounds))]
    for name, value in chain.from_iterable(map(_allowed_exclusives, bounds)):
        return f"{name!r} of {value!r} beside another bound with this integer part"
    return None


def _read_by_guidance(value: float) -> float:
    """The float that llguidance reads from a float's text: it rounds the digits, then their quotient.

    Source: github.com/serde-rs/json, `f64_from_parts`.
    """
    sign, digits, exponent = Decimal(repr(value)).as_tuple()
    assert isinstance(exponent, int)
    number = float(int("".join(map(str, digits))))
    while exponent < -_GREATEST_POWER:
        number, exponent = number / float(f"1e{_GREATEST_POWER}"), exponent + _GREATEST_POWER
    power = float(f"1e{abs(exponent)}")
    number = number * power if exponent > 0 else number / power
    return -number if sign else number


def _clamped(name: str, value: float) -> float:
    return max(value, -_GUIDANCE_END) if _is_low(name) else min(value, _GUIDANCE_END)


def _narrowed(name: str, value: float) -> float:
    """A bound; from `_FLOAT_END` on the next float within it, for llguidance reads and writes roughly."""
    value = _clamped(name, value)
    if not _FLOAT_END <= abs(value) <= _GUIDANCE_END:
        return value
    return int(nextafter(float(value), inf if _is_low(name) else -inf))


def _has_range(bounds: dict[str, float]) -> bool:
    least = max((value for name, value in bounds.items() if _is_low(name)), default=-inf)
    most = min((value for name, value in bounds.items() if not _is_low(name)), default=inf)
    return least <= most


def _is_low(name: str) -> bool:
    return name.endswith("inimum")


def _combines_bounds(schema: dict[str, Any]) -> bool:
    """Return whether several schemas, whose bounds meet, may hold for one value."""
    num_schemas = len(schema.keys() & {"$ref", "anyOf", "oneOf"}) + any(True for _ in number_bounds(schema))
    return "allOf" in schema or num_schemas > 1


def _allowed_exclusives(bounds: list[tuple[str, float]]) -> Iterator[tuple[str, float]]:
    """The exclusive bounds that are the integer part of another bound."""
    for name, value in bounds:
        if name.startswith("exclusive") and any(trunc(other) == value != other for _, other in bounds):
            yield name, value
