from __future__ import annotations

from typing import Any, Final

import pytest

from baton_core.requests.exclusive_options import with_exclusive_options

NULL: Final = {"type": "null"}


def tagged(*required: str, **tag: Any) -> dict[str, Any]:
    return {"type": "object", "properties": {"kind": tag, "x": NULL}, "required": list(required)}


@pytest.mark.parametrize(
    "options",
    [
        [{"const": 1, "title": "a"}, {"enum": [2, "b", None]}],
        [{"const": 1}, {"const": True}],
        [tagged("kind", const="a"), tagged("kind", enum=["b", "c"])],
        [tagged("x", "kind", const=1, type="integer"), tagged("x", "kind", const=2, type="integer")],
        [{"anyOf": [tagged("kind", const=1), tagged("kind", const=1)]}, tagged("kind", const=2)],
    ],
)
def test_options_that_exclude_each_other_are_any_of(options: list[Any]) -> None:
    schema = {"items": {"oneOf": options, "discriminator": {"propertyName": "kind"}}}
    rewritten = with_exclusive_options(schema)
    assert rewritten == {"items": {"anyOf": options, "discriminator": {"propertyName": "kind"}}}
    assert "oneOf" in schema["items"]


@pytest.mark.parametrize(
    "options",
    [
        [{"const": 1}, {"const": 1.0}],
        [{"const": 1}, {"type": "string"}],
        [{"const": [1]}, {"const": [2]}],
        [tagged("kind", const="a"), tagged("kind", enum=["a", "b"])],
        [tagged("kind", const="a"), tagged("kind", type="string")],
        [tagged("kind", const="a"), {**tagged("kind", const="b"), "type": ["object", "null"]}],
        [{"$ref": "#/oneOf/0"}, {"const": 1}],
        [{"$ref": "#"}, {"const": 1}],
    ],
)
def test_options_that_share_values_stay_one_of(options: list[Any]) -> None:
    assert with_exclusive_options({"oneOf": options}) == {"oneOf": options}


def test_a_tag_with_a_default_becomes_required_in_the_schemas_that_options_refer_to() -> None:
    options = [{"$ref": "#/$defs/a"}, {"$ref": "#/$defs/b"}]
    schema = {"$defs": {"a": tagged("x", const="a", default="a"), "b": tagged(const="b")}, "oneOf": options}
    assert with_exclusive_options(schema) == {
        "$defs": {"a": tagged("x", "kind", const="a", default="a"), "b": tagged("kind", const="b")},
        "anyOf": options,
    }
