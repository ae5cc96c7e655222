"""What the values of Arrow's types mean: columns of tables -> values as JSON Lines of the same data would have them.

Input: fields of a schema, and columns. Output: the types that have no meaning here, by name; columns without packing;
values of Python. `arrow.json` is JSON, which is parsed, and `arrow.uuid` its text (the canonical extension types of
https://arrow.apache.org/docs/format/CanonicalExtensions.html); dictionaries, runs and views are what they stand for.
"""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import msgspec
import pyarrow as pa
import pyarrow.compute as pc

_NAME = b"ARROW:extension:name"
"""Key of a field's metadata with the name of an extension type that Arrow does not know."""
Convert = Callable[[Any], Any]


def is_json(kind: pa.DataType) -> bool:
    """Whether a type is `arrow.json`: texts each of which is a value of JSON."""
    return isinstance(kind, pa.JsonType)


def is_list(kind: pa.DataType) -> bool:
    """Whether the values of a type are lists."""
    is_ = pa.types
    tests = (is_.is_list, is_.is_large_list, is_.is_fixed_size_list, is_.is_list_view, is_.is_large_list_view)
    return any(test(kind) for test in tests)


def inner_type(kind: pa.DataType) -> pa.DataType:
    """Return the type of the values that a dictionary or runs stand for; of others the type itself."""
    packed = pa.types.is_dictionary(kind) or pa.types.is_run_end_encoded(kind)
    return inner_type(kind.value_type) if packed else kind


def unknown_type(field: pa.Field) -> str:
    """Return the name of an extension type without a meaning here, in a column or inside of it; "" if there is none."""
    kind = inner_type(field.type)
    if isinstance(kind, pa.BaseExtensionType):
        known = isinstance(kind, pa.JsonType | pa.UuidType)
        return "" if known else str(getattr(kind, "extension_name", kind))
    if name := (field.metadata or {}).get(_NAME):
        return str(name, "utf-8", "replace")
    inner = [kind.field(at) for at in range(kind.num_fields)] if pa.types.is_nested(kind) else []
    return next(filter(None, map(unknown_type, inner)), "")


def without_runs(column: pa.Array) -> pa.Array:
    """Return a column with runs written out, and UUIDs as their texts."""
    if pa.types.is_run_end_encoded(column.type):
        column.validate(full=True)
        return without_runs(pc.run_end_decode(column))
    if isinstance(column.type, pa.UuidType):
        return pa.array(
            [None if value is None else str(value) for value in column.to_pylist()], pa.large_string()
        )
    return column


def values_of(column: pa.Array) -> list[Any]:
    """Return the values of a column as `json` would read them from JSON Lines of the same data.

    Arrow adds every key of a struct's type to each value, so null keys of structs are those that the writer left out.
    Bytes are texts. Raises ValueError for JSON that is none. Text that is not UTF-8 stands in the place of the whole
    value, as UnicodeDecodeError, so that its record is rejected and no other.
    """
    convert = _converter(column.type)

    def value(given: Any) -> Any:
        try:
            return convert(given)
        except UnicodeDecodeError as error:
            return error

    return [value(given) for given in column.to_pylist()]


def _converter(kind: pa.DataType) -> Convert:
    """Return a function that makes the value of JSON from a value of `to_pylist`."""
    kind = inner_type(kind)
    convert = _converter_of_present(kind)
    return lambda value: None if value is None else convert(value)


def _converter_of_present(kind: pa.DataType) -> Convert:
    if is_json(kind):
        return msgspec.json.decode
    if isinstance(kind, pa.UuidType):
        return str
    if pa.types.is_struct(kind):
        inner = {kind.field(at).name: _converter(kind.field(at).type) for at in range(kind.num_fields)}
        return lambda value: {key: inner[key](part) for key, part in value.items() if part is not None}
    if is_list(kind):
        item = _converter(kind.value_type)
        return lambda value: [item(part) for part in value]
    if pa.types.is_map(kind):
        key, item = _converter(kind.key_type), _converter(kind.item_type)
        return lambda value: [[key(name), item(part)] for name, part in value]
    return lambda value: value.decode() if isinstance(value, bytes) else value
