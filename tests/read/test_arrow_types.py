"""Arrow's types mean in a table what the same data mean in JSON Lines, wherever a column is read."""

from __future__ import annotations

import json
import uuid
from pathlib import Path
from typing import Any

import pyarrow as pa
import pyarrow.parquet as pq
import pytest
from reading import Found, read

from pretok.base.errors import UsageError
from pretok.read.kept import KeptColumn
from pretok.read.probe import probe_inputs
from pretok.read.recognise import list_inputs
from pretok.read.record_format import Conversation, RecordFormat

WORDS = ['perché? "sì"', "città\n", None, "tre", "tre"]
UUIDS = [uuid.UUID(int=number) for number in (1, 2**127, 3)]
TURNS = [[{"role": "user", "content": word or "x"}] for word in WORDS]


def of_json(values: list[Any]) -> pa.Array:
    # With escapes, as datasets does.
    spelled = [None if value is None else json.dumps(value) for value in values]
    return pa.array(spelled, pa.string()).cast(pa.json_())


TYPES: dict[str, tuple[pa.Array, list[Any]]] = {
    "json": (of_json(WORDS), WORDS),
    "json of other values": (of_json([1, 2.5, True, "uno", {"a": None}]), [1, 2.5, True, "uno", {"a": None}]),
    "json of lists": (of_json(TURNS), TURNS),
    "uuid": (pa.array([one.bytes for one in UUIDS], pa.uuid()), [str(one) for one in UUIDS]),
    "dictionary": (pa.array(WORDS).dictionary_encode(), WORDS),
    "runs": (pa.compute.run_end_encode(pa.array(WORDS)), WORDS),
    "view": (pa.array(WORDS, pa.string_view()), WORDS),
    "bytes": (pa.array([word and word.encode() for word in WORDS], pa.binary_view()), WORDS),
    "list": (pa.array(TURNS), TURNS),
    "list view": (pa.array([["a", "b"], [], None], pa.list_view(pa.string())), [["a", "b"], [], None]),
    "list of a fixed size": (pa.array([["a", "b"], None], pa.list_(pa.string(), 2)), [["a", "b"], None]),
    "struct with json": (
        pa.StructArray.from_arrays([of_json(WORDS), pa.array([1, 2, 3, 4, 5])], ["role", "n"]),
        [{"n": n} if word is None else {"role": word, "n": n} for n, word in enumerate(WORDS, 1)],
    ),
    "list of json": (
        pa.ListArray.from_arrays(pa.array([0, 2, 5], pa.int32()), of_json(WORDS)), [WORDS[:2], WORDS[2:]]
    ),
}  # fmt: skip
"""A column, and its values."""
CHAT = RecordFormat("x", conversation=Conversation(fields=False, template=""))
FIELDS = RecordFormat("", conversation=Conversation(fields=True, template="{n}{x}"))
PLACES = {"text": (RecordFormat("x"), ()), "conversation": (CHAT, ()), "template": (FIELDS, ())} | {
    f"kept {kind}": (RecordFormat("other"), (KeptColumn("x", "x", kind),))
    for kind in ("text", "integer", "float", "boolean")
}


def written(form: str, column: pa.Array, folder: Path) -> Path:
    table = pa.table(
        {"n": [str(n) for n in range(len(column))], "x": column, "other": ["testo"] * len(column)}
    )
    path = folder / f"a.{form}"
    if form == "parquet":
        pq.write_table(table, path, row_group_size=2)
    elif form == "arrow":
        with pa.ipc.new_file(path, table.schema) as file:
            file.write_table(table, max_chunksize=2)
    else:
        from datasets import Dataset

        Dataset(table).save_to_disk(path)
    return path


def value_of(text: str) -> Any:
    """The value of JSON, or a string, which stands there without quotes."""
    try:
        return json.loads(text)
    except ValueError:
        return text


@pytest.mark.parametrize("kind", TYPES)
@pytest.mark.parametrize("form", ["parquet", "arrow", "datasets"])
def test_a_type_means_what_json_lines_of_the_same_data_mean(tmp_path: Path, form: str, kind: str) -> None:
    """Wherever it is read."""
    column, values = TYPES[kind]
    try:
        path = written(form, column, tmp_path)
    except (pa.ArrowException, NotImplementedError, ValueError, TypeError, KeyError) as error:
        pytest.skip(f"{form} does not hold it: {error}")
    rows = ({"n": str(n), "x": value, "other": "testo"} for n, value in enumerate(values))
    (tmp_path / "a.jsonl").write_text("".join(json.dumps(row) + "\n" for row in rows))
    for place, (record, keep) in PLACES.items():
        # A column of texts holds conversations as JSON.
        if place != "conversation" or kind not in ("uuid", "dictionary", "runs", "view", "bytes"):
            compare(kind, place, read(path, record, keep=keep), read(tmp_path / "a.jsonl", record, keep=keep))


def compare(kind: str, place: str, found: Found, wanted: Found) -> None:
    if found.error:  # the type itself holds no text
        assert "not string or binary" in found.error
        # Objects are refused later.
        assert wanted.texts == {} or (kind, place) == ("struct with json", "conversation")
    elif place == "conversation":
        assert json_of(found) == json_of(wanted)
    elif place == "template":  # a null of a table is no key
        rows = {n: {k: v for k, v in row.items() if k != "other"} for n, row in json_of(wanted).items()}
        assert json_of(found) == {
            n: {k: v for k, v in row.items() if v is not None} for n, row in rows.items()
        }
    else:
        assert found == wanted


def json_of(found: Found) -> dict[int, Any]:
    """The texts as JSON, which may be spelled otherwise."""
    return {n: value_of(text) for n, text in found.texts.items()}


@pytest.mark.parametrize("form", ["parquet", "arrow"])
@pytest.mark.parametrize("inside", [False, True])
def test_a_type_without_a_meaning_is_refused_by_name(tmp_path: Path, form: str, inside: bool) -> None:
    kind: Any = pa.opaque(pa.string(), "polygon", "geo")
    column = pa.ExtensionArray.from_storage(kind, pa.array(["a", "b"]))
    if inside:
        column = pa.StructArray.from_arrays([column], ["y"])
    path = written(form, column, tmp_path)
    found = read(path, CHAT if inside else RecordFormat("x"))
    assert "column 'x' has the unknown type arrow.opaque; write it as text" in found.error
    says = "not text in" if inside else r"of the unknown type arrow\.opaque in"
    with pytest.raises(UsageError, match=rf"'x' is {says}"):
        probe_inputs(list_inputs([str(path)], "auto").files, ("x",))
