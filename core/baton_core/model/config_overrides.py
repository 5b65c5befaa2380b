"""Values that come before those of a model's config.json."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any, Final

ROPE_KEYS: Final = ("rope_parameters", "rope_scaling")
"""The names of the section on rotary embeddings, the newer one first."""
_OF_WEIGHTS: Final = ("rope_theta", "partial_rotary_factor")
"""Values that belong to the weights, in the section or beside it."""


def overridden(values: Mapping[str, Any], overrides: Mapping[str, Any]) -> dict[str, Any]:
    """Return the values of a config.json with others before them.

    The section on rotary embeddings has two names, and an override of one replaces the section under either.
    Where the new section is silent it keeps the base and the rotated part of a head. An override of these
    alone goes into the section. `rope_scaling` stands beside `rope_parameters` that have a section for each
    type of layer.
    """
    merged = {**values, **overrides}
    newer, older = ROPE_KEYS
    in_force = older if values.get(older) else newer
    section = values.get(in_force)
    replaced = section if isinstance(section, dict) and not has_sections(section) else {}
    known = {**replaced, **overrides}
    kept = {name: known[name] for name in _OF_WEIGHTS if known.get(name) is not None}
    given = [key for key in ROPE_KEYS if key in overrides]
    if not given and replaced:
        return {**merged, in_force: {key: replaced[key] for key in replaced if key not in _OF_WEIGHTS} | kept}
    if len(given) != 1 or (given == [older] and has_sections(values.get(newer))):
        return merged
    new, other = overrides[given[0]], newer if given == [older] else older
    if isinstance(new, dict) or (new is None and values.get(other)):
        merged.pop(other, None)
        merged[given[0]] = {**kept, **(new or {})}
    return merged


def has_sections(rope: object) -> bool:
    """Say whether a section on rotary embeddings has one inside for each type of layer."""
    return isinstance(rope, dict) and any(isinstance(value, dict) for value in rope.values())
