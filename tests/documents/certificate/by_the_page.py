"""docs/formats.md as a program: a second checker that shares nothing with the first but the page.

Input: a certificate of a step of a mix of whole sources that never grew, and a root. Output: the ids of each sequence,
or an AssertionError. Slow and short: every position of the mix is put in order by its due time.
"""

from __future__ import annotations

import json
import struct
import zlib
from fractions import Fraction
from hashlib import blake2b, sha256
from typing import Any

LEAF = 4096


def root(wanted: dict[int, bytes], count: int, hashes: list[bytes]) -> bytes:
    def over(first: int, end: int) -> bytes:
        if not any(first <= number < end for number in wanted):
            return hashes.pop(0)
        if end - first == 1:
            return wanted[first]
        left = 1
        while left * 2 < end - first:
            left *= 2
        return sha256(b"\x01" + over(first, first + left) + over(first + left, end)).digest()

    return over(0, count)


def permuted(index: int, size: int, seed: int, source: str, epoch: int) -> int:
    keys = struct.unpack("<6Q", blake2b(f"{seed}\0{source}\0{epoch}".encode(), digest_size=48).digest())
    bits = max((size - 1).bit_length(), 2)
    low_bits, high_bits = bits // 2, bits - bits // 2
    mask = 2**64 - 1

    def mixed(half: int, key: int) -> int:
        value = ((half ^ key) * 0xFF51AFD7ED558CCD) & mask
        return ((value ^ (value >> 32)) * 0xC4CEB9FE1A85EC53) & mask

    while True:
        high, low = index >> low_bits, index & ((1 << low_bits) - 1)
        for number, key in enumerate(keys):
            if number % 2:
                high ^= mixed(low, key) >> (64 - high_bits)
            else:
                low ^= mixed(high, key) >> (64 - low_bits)
        index = high << low_bits | low
        if index < size:
            return index


def order(mix: dict[str, Any]) -> list[tuple[str, int]]:
    """(source, first token of it) of each position."""
    found, drawn = [], [0] * len(mix["sources"])
    for stage in mix["stages"]:
        quotas = stage["quotas"]
        drawings = [(number, k) for number, quota in enumerate(quotas) for k in range(quota)]
        due = [(Fraction(2 * k + 1, 2) * sum(quotas) / quotas[number], number) for number, k in drawings]
        for _, number in sorted(due)[: stage.get("length")]:
            source = mix["sources"][number]
            epoch, index = divmod(drawn[number], source["sequences"])
            drawn[number] += 1
            sequence = permuted(index, source["sequences"], mix["seed"], source["name"], epoch)
            first = sequence * mix["seq_len"]
            if mix["cuts"] == "epoch" and (source["tokens"] - 1) // mix["seq_len"] > 1:
                text = f"{mix['seed']}\0{source['name']}\0{epoch}\0cut"
                (cut,) = struct.unpack("<Q", blake2b(text.encode(), digest_size=8).digest())
                first += cut % mix["seq_len"]
            found.append((source["name"], first))
    return found


def check(data: bytes, trusted: str) -> list[list[int]]:
    line, body = data.split(b"\n", 1)
    magic, version, size, digest = line.decode().split(" ")
    assert (magic, version, digest) == ("pretok-certificate", "3", sha256(body).hexdigest())
    said, rest = json.loads(zlib.decompress(body[: int(size)])), body[int(size) :]
    entries = {number: json.loads(text) for number, text in said["entries"]}
    width = {"uint16": 2, "int32": 4}[entries[0]["tokenizer"]["dtype"]]
    wanted = {
        (number, token * width // LEAF)
        for one in said["sequences"]
        for number, first, tokens in one["pieces"]
        for token in range(first, first + tokens)
    }
    shown: dict[int, dict[int, bytes]] = {}
    for number, leaf in sorted(wanted):
        held = min(LEAF, entries[number]["file_bytes"] - leaf * LEAF)
        shown.setdefault(number, {})[leaf], rest = rest[:held], rest[held:]
    hashes = [rest[at : at + 32] for at in range(0, len(rest), 32)]
    for number, leaves in shown.items():
        count = -(-entries[number]["file_bytes"] // LEAF)
        found = root({leaf: sha256(b"\x00" + data).digest() for leaf, data in leaves.items()}, count, hashes)
        assert found.hex() == entries[number]["root"]
    texts = {number: sha256(b"\x02" + text.encode()).digest() for number, text in said["entries"]}
    assert root(texts, 1 + entries[0]["shards"] + entries[0]["side_files"], hashes).hex() == trusted
    assert hashes == []
    mix, segment = said["mix"], said["segment"]
    assert mix["manifest"] == entries[0]["fingerprint"]
    first = segment["position"] + (said["step"] - 1 - segment["step"]) * segment["global_batch"]
    positions = [*range(first, first + segment["global_batch"])]
    assert [one["position"] for one in said["sequences"]] == positions
    places, sequences = order(mix), []
    for one in said["sequences"]:
        source, at = places[one["position"]]
        ids: list[int] = []
        for number, first, tokens in one["pieces"]:
            shard = entries[number]
            assert (shard["source"], shard["split"]) == (source, mix["split"])
            assert shard["first"] + first == at + len(ids)
            assert 0 < tokens <= shard["tokens"] - first
            for token in range(first, first + tokens):
                leaf, byte = divmod(token * width, LEAF)
                ids.append(int.from_bytes(shown[number][leaf][byte : byte + width], "little"))
        assert len(ids) == mix["seq_len"] + 1
        sequences.append(ids)
    return sequences
