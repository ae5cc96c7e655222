"""Export to a folder of `transformers`, and import from one.

Input: a checkpoint folder, or several whose mean is taken. Output: config.json, model.safetensors or several such files
(without the padding of the vocabulary), and the files of the shards' tokenizer; no process group, no GPU, one tensor in
memory at a time. `exported_tensors` reads such a folder, written here or elsewhere, for --init-from.
`train.model.sizes` has the model families and their config.json.

Of all files of Qwen2.5-Instruct, Llama-3.1-Instruct and Mistral-Nemo-Instruct, an export has

    weights, index           from the run
    config.json              sizes and RoPE from the run; torch_dtype from --dtype; max_position_embeddings, the larger
                             of the run's and the first model's; eos_token_id as below; no key that repeats a default
    generation_config.json   eos_token_id: the marker that ends an answer, EOD, and those of the first model;
                             bos_token_id from the run; pad_token_id: the first model's, else of pad_token, else EOD;
                             other keys from the first model
    tokenizer.json           from the shards; it puts the run's BOS, if any, before a text, and nothing else
    chat_template.jinja      from the conversations that the run read, else as the next; tokenizer_config.json has none
    tokenizer_config.json,   from the first folder that has any: beside --tokenizer, WORK/vocab, the --init-from model
    special_tokens_map.json  with this tokenizer; else made. BOS from the run, roles of the template from conversations
    others                   vocab.json, merges.txt, tekken.json, original/, consolidated.safetensors, params.json: not
                             written, as they say the same once more

Rows of the embedding are ids of one tokenizer. With another one the model would produce nonsense without any error, so
fingerprints are compared.
"""

from __future__ import annotations

import json
import shutil
from collections.abc import Callable, Sequence
from contextlib import suppress
from functools import cache, partial
from pathlib import Path
from typing import Any

import torch
from safetensors import SafetensorError, safe_open
from torch import Tensor

from pretok.base.errors import IntegrityError, MismatchError, PretokError, UsageError
from pretok.base.records import File, Record, read_record, replace
from pretok.base.storage import TEMPORARY_SUFFIX, read_json, reading, write_json, writing
from pretok.base.units import listed
from pretok.shards.manifest import load_manifest
from pretok.stream.mix_file import parse_mix
from pretok.tokenizer.tokenizer_file import fingerprint_of, read_tokenizer
from pretok.tokenizer.vocab_map import VocabMap, read_map
from pretok.tokenizer.vocabulary import BESIDE, CONFIG_FILE, GENERATION_FILE, TEMPLATE_FILE, TOKENIZER_FILE
from train.checkpoint.meta import META, Meta, TokenizerOrigin, check_files, find_checkpoints, read_meta
from train.checkpoint.tensors import Reader, check_sizes, readable, restore, write_tensors
from train.config import command_parser, whole_number
from train.model.sizes import CONFIG, ModelConfig, read_config, transformers_config
from train.model.transformer import Decoder, frequencies

INDEX = "model.safetensors.index.json"
FILE_BYTES = 5e9
"""Of one file of an exported model."""
_BY_ENTRY = ("embed_tokens.weight", "lm_head.weight")
"""Matrices with one row per entry of the vocabulary."""
_HEAD, _FREQUENCIES = "lm_head.weight", "rotary_emb.inv_freq"
"""Tensors of a file that nothing reads if they repeat what the model has anyway."""


EXAMPLE = "  train export --run RUN --out MODEL"


def main(arguments: Sequence[str]) -> None:
    """Run `train export`: write one checkpoint, or the mean of several, as a transformers model."""
    description = "Write a checkpoint, or the mean of several, as a model of Hugging Face transformers."
    parser = command_parser("train export", description, EXAMPLE)
    parser.add_argument("--run", required=True, type=Path, help="folder of the run")
    parser.add_argument("--step", type=whole_number, help="step of the checkpoint (default: the newest)")
    parser.add_argument(
        "--last", type=whole_number, default=1, metavar="K", help="average the newest K checkpoints"
    )
    parser.add_argument(
        "--tokenizer",
        type=Path,
        help="export this copy of the shards' tokenizer, for example one with more files next to it (default: the copy "
        "in the shards folder)",
    )
    parser.add_argument("--out", required=True, type=Path, help="folder to create")
    parser.add_argument(
        "--dtype",
        choices=("float32", "bfloat16", "float16"),
        help="type of the weights (default: that of the --init-from model, else float32)",
    )
    space = parser.parse_args(list(arguments))
    checkpoints = find_checkpoints(space.run, space.step)
    if not 1 <= space.last <= len(checkpoints):
        raise UsageError(
            f"--last {space.last}: {space.run} has {len(checkpoints)} checkpoints to choose from; keep more with "
            "--keep-last or --milestone, and leave out --step"
        )
    dtype = getattr(torch, space.dtype) if space.dtype else None
    export(checkpoints[-space.last :], space.tokenizer, space.out, dtype)
    print(space.out)


def _outside_name(name: str) -> str:
    return name if name.startswith("lm_head") else f"model.{name}"


def export(checkpoints: Sequence[Path], tokenizer: Path | None, out: Path, dtype: torch.dtype | None) -> None:
    """Write one checkpoint, or the mean of several, as the Hugging Face folder `out`.

    With several, everything but the weights comes from the last one. tokenizer: None for the copy in the shards. dtype:
    None for that of the --init-from model, else float32. Raises UsageError if `out` exists or there is no tokenizer,
    MismatchError for another tokenizer or checkpoints of other sizes, IntegrityError for a damaged checkpoint.
    """
    if out.exists():
        raise UsageError(f"{out} exists already; name a new folder")
    meta = read_meta(checkpoints[-1])
    files = tokenizer_files(meta, tokenizer)
    config = meta.identity.model
    kinds, value = mean_weights(checkpoints, config)
    dtype = dtype or getattr(torch, config.dtype)
    rows = {name: config.matrix_rows if name in _BY_ENTRY else len(kind) for name, kind in kinds.items()}
    inside = {_outside_name(name): name for name in kinds}

    def tensor(name: str) -> Tensor:
        return value(inside[name])[: rows[inside[name]]].to(dtype)

    # All ids that end a text or a turn: some readers look only here.
    ends = {"eos_token_id": json.loads(files[GENERATION_FILE])["eos_token_id"]}
    config_json = transformers_config(config, meta.eod_id, meta.bos_id) | ends
    temporary = out.with_name(f".{out.name}{TEMPORARY_SUFFIX}")
    shutil.rmtree(temporary, ignore_errors=True)
    try:
        with writing(out):
            temporary.mkdir(parents=True)
            outside = {name: kinds[ours][: rows[ours]].to(dtype) for name, ours in inside.items()}
            _write_model(temporary, outside, tensor)
            write_json(temporary / CONFIG, config_json | {"torch_dtype": str(dtype).removeprefix("torch.")})
            for name, content in files.items():
                (temporary / name).write_bytes(content)
            temporary.rename(out)
    finally:  # after an error, free the space; after the rename there is nothing left
        shutil.rmtree(temporary, ignore_errors=True)


def _write_model(folder: Path, kinds: dict[str, Tensor], tensor: Callable[[str], Tensor]) -> None:
    """Write tensors, one at a time, into files of at most FILE_BYTES, with the index that transformers reads."""
    files: list[dict[str, Tensor]] = [{}]
    for name, kind in kinds.items():
        if files[-1] and sum(tensor.nbytes for tensor in files[-1].values()) + kind.nbytes > FILE_BYTES:
            files.append({})
        files[-1][name] = kind
    if len(files) == 1:
        write_tensors(folder / "model.safetensors", kinds, tensor, format="pt")
        return
    places: dict[str, str] = {}
    for number, part in enumerate(files, 1):
        place = f"model-{number:05d}-of-{len(files):05d}.safetensors"
        write_tensors(folder / place, part, tensor, format="pt")
        places |= dict.fromkeys(part, place)
    total = sum(kind.nbytes for kind in kinds.values())
    write_json(folder / INDEX, {"metadata": {"total_size": total}, "weight_map": places})


def mean_weights(
    checkpoints: Sequence[Path], config: ModelConfig
) -> tuple[dict[str, Tensor], Callable[[str], Tensor]]:
    """Return the shapes of the parameters (on the meta device), and value(name): the float32 mean of one parameter.

    Memory holds two copies of one parameter at a time, and mapped pages of files (`train.checkpoint.tensors.MAPPED`).
    """
    readers = []
    for checkpoint in checkpoints:
        meta = read_meta(checkpoint)
        if replace(meta.identity.model, seq_len=config.seq_len) != config:
            raise MismatchError(f"{checkpoint} and {checkpoints[-1]} hold models of different sizes")
        check_files(checkpoint, meta)
        readers.append(readable(checkpoint, partial(Reader, checkpoint, meta)))
    with torch.device("meta"):
        kinds = dict(Decoder(config).state_dict())

    def value(name: str) -> Tensor:
        total = torch.empty(kinds[name].shape)
        restore({f"model.{name}": total}, readers[0])
        for reader in readers[1:]:
            restore({f"model.{name}": (weights := torch.empty_like(total))}, reader)
            total += weights
        return total.div_(len(readers))

    return kinds, value


def exported_tensors(
    folder: Path, config: ModelConfig, report: Callable[[str], None], vocab_map: VocabMap | None = None
) -> Callable[..., Tensor]:
    """Return value(name, shape, device, part), which reads parts of parameters from a transformers folder.

    part: slices of the parameter; None for the whole. Only the requested part is read. Rows of padding are zero.

    vocab_map: the folder's model has the old vocabulary and `config` the new one. Rows of old entries are copied; the
    row of a new entry is the mean of the rows of the entries it is made of.

    Reports another rope_theta. Raises MismatchError if the sizes are not those of `config`, or the model needs
    something that `Decoder` does not compute; IntegrityError if a file is missing or damaged.
    """
    theirs = read_config(folder / CONFIG)
    if vocab_map is not None and theirs.rows < vocab_map.old.size:
        raise MismatchError(
            f"{folder} has rows for {theirs.rows} entries, but --vocab-map starts from {vocab_map.old.size} entries"
        )
    rows = theirs.rows if vocab_map is None else config.rows
    check_sizes(replace(theirs, vocab_size=config.vocab_size, rows=rows), config, folder, report)
    new_rows = {} if vocab_map is None else {int(row): parts for row, parts in vocab_map.rows.items()}
    kept = theirs.rows if vocab_map is None else vocab_map.old.size
    with torch.device("meta"):
        shapes = {name: list(value.shape) for name, value in Decoder(config).state_dict().items()}
    for name in set(_BY_ENTRY) & shapes.keys():
        shapes[name][0] = theirs.rows
    places = _tensor_places(folder, {_outside_name(name) for name in shapes}, theirs)

    @cache
    def opened(path: Path) -> Any:
        return safe_open(path, "pt")

    def value(
        name: str, shape: Sequence[int], device: torch.device, part: Sequence[slice] | None = None
    ) -> Tensor:
        outside, by_entry = _outside_name(name), name in _BY_ENTRY
        path = folder / places[outside]
        limits = [kept, *shapes[name][1:]] if by_entry else shapes[name]
        part = part or [slice(0, count) for count in shape]
        # The folder may have fewer rows than this model (no padding, the old vocabulary): read those that exist.
        there = tuple(
            slice(min(axis.start, n), min(axis.stop, n)) for axis, n in zip(part, limits, strict=True)
        )
        piece = torch.zeros([axis.stop - axis.start for axis in part], device=device)
        with reading(path, SafetensorError):
            stored = opened(path).get_slice(outside)
            if stored.get_shape() != shapes[name]:
                raise IntegrityError(
                    f"{path}: {outside} has the shape {stored.get_shape()}, but {CONFIG} implies {shapes[name]}"
                )
            if all(span.stop > span.start for span in there):
                existing = stored[there]
                piece[: len(existing)] = existing
                if name == _BY_ENTRY[0] and config.tied and (other := places.get(_HEAD)):
                    head = opened(folder / other).get_slice(_HEAD)
                    if head.get_shape() != shapes[name] or not torch.equal(head[there], existing):
                        raise MismatchError(
                            f"{folder / other}: {_HEAD} differs from {outside}, but {CONFIG} says that they are one: "
                            "set tie_word_embeddings to false there, or delete the tensor"
                        )
            for row in new_rows.keys() & range(part[0].start, part[0].stop) if by_entry else ():
                old_rows = [stored[old : old + 1, there[1]] for old in new_rows[row]]
                piece[row - part[0].start] = torch.cat(old_rows).to(piece).mean(0)
        return piece

    return value


class _Index(Record, frozen=True, forbid_unknown_fields=False):
    """The needed part of the index of a model in several files.

    Only the names of the files are used: like transformers, the reader asks each file for its tensors.
    """

    weight_map: dict[str, File]
    """Tensor -> its file."""


def _tensor_places(folder: Path, wanted: set[str], theirs: ModelConfig) -> dict[str, str]:
    """Return the file of each tensor that is there, in the order in which transformers looks for files.

    MismatchError if tensors are missing, not wanted (a bias would be ignored silently), or frequencies of the rotary
    positions other than those of `theirs`. A tied output matrix may be there.
    """
    index, single = folder / INDEX, "model.safetensors"
    if (folder / single).exists():
        files = {single}
    elif index.exists():
        files = set(read_record(_Index, read_json(index), index).weight_map.values())
    else:
        raise IntegrityError(f"{folder} has no {single}: save the model as safetensors")
    places: dict[str, str] = {}
    for path in (folder / name for name in sorted(files)):
        with reading(path, SafetensorError), safe_open(path, "pt") as file:
            names = set(file.keys())
            places |= dict.fromkeys(names, path.name)
            ours = frequencies(theirs.head_dim, theirs.rope_theta, theirs.rope_scaling)
            for name in sorted(name for name in names - wanted if name.endswith(_FREQUENCIES)):
                stored = file.get_tensor(name).double()  # perhaps rounded to half precision
                if stored.shape != ours.shape or not torch.allclose(stored, ours, rtol=2**-8, atol=2**-24):
                    raise MismatchError(f"{path}: {name} are other positions than those of {CONFIG}")
                del places[name]
    if lacking := sorted(wanted - places.keys()):
        raise MismatchError(f"{folder} lacks {listed(lacking, 1)}")
    if others := sorted(places.keys() - wanted - ({_HEAD} if theirs.tied else set())):
        raise MismatchError(f"{folder} has tensors that train does not support: {listed(others, 1)}")
    return places


def check_tokenizer(
    folder: Path, expected: TokenizerOrigin, report: Callable[[str], None], map_path: Path | None = None
) -> None:
    """Raise MismatchError if a model's tokenizer is not that of the shards, or not that from which the map starts.

    With a map, also if the map does not lead to the tokenizer of the shards. A missing tokenizer.json is reported.
    """
    path = folder / TOKENIZER_FILE
    fix = f"tokenize with --vocab {folder}, or give the --vocab-map made from it"
    if map_path is not None:
        ends = read_map(map_path)
        if ends.new.fingerprint != expected.fingerprint:
            raise MismatchError(
                f"{map_path} leads to another vocabulary (fingerprint {ends.new.fingerprint}) than that of "
                f"{expected.shards} ({expected.fingerprint}); name the map next to the tokenizer with which the shards "
                "were made"
            )
        expected = TokenizerOrigin(ends.old.fingerprint, f"the model that {map_path} starts from")
        fix = f"name the model whose tokenizer was extended, or the map made from the tokenizer of {folder}"
    if path.is_file():
        _read_tokenizer(path, expected, fix)
    else:
        report(
            f"{folder} has no {TOKENIZER_FILE}: cannot check that the ids of {expected.shards} are those of the model"
        )


def _read_tokenizer(path: Path, expected: TokenizerOrigin, fix: str) -> dict[str, Any]:
    """Read a tokenizer.json. MismatchError, which ends with `fix`, if it is not the expected one."""
    other = f"{path} is another tokenizer than that of {expected.shards}:"
    try:
        _, data, _ = read_tokenizer(path)
    except (FileNotFoundError, UsageError) as error:
        raise MismatchError(f"{other} {error}; {fix}") from None
    if (actual := fingerprint_of(data)) != expected.fingerprint:
        raise MismatchError(
            f"{other} the same ids stand for other tokens (fingerprint {actual}, not {expected.fingerprint}); {fix}"
        )
    return data


def tokenizer_files(meta: Meta, named: Path | None) -> dict[str, bytes]:
    """Return what a model needs beside its weights, file name -> content.

    These are tokenizer.json, those of BESIDE, and generation_config.json with all tokens that end a text or a turn. The
    chat template is that of the conversations that the run read, and the only one. The other files come from the
    first folder that has any: beside the tokenizer, WORK/vocab, or the --init-from model, if these have the same
    tokenizer. A missing tokenizer_config.json is made.

    named: a tokenizer file or folder; None for the copy in the shards' folder. Raises UsageError if there is no
    tokenizer.json, MismatchError if it is another one, IntegrityError if another file is damaged.
    """
    shards = Path(meta.tokenizer.shards)
    place = shards if named is None else named
    path = place / TOKENIZER_FILE if place.is_dir() else place
    if not path.is_file():
        raise UsageError(f"{path} does not exist: name the vocabulary of the shards with --tokenizer")
    data = _read_tokenizer(path, meta.tokenizer, "leave out --tokenizer to use the copy next to the shards")
    folders, start = [path.parent], meta.config.get("init_from")
    for folder in (shards.with_name("vocab"), *([Path(start)] if start else [])):
        with suppress(PretokError):
            _read_tokenizer(folder / TOKENIZER_FILE, meta.tokenizer, "")
            folders.append(folder)
    # Not file by file: the roles of one folder could contradict the template or the special tokens of another.
    places = _first(folders, BESIDE) | _first(folders, (GENERATION_FILE,))
    files = {TOKENIZER_FILE: path.read_bytes()} | {name: file.read_bytes() for name, file in places.items()}
    names = {number: token for token, number in data["model"]["vocab"].items()}
    names |= {token["id"]: token["content"] for token in data["added_tokens"]}
    chats, spoken = _chats(meta), {}
    if chats:
        files[TEMPLATE_FILE], spoken = chats[0][0].encode(), chats[0][1]
    roles, given = _table(places.get(CONFIG_FILE)), _table(places.get(GENERATION_FILE))
    # Conversations have the BOS of their template; without the shards nobody knows whether there were any.
    if meta.bos_id is not None or (shards.exists() and "bos_token" not in spoken):
        files[TOKENIZER_FILE] = _as_trained(files[TOKENIZER_FILE], meta.bos_id, names)
    bos = {} if meta.bos_id is None else {"bos_token": names[meta.bos_id]}
    turns = [end for *_, end in chats]
    generation = given | _generation(meta, given, _name(roles.get("pad_token")), names, turns)
    made = {
        "tokenizer_class": "PreTrainedTokenizerFast",
        "eos_token": names[meta.eod_id],
        "pad_token": names[generation["pad_token_id"]],
        "clean_up_tokenization_spaces": False,
        "model_max_length": meta.identity.model.seq_len,
    }
    # What the template was given when the conversations were tokenized; and one template, as readers differ in which of
    # two they take.
    ours = {role: name for role, name in (spoken | bos).items() if _name(roles.get(role)) != name}
    changed = (roles or made) | ours
    if TEMPLATE_FILE in files:
        changed.pop("chat_template", None)
    if changed != roles:
        files[CONFIG_FILE] = _json(changed)
    files[GENERATION_FILE] = _json(generation)
    return files


def _name(role: Any) -> Any:
    return role.get("content") if isinstance(role, dict) else role


def _generation(
    meta: Meta, given: dict[str, Any], padding: str | None, names: dict[int, str], turns: list[int | None]
) -> dict[str, Any]:
    """Return the ids of generation_config.json. padding: the role of tokenizer_config.json; turns: ends of answers."""
    pad = given.get("pad_token_id")
    if pad not in names:
        pad = next((number for number, name in names.items() if name == padding), meta.eod_id)
    theirs = given.get("eos_token_id") or []
    ends = [*turns, meta.eod_id, *(theirs if isinstance(theirs, list) else [theirs])]
    ends = list(dict.fromkeys(end for end in ends if end is not None))
    bos = {} if meta.bos_id is None else {"bos_token_id": meta.bos_id}
    return bos | {"eos_token_id": ends if len(ends) > 1 else ends[0], "pad_token_id": pad}


def _as_trained(content: bytes, bos_id: int | None, names: dict[int, str]) -> bytes:
    """Return a tokenizer.json that puts the run's BOS before a text, if it has one, and nothing else around it.

    transformers takes it from nowhere else, and the first model may have had another beginning.
    """
    from tokenizers import Tokenizer

    if Tokenizer.from_str(content.decode()).encode("").ids == ([] if bos_id is None else [bos_id]):
        return content
    template = None
    if bos_id is not None:
        bos = names[bos_id]
        single = [{"SpecialToken": {"id": bos, "type_id": 0}}, {"Sequence": {"id": "A", "type_id": 0}}]
        template = {
            "type": "TemplateProcessing",
            "single": single,
            "pair": [*single, {"Sequence": {"id": "B", "type_id": 1}}],
            "special_tokens": {bos: {"id": bos, "ids": [bos_id], "tokens": [bos]}},
        }
    return json.dumps(json.loads(content) | {"post_processor": template}, ensure_ascii=False).encode()


def _first(folders: Sequence[Path], names: Sequence[str]) -> dict[str, Path]:
    """Return the files of these names in the first folder that has any."""
    found = ({name: folder / name for name in names if (folder / name).is_file()} for folder in folders)
    return next(filter(None, found), {})


def _table(path: Path | None) -> dict[str, Any]:
    data = {} if path is None else read_json(path)
    if not isinstance(data, dict):
        raise IntegrityError(f"{path} is not a JSON object")
    return data


def _json(content: dict[str, Any]) -> bytes:
    return (json.dumps(content, ensure_ascii=False, indent=1) + "\n").encode()


def _chats(meta: Meta) -> list[tuple[str, dict[str, str], int | None]]:
    """Return what `chat_of` says of the sources that the run read, the longest first."""
    from pretok.shards.texts import chat_of  # its packages are not needed for training

    if not (shards := Path(meta.tokenizer.shards)).is_dir():
        return []
    manifest = load_manifest(shards)
    read = {source.held_in for source in parse_mix(meta.identity.mix, Path(META)).sources}
    names = sorted(read & manifest.sources.keys(), key=lambda name: -manifest.sources[name].tokens)
    return [chat for name in names if (chat := chat_of(manifest, name)) is not None]
