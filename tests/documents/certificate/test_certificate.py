"""Certificates: what a run read is proven without its shards, and nothing that it did not read."""

from __future__ import annotations

import json
import random
import re
import shutil
import zlib
from collections.abc import Callable, Iterator
from hashlib import sha256
from pathlib import Path
from typing import Any

import by_the_page
import pytest
from mixing import request, write_segment
from test_golden import GOLDEN
from tokenizing import make_work, recipe, run

import pretok.stream
from pretok.base.errors import IntegrityError, MismatchError, UsageError
from pretok.base.execute import Engine
from pretok.base.storage import fingerprint, write_json
from pretok.cli import run_command
from pretok.documents.certificate.certificate_file import read_certificate
from pretok.documents.certificate.certify import certify_step
from pretok.documents.certificate.check import check_certificate, sentences
from pretok.shards.manifest import load_manifest
from pretok.stream import audit
from pretok.stream.mix_job import run_mix

BATCH = 4
STEPS = 9
MOST = (1 << 63) - 1


def texts(seed: int) -> list[dict[str, Any]]:
    words, chance = [*"abcdefgh", "mare", "salato", "the", "of", "harbour"], random.Random(seed)
    some = [" ".join(chance.choices(words, k=chance.randrange(1, 300))) for _ in range(60)]
    return [{"text": text, "long": n % 2} for n, text in enumerate(some)]


@pytest.fixture(scope="module")
def work(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """Shards of two sources and, for mixes of each kind, what train leaves of a run of nine steps."""
    rows = {"en": texts(0), "it": texts(1)}
    folder = make_work(tmp_path_factory.mktemp("certificate"), GOLDEN, rows, "long:integer", size=8000).out
    wishes: list[tuple[str, str, dict[str, Any]]] = [
        ("cut", "it=0.4,en=0.6", {}),
        ("packed", "it=0.4,en=0.6", {"pack": "best-fit"}),
        ("classes", "odd=0.3,it=0.2,en=0.5", {"classes": {"odd": "it where long = 1"}}),
    ]
    for name, weights, wish in wishes:
        wish = request(f"1600:{weights}", f"3200:{weights}", seq_len=64, max_epochs=99, **wish)
        run_mix(folder / "shards", folder / f"{name}.json", wish)
        write_run(folder / name, folder / "shards", folder / f"{name}.json")
    return folder


def write_run(folder: Path, shards: Path, mix: Path, **changes: Any) -> None:
    view = pretok.stream.open(shards, mix)
    resolved = {"model": {"seq_len": view.seq_len}, "steps": STEPS + 3}
    write_json(folder / "config.json", {"model": "debug", "resolved": resolved})
    write_segment(folder, shards, view, BATCH, mix=str(mix), **changes)
    meta = {"step": STEPS, "progress": {"position": STEPS * BATCH}}
    write_json(folder / "checkpoints" / f"step-{STEPS:08d}" / "meta.json", meta)


def refused(path: Path, said: dict[str, Any], rest: bytes, root: str) -> str:
    """Why a certificate of such claims, with a right digest, is refused; empty if it is not."""
    packed = zlib.compress(json.dumps(said).encode())
    digest = sha256(packed + rest).hexdigest()
    path.write_bytes(f"pretok-certificate 3 {len(packed)} {digest}\n".encode() + packed + rest)
    try:
        check_certificate(path, root)
    except (IntegrityError, MismatchError) as error:
        return str(error)
    return ""


@pytest.mark.parametrize("kind", ["cut", "packed", "classes"])
@pytest.mark.parametrize("step", [1, 5, STEPS])
def test_a_step_is_proven_without_the_shards(work: Path, tmp_path: Path, kind: str, step: int) -> None:
    out, root = tmp_path / "step.certificate", load_manifest(work / "shards").root
    made = certify_step(work / kind, step, None, out)
    checked = check_certificate(out, root, step)
    assert made == checked
    assert (checked.step, checked.sequences, checked.root) == (step, BATCH, root)
    assert checked.positions == tuple(range((step - 1) * BATCH, step * BATCH))
    view = pretok.stream.open(work / "shards", work / f"{kind}.json")
    tapes = {one.name: one.tape for one in view.mix.sources}
    assert checked.mapped == sum(tapes[view.origin(at)[0]] is None for at in checked.positions)
    headline, *claims = sentences(checked)
    assert headline.endswith(f"of the mix {view.fingerprint}")
    said = "; ".join(claims)
    assert ("by its arithmetic" in said) is (checked.mapped > 0)
    assert ("of classes or packed sources" in said) is (checked.mapped < BATCH)
    assert claims[-1].startswith(f"not proven: that step {step} of a run read these positions")
    assert not any("step" in claim for claim in claims[:-1])
    certificate, _ = read_certificate(out)
    paths = {number: json.loads(text).get("path") for number, text in certificate.entries}
    for position, sequence in zip(checked.positions, certificate.sequences, strict=True):
        shown = [(work / "shards" / paths[entry], *rest) for entry, *rest in sequence.pieces]
        assert shown == [tuple(piece) for piece in audit.pieces(view, position)]


@pytest.mark.parametrize("step", [1, 7, STEPS])
def test_the_page_is_enough_to_write_the_checker(work: Path, tmp_path: Path, step: int) -> None:
    out = tmp_path / "step.certificate"
    made = certify_step(work / "cut", step, None, out)
    view = pretok.stream.open(work / "shards", work / "cut.json")
    found = by_the_page.check(out.read_bytes(), made.root)
    assert found == view[(step - 1) * BATCH : step * BATCH].tolist()


@pytest.fixture(scope="module")
def small(work: Path) -> tuple[bytes, str]:
    """A small certificate, and its root."""
    made = certify_step(work / "cut", 2, None, work / "small.certificate")
    return (work / "small.certificate").read_bytes(), made.root


@pytest.fixture
def parts(small: tuple[bytes, str]) -> tuple[dict[str, Any], bytes, str]:
    """Its claims, leaves and hashes, and its root."""
    line, body = small[0].split(b"\n", 1)
    size = int(line.split(b" ")[2])
    return json.loads(zlib.decompress(body[:size])), body[size:], small[1]


def test_every_flipped_byte_is_found(small: tuple[bytes, str], tmp_path: Path) -> None:
    data, root = small
    path, chance = tmp_path / "flipped", random.Random(0)
    path.write_bytes(data)
    check_certificate(path, root)
    for at in chance.sample(range(len(data)), 500):
        path.write_bytes(data[:at] + bytes([data[at] ^ chance.randrange(1, 256)]) + data[at + 1 :])
        with pytest.raises((IntegrityError, MismatchError), match="flipped"):
            check_certificate(path, root)


def test_a_forger_who_makes_the_digest_right_is_found(
    parts: tuple[dict[str, Any], bytes, str], tmp_path: Path
) -> None:
    """Any byte of the tokens and hashes, and more hashes than are needed."""
    said, rest, root = parts
    chance, path = random.Random(1), tmp_path / "forged"
    for at in chance.sample(range(len(rest)), 300):
        forged = rest[:at] + bytes([rest[at] ^ chance.randrange(1, 256)]) + rest[at + 1 :]
        assert re.search("proves nothing: .* root|is of other shards", refused(path, said, forged, root))
    assert "more hashes than lead to the root" in refused(path, said, rest + bytes(32), root)
    assert refused(path, said, rest, root) == ""


def changed(value: Any) -> Iterator[Any]:
    """Copies of JSON, in each of which one number or text is another."""
    if isinstance(value, dict | list):
        for key in value if isinstance(value, dict) else range(len(value)):
            for other in changed(value[key]):
                copy = value.copy()
                copy[key] = other
                yield copy
    else:
        yield from (value + 1, value - 1) if isinstance(value, int) else (f"{value}x",)


def test_every_value_is_proven(parts: tuple[dict[str, Any], bytes, str], tmp_path: Path) -> None:
    said, rest, root = parts
    others = list(changed(said))
    assert len(others) > 80
    assert [other for other in others if not refused(tmp_path / "forged", other, rest, root)] == []


def test_what_does_not_belong_together_is_named(work: Path, small: tuple[bytes, str], tmp_path: Path) -> None:
    data, root = small
    path = tmp_path / "a.certificate"
    path.write_bytes(data)
    with pytest.raises(MismatchError, match="is of step 2, not of step 3"):
        check_certificate(path, root, 3)
    others = f"is of other shards: it leads to the root {root}, not to {'0' * 64}"
    with pytest.raises(MismatchError, match=others):
        check_certificate(path, "0" * 64)
    for size in (0, 10, 150, len(data) // 2, len(data) - 1):
        path.write_bytes(data[:size])
        with pytest.raises(IntegrityError, match=r"cut short|is not a certificate"):
            check_certificate(path, root)
    path.write_bytes(data.replace(b"certificate 3 ", b"certificate 2 ", 1))
    with pytest.raises(MismatchError, match="of version 2; this pretok reads 3"):
        check_certificate(path, root)
    not_taken = f"step {STEPS + 1} was not taken: the newest checkpoint .* step {STEPS}"
    for step, message in ((STEPS + 1, not_taken), (99, "there is no step 99")):
        with pytest.raises(UsageError, match=message):
            certify_step(work / "cut", step, None, path)


FORGERIES: list[tuple[Callable[[dict[str, Any]], object], str]] = [
    (lambda said: said.update(step=3), "step 3 reads positions 8 to 11, not those it shows"),
    (lambda said: said["segment"].update(step=2), "its segment of the run does not have step 2"),
    (lambda said: said["sequences"].pop(), "step 2 reads positions 4 to 7, not those it shows"),
    (lambda said: said["sequences"].clear(), "it shows no sequence"),
    (lambda said: said["segment"].update(global_batch=0), "step 2 reads positions .*, not those it shows"),
    (lambda said: said["sequences"].reverse(), "not those it shows"),
    (lambda said: move(said, BATCH), r"position \d+ has .*than the mix says|not of its source"),
    (lambda said: move(said, 1 << 40), "the mix has no position"),
    (lambda said: said["entries"].reverse(), "its entries are not in order"),
    (lambda said: said["entries"].insert(0, said["entries"][0]), "its entries are not in order"),
    (lambda said: said["entries"].pop(), "not just of the shards whose tokens it shows"),
    (lambda said: said["sequences"][0]["pieces"][0].__setitem__(1, 1 << 50), "does not have all tokens"),
    (lambda said: said["sequences"][0]["pieces"][0].__setitem__(2, 1 << 50), "does not have all tokens"),
    (lambda said: said["sequences"][0].update(pieces=[]), "is not hashes|leaves .* need|lead to|0 tokens"),
    # Another mix, with a right fingerprint.
    (lambda said: remix(said, seed=77), "is not of its source|has other tokens of"),
    (lambda said: remix(said, manifest="0" * 32), "fingerprint 0{32}, which these never had"),
    (lambda said: remix(said, split="val"), "which is not of its source"),
    (lambda said: remix(said, cuts="fixed"), "the mix is damaged"),
    (lambda said: remix(said, stages=[{"quotas": [1 << 40, 1 << 40]}]), "the mix is damaged"),
    (lambda said: remix(said, stages=[{"quotas": [MOST, MOST]}]), "the mix is damaged"),
    (lambda said: remix(said, stages=[{"quotas": [1 << 40, 1], "length": 9}]), "mix is damaged"),
    (lambda said: remix(said, stages=[{"quotas": [MOST, 1], "length": 9}]), "mix is damaged"),
    # Its sequences would not lie where those of a reader do.
    (
        lambda said: [one.update(packed=True) for one in said["mix"]["sources"]] and remix(said),
        "mix is damaged",
    ),
]


def move(said: dict[str, Any], by: int) -> None:
    """The same sequences at later positions, as a run would have read them there."""
    said["segment"]["position"] += by
    for one in said["sequences"]:
        one["position"] += by


def remix(said: dict[str, Any], **change: Any) -> None:
    del said["mix"]["fingerprint"]
    said["mix"] |= change
    said["mix"]["fingerprint"] = fingerprint(said["mix"])


@pytest.mark.parametrize("number", range(len(FORGERIES)))
def test_what_contradicts_itself_is_named(
    parts: tuple[dict[str, Any], bytes, str], tmp_path: Path, number: int
) -> None:
    change, message = FORGERIES[number]
    said, rest, root = parts
    change(said)
    assert re.search(message, refused(tmp_path / "forged", said, rest, root))


Pieces = list[tuple[Path, int, int]]


def longer(pieces: Pieces) -> Pieces:
    """All tokens of a sequence of two shards from the first one, which ends before them."""
    (path, first, tokens), *others = pieces
    return [(path, first, tokens + sum(more for *_, more in others))]


@pytest.mark.parametrize(
    ("kind", "forge", "message"),
    [
        ("cut", longer, r"has 65 tokens of \S+ from token \d+ on, which has \d+$"),
        ("classes", longer, r"has \d+ tokens of \S+ from token \d+ on, which has \d+$"),
        ("packed", lambda pieces: [], "has 0 tokens, a sequence has 65"),
        ("packed", lambda pieces: [*pieces, (pieces[0][0], 0, 0)], r"has 0 tokens of \S+ from token 0 on"),
        ("classes", lambda pieces: [*pieces, (pieces[0][0], 0, 0)], r"has 0 tokens of \S+ from token 0 on"),
    ],
)
def test_tokens_that_no_shard_has_are_not_proven(
    work: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch, kind: str, forge: Any, message: str
) -> None:
    """A forger who has the shards shows right leaves, and claims what is after the end of a shard, or nothing."""
    view = pretok.stream.open(work / "shards", work / f"{kind}.json")
    sizes = {shard.bin_path: shard.file_bytes for shard in load_manifest(work / "shards").shards}

    def fits(pieces: Pieces) -> bool:
        """Whether the last leaf, were it full, would hold what is claimed."""
        path, first, tokens = forge(pieces)[-1] if forge(pieces) else pieces[0]
        end = (first + tokens) * view.dtype.itemsize
        return end <= -(-sizes[path] // 4096) * 4096 and (forge is not longer or end > sizes[path])

    at = next(at for at in range(STEPS * BATCH) if fits(audit.pieces(view, at)))
    real = audit.pieces
    forged = lambda view, position: (forge if position == at else list)(real(view, position))  # noqa: E731
    monkeypatch.setattr("pretok.documents.certificate.certify.pieces", forged)
    with pytest.raises(IntegrityError, match=message):
        certify_step(work / kind, at // BATCH + 1, None, tmp_path / "forged")


def test_damaged_shards_give_no_certificate(work: Path, tmp_path: Path) -> None:
    shards = shutil.copytree(work / "shards", tmp_path / "shards")
    for shard in load_manifest(shards).shards:
        data = bytearray(shard.bin_path.read_bytes())
        data[len(data) // 2] ^= 1
        shard.bin_path.write_bytes(data)
    with pytest.raises(IntegrityError, match=r"\.bin is damaged"):
        certify_step(work / "cut", 2, shards, tmp_path / "a")
    assert not (tmp_path / "a").exists()


def test_a_folder_that_has_grown_proves_what_was_read_before(
    work: Path, tmp_path: Path, here: Engine
) -> None:
    grown = shutil.copytree(work, tmp_path / "work")
    inputs = {name: [work.parent / f"{name}.jsonl"] for name in ("en", "it")}
    inputs["de"] = [tmp_path / "de.jsonl"]
    inputs["de"][0].write_text("".join(json.dumps(row) + "\n" for row in texts(9)))
    run(recipe(grown, GOLDEN, inputs, ["long:integer"], size=8000), here)
    manifest = load_manifest(grown / "shards")
    assert manifest.root != load_manifest(work / "shards").root
    certify_step(work / "cut", 4, grown / "shards", tmp_path / "a")
    assert check_certificate(tmp_path / "a", manifest.root, 4).mapped == BATCH


def test_the_command(work: Path, tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    out, root = str(tmp_path / "a"), load_manifest(work / "shards").root
    assert run_command(["certify", str(work / "cut"), "--step", "3", "--out", out]) == 0
    assert f"pretok certify --check {out} --root {root}" in capsys.readouterr().err.replace("\n", " ")
    assert run_command(["certify", "--check", out, "--root", root, "--step", "3"]) == 0
    assert "4 sequences, 260 tokens, positions 8 to 11 of the mix" in capsys.readouterr().out
    assert run_command(["certify", "--check", out, "--root", root, "--json"]) == 0
    assert json.loads(capsys.readouterr().out)["mapped"] == 4
    assert run_command(["certify", "--check", out]) == 2
    assert "needs --root" in capsys.readouterr().err
    assert run_command(["certify", str(work / "cut")]) == 2
    assert "give a run with --step" in capsys.readouterr().err
