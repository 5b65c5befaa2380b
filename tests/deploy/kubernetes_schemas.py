"""Validates objects against the schemas of several versions of Kubernetes, each distinct schema once.

Most kinds have the same schema in many versions, and each file of a version's definitions has megabytes: the
package `kubernetes_validate`, whose schemas these are, reads it again for every object.
"""

from __future__ import annotations

import json
from collections.abc import Mapping
from functools import cache
from importlib.resources import files
from typing import Any, Final

import jsonschema
import kubernetes_validate

_FOLDER: Final = files("kubernetes_validate") / "kubernetes-json-schema"
Schema = dict[str, Any]


@cache
def _definitions(version: str) -> Schema:
    text = (_FOLDER / f"v{version}.0-local-strict" / "_definitions.json").read_bytes()
    definitions: Schema = json.loads(text)["$defs"]
    return definitions


@cache
def _schema(version: str, kind: str, api_version: str) -> str:
    """Return a kind's schema with all that it refers to, as JSON: equal for equal schemas.

    Raises:
        kubernetes_validate.SchemaNotFoundError: the version has no such kind.
    """
    group, _, number = api_version.rpartition("/")
    name = "-".join(filter(None, (kind.lower(), group.partition(".")[0], number)))
    file = _FOLDER / f"v{version}.0-local-strict" / f"{name}.json"
    if not file.is_file():
        raise kubernetes_validate.SchemaNotFoundError(kind, version, api_version)
    schema: Schema = json.loads(file.read_bytes())
    found: Schema = {}
    left = [schema]
    while left:
        for reference in _references(left.pop()):
            if reference not in found:
                found[reference] = _definitions(version)[reference]
                left.append(found[reference])
    return json.dumps({"schema": schema, "definitions": found}, sort_keys=True)


def _references(value: object) -> list[str]:
    """Return the names of the definitions to which a schema refers itself."""
    if isinstance(value, list):
        return [name for one in value for name in _references(one)]
    if not isinstance(value, dict):
        return []
    own = value.get("$ref")
    names = [own.rpartition("/")[2]] if isinstance(own, str) else []
    return names + [name for one in value.values() for name in _references(one)]


@cache
def _validator(schema: str) -> jsonschema.Draft202012Validator:
    whole = json.loads(schema.replace("/api/_definitions.json#/$defs/", "#/$defs/"))
    return jsonschema.Draft202012Validator({**whole["schema"], "$defs": whole["definitions"]})


_valid: Final[set[tuple[str, str]]] = set()
"""Objects, as JSON, that have each schema."""


def validate(manifest: Mapping[str, Any], version: str) -> None:
    """Check an object against its schema, unknown fields included.

    Raises:
        jsonschema.ValidationError: it has a field that is wrong, or unknown.
        kubernetes_validate.SchemaNotFoundError: the version has no such kind.
    """
    schema, text = _schema(version, manifest["kind"], manifest["apiVersion"]), json.dumps(manifest)
    if (schema, text) not in _valid:
        _validator(schema).validate(manifest)
        _valid.add((schema, text))
