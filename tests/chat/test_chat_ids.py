"""Conversations: their ids are those of transformers, markers come from the template alone, masks are its masks."""

from __future__ import annotations

import json
import shutil
from functools import cache
from pathlib import Path
from typing import Any

import numpy as np
import pyarrow as pa
import pytest
from chatting import FORMS, MARKERS, conversations, hostile, with_tags, without_tags, write_tokenizer
from hypothesis import given, settings
from hypothesis import strategies as st
from jinja2.defaults import DEFAULT_FILTERS, DEFAULT_TESTS
from jinja2.exceptions import TemplateError
from jinja2.sandbox import ImmutableSandboxedEnvironment
from support import needs

from pretok.base.errors import UsageError
from pretok.chat.encode import encode_spans
from pretok.chat.render import Renderer
from pretok.chat.resolve import resolve
from pretok.chat.spans import unpack
from pretok.read.batches import TextBatch
from pretok.read.normalize import Normalization
from pretok.read.record_format import Conversation, RecordFormat
from pretok.tokenizer.encoder import Encoder
from pretok.tokenizer.kinds import KINDS, LEARNED
from pretok.tokenizer.reference import Unencodable
from pretok.tokenizer.vocabulary import Vocabulary, load_vocab

pytestmark = pytest.mark.filterwarnings("ignore")


UNFOLLOWED = "{% set _ = {messages[-1].content: 1} %}"
"""Makes a template run anew for each conversation: what a dict does with content is not followed."""


class Form:
    """A template with its vocabulary, as pretok and as transformers have them. own: another template than that beside
    the vocabulary; anew: it runs for each conversation."""

    def __init__(self, folder: Path, own: str = "", anew: bool = False) -> None:
        self.vocab: Vocabulary = load_vocab(folder, eod="<|endoftext|>")
        path = folder / "own.jinja"
        path.write_text(own)
        how = Conversation(fields=False, template="", chat_template=str(path) if own else "")
        record = resolve(RecordFormat("messages", conversation=how), self.vocab, "chat")
        assert isinstance(record.conversation, Conversation)
        self.markers = record.conversation.markers
        self.render = Renderer(record, Normalization())
        self.encoder = Encoder(self.vocab.with_special(self.markers))
        self.theirs = needs("transformers").AutoTokenizer.from_pretrained(folder)
        self.anew = anew

    def encode(self, rows: list[Any]) -> tuple[list[list[int]], list[list[str]], TextBatch]:
        """(ids, kinds of each document without its end, the batch)."""
        texts = pa.array([json.dumps(row) for row in rows], pa.large_string())
        batch = self.render(TextBatch(0, len(rows), len(rows), texts, np.arange(len(rows))))
        assert not (self.anew and self.render._known)
        ids, lengths, kinds = encode_spans(self.encoder, batch.texts, batch.spans)
        ends = np.cumsum(lengths)[:-1]
        return (
            [part.tolist()[:-1] for part in np.split(ids, ends)],
            [[KINDS[kind] for kind in part.tolist()[:-1]] for part in np.split(kinds, ends)],
            batch,
        )


@pytest.fixture(scope="session")
def folder_of(tmp_path_factory: pytest.TempPathFactory, sample_texts: dict[str, list[str]]) -> Any:
    """Name -> a folder with the vocabulary of a form, made when asked for."""
    folder = tmp_path_factory.mktemp("forms")
    return cache(lambda name: write_tokenizer(folder / name, name, sample_texts["en"][:60]))


@pytest.fixture(scope="session", params=[False, True], ids=["reused", "anew"])
def forms(request: pytest.FixtureRequest, folder_of: Any) -> Any:
    """Name -> Form, made when asked for."""

    @cache
    def form(name: str) -> Form:
        own = UNFOLLOWED + without_tags(name) if request.param else ""
        made = Form(folder_of(name), own, request.param)
        assert set(MARKERS[name]) <= made.markers.keys()
        return made

    return form


fewer = settings(max_examples=settings.default.max_examples // 3)
"""For each of five forms, with a template that is reused and with one that runs anew."""


@pytest.mark.parametrize("name", FORMS)
@fewer
@given(data=st.data())
def test_ids_and_what_is_learned_are_those_of_transformers(forms: Any, name: str, data: Any) -> None:
    """Which learns what stands in generation tags; they change no text."""
    form = forms(name)
    rows = data.draw(st.lists(conversations(name), min_size=1, max_size=3))
    ids, kinds, batch = form.encode([*rows, *rows])  # the second time without Jinja
    assert not batch.rejects
    theirs, tags = form.theirs.apply_chat_template, with_tags(name)
    assert theirs(rows, tokenize=False) == theirs(rows, tokenize=False, chat_template=tags)
    expected = [
        theirs(row, tokenize=True, chat_template=tags, return_dict=True, return_assistant_tokens_mask=True)
        for row in rows
    ] * 2
    assert ids == [one["input_ids"] for one in expected]
    learned = [[int(kind in LEARNED) for kind in row] for row in kinds]
    assert learned == [one["assistant_masks"] for one in expected]


@pytest.mark.parametrize("name", FORMS)
def test_generation_tags_say_what_is_learned(folder_of: Any, name: str) -> None:
    folder = folder_of(name)
    talk = [{"role": "user", "content": "a"}, {"role": "assistant", "content": "b c"}]
    rows: list[list[dict[str, str]]] = [talk * n for n in (1, 2, 2)]
    if name == "qwen3":
        rows[1][1] = {"role": "assistant", "content": "", "reasoning_content": "d"}
    assert Form(folder, with_tags(name)).encode(rows)[:2] == Form(folder).encode(rows)[:2]
    if name == "chatml":
        end = "{{ message['content'] }}{% endgeneration %}{{ '<|im_end|>' }}"
        moved = with_tags(name).replace("{{ message['content'] + '<|im_end|>' }}{% endgeneration %}", end)
        ids, kinds, _ = Form(folder, moved).encode(rows)
        assert ids == Form(folder).encode(rows)[0]
        assert [row.count("answer") for row in kinds] == [2, 4, 4]


@pytest.mark.parametrize("name", FORMS)
@fewer
@given(data=st.data())
def test_content_puts_no_marker(forms: Any, name: str, data: Any) -> None:
    """Each text is harmless or hostile; the markers in their order are those of the harmless conversation."""
    form = forms(name)
    row = data.draw(conversations(name, hostile(name)))
    if name == "qwen3" and any("</think>" in str(message) for message in row):
        return  # there the template itself looks into content, and writes tags for what it finds
    (ids,), _, batch = form.encode([row])
    markers = set(form.markers.values())
    harmless = json.loads(json.dumps(row), object_hook=lambda one: {k: _harmless(v) for k, v in one.items()})
    (others,), _, _ = form.encode([harmless])
    assert [i for i in ids if i in markers] == [i for i in others if i in markers]
    spelled = b"".join(form.vocab.token_bytes(i) for i in ids).decode()
    assert spelled == batch.texts[0].as_py()


def test_a_tokenizer_that_changes_text_or_merges_it_to_markers(tmp_path: Path, folder_of: Any) -> None:
    """A text that its normalizer changes is refused by name; a merge that makes a marker, before the work."""
    folder = shutil.copytree(folder_of("chatml"), tmp_path / "own")
    data = json.loads((folder / "tokenizer.json").read_text()) | {"normalizer": {"type": "NFC"}}
    (folder / "tokenizer.json").write_text(json.dumps(data))
    form = Form(folder)
    composed, other = ([{"role": "user", "content": text}] for text in ("perch\u00e9", "perche\u0301"))
    assert form.encode([composed])[0] == [form.theirs.apply_chat_template(composed, return_dict=False)]
    with pytest.raises(Unencodable, match='set unicode = "nfc"') as refused:
        form.encode([composed, other, composed])
    assert refused.value.documents == [1]
    data["model"]["merges"].append(["<|im_", "end|>"])
    (folder / "tokenizer.json").write_text(json.dumps(data))
    with pytest.raises(UsageError, match=r"a merge that makes its marker '<\|im_end\|>'"):
        Form(folder)


def _harmless(value: Any) -> Any:
    roles = ("system", "user", "assistant", "tool")
    return "harmless" if isinstance(value, str) and value and value not in roles else value


def test_only_the_template_says_that_somebody_thought(forms: Any) -> None:
    form = forms("qwen3")
    row = [
        {"role": "user", "content": "a</think><|im_end|>"},
        {"role": "assistant", "content": "<think>b</think>c<think>"},
    ]
    (ids,), (kinds,), _ = form.encode([row])
    names = [form.vocab.tokens[i] for i in ids if i in form.markers.values()]
    assert names == ["<|im_start|>", "<|im_end|>", "<|im_start|>", "<think>", "</think>", "<|im_end|>"]
    learned = [form.vocab.tokens[i] for i, kind in zip(ids, kinds, strict=True) if kind == "thinking"]
    assert learned[:1] == ["<think>"]
    assert "b" in learned


def test_what_a_template_asks_is_asked_of_each_conversation(forms: Any) -> None:
    """Conversations of one shape, of which the template makes different things; none runs it for all."""
    form = forms("qwen3")
    answers = ["plain", "<think>a</think>b", "plain", "\n\nled", "<think>\n</think>", "</think>x</think>y"]
    rows = [
        [{"role": "user", "content": "x"}, {"role": "assistant", "content": answer}] for answer in answers
    ]
    texts = form.encode(rows)[2].texts.to_pylist()
    assert texts == [form.theirs.apply_chat_template(row, tokenize=False) for row in rows]
    assert form.anew or max(map(len, form.render._known.values())) > 2


def test_names_of_unknown_keys_are_content(forms: Any) -> None:
    form = forms("chatml")
    loop = "{% for k, v in m.items() %}{% if k != 'role' %}{{ k + v }}{% endif %}{% endfor %}"
    template = "{% for m in messages %}" + loop + "{% endfor %}"
    how = Conversation(fields=False, template=template, markers=form.markers)
    record = RecordFormat("messages", conversation=how)
    answer = {"role": "assistant", "content": "b"}
    rows = [[{"role": "user", "content": "a", "<|im_end|>": n}, answer] for n in "xy"]
    texts = pa.array([json.dumps(row) for row in rows], pa.large_string())
    batch = Renderer(record, Normalization())(TextBatch(0, 2, 2, texts, np.arange(2)))
    assert batch.texts.to_pylist() == ["contenta<|im_end|>xcontentb", "contenta<|im_end|>ycontentb"]
    ids, _, _ = encode_spans(form.encoder, batch.texts, batch.spans)
    assert not set(ids.tolist()) & set(form.markers.values()) - {form.vocab.eod_id}


CONTENTS = [
    "a", "5", "42", "-3", "2.5", "1e3", "a b", "Hello world", "hello-WORLD (it's)", "HELLO", "éà Ü", "  led",
    "end \n", "x\ny\u2028z", "a,b,c", "%d", "%s%s", "{0}", "<think>b</think>c", "</think>", "<|im_end|>",
    "<|im_start|>user", "a5", "东西", "😀", "ab" * 20, "ß", "<b>&amp;", "True", "0x1F", "items", "zyx cba",
]  # fmt: skip
ARGUMENTS = {
    "attr": "'x'", "batch": "2", "default": "'z', true", "d": "'z'", "format": "'x'", "groupby": "0",
    "indent": "2, true", "join": "'-'", "map": "'upper'", "reject": "'lower'", "rejectattr": "'x'",
    "replace": "'a', 'b'", "round": "1", "select": "'lower'", "selectattr": "'x'", "slice": "2",
    "truncate": "5", "wordwrap": "3", "divisibleby": "2", "sameas": "'a'", "startswith": "'a'",
    "endswith": "'d'", "find": "'a'", "rfind": "'a'", "index": "'a'", "rindex": "'a'", "partition": "'a'",
    "rpartition": "'a'", "removeprefix": "'a'", "removesuffix": "'d'", "center": "9", "ljust": "9",
    "rjust": "9", "zfill": "9", "translate": "{}", "maketrans": "'a', 'b'", "format_map": "{}", "filter": "",
    "test": "", "in": "'ab'",
}  # fmt: skip
"""Of those that need some; tests that compare are asked about 'a'."""
OPERATORS = (
    "C + 'x'", "'<' + C", "C ~ 1", "C * 2", "2 * C", "C % 'x'", "'%s' % C", "C - 1", "-C", "C / 2", "C // 2",
    "C ** 2", "C == 'a'", "'a' == C", "C != 'a'", "C < 'b'", "'b' < C", "C <= 'a'", "C >= 'a'", "C > 'a'",
    "1 < 2 < C", "C and 1", "C or 1", "not C", "'a' in C", "C in 'abc'", "C in ['a', '5']",
    "C not in {'a': 1}", "'y' if C else 'n'", "C is string", "(C ~ 'x') | trim",
    "(C ~ 'x') | replace('a', 'b')", "(C ~ 'x') | title", "[C, 'x'] | join('+')", "[C] | max",
    "[C, 'B'] | sort | join", "{'k': C} | dictsort", "C | int + 1", "C | length > 3", "C | list | length",
    "C | select('in', ['a', '5']) | join", "C | map('title') | join", "range(C | int(2)) | length",
    "C.split('a') | length", "C.split('</think>')[-1]", "C.split('a', 1)[0] | upper", "C.strip().split()[0]",
    "C.upper() | title", "{'k': C}.k",
)  # fmt: skip
SUBSCRIPTS = (
    "C[0]", "C[3]", "C[-2]", "C[99]", "C[1:]", "C[:2]", "C[::-1]", "C[1:99:2]", "C['x']", "C[C]",
    "(C ~ 'x')[3]", "(C ~ 'x')[-1]", "(C ~ 'x')[1:]", "(C ~ 'x')[99]", "{'a': 1, '5': 2}[C]", "{'a': 1, 'items': 2}[C]",
    "{'a': 1}.get(C, 3)", "['x', 'y'][C | int]", "{C: 1}['a']", "[C][0]", "(C | list)[0]", "(C | first)",
    "(C | last)", "C.split()[1]",
)  # fmt: skip


def called(name: str, often: str = "") -> str:
    return f"({ARGUMENTS[name]})" if ARGUMENTS.get(name) else often


OPERATIONS = [
    *(f"C | {name}{called(name)}" for name in DEFAULT_FILTERS),
    *(f"C is {name}{called(name)}" for name in DEFAULT_TESTS if name.isidentifier()),
    *(f"C is {name}('a')" for name in DEFAULT_TESTS if len(name) == 2 or "than" in name or name == "equalto"),
    *(f"C.{name}{called(name, '()')}" for name in dir(str) if name[0] != "_"),
    *OPERATORS,
    *SUBSCRIPTS,
]
FOLLOWED = ("C[3]", "{'a': 1}.get(C, 3)", "C | trim", "C.islower()", "C.split('a') | length", "C | first", "C[::-1]",
            "(C ~ 'x') | trim", "'a' in C", "C | replace('a', 'b')", "C | list | length")  # fmt: skip
"""Of which no conversation may be refused."""
REFUSED = ("C.center(9)", "'%s' % C", "C * 2", "C is sameas('a')", "[C, 'B'] | sort | join", "C | list")
"""Refused before the work begins."""


@pytest.mark.parametrize("operation", OPERATIONS)
def test_whatever_is_done_to_content_gives_what_jinja_gives(operation: str) -> None:
    """For each of 32 conversations of one shape, twice; or it is an error before the work begins, or a reject."""
    value = operation.replace("C", "m.content")
    say = f"{{% set v %}}{{{{ {value} }}}}{{% endset %}}{{{{ m.role ~ v ~ m.content }}}}<|im_end|>"
    template = f"{{% for m in messages %}}<|im_start|>{say}{{% endfor %}}"
    how = Conversation(fields=False, template=template, markers={"<|im_start|>": 1, "<|im_end|>": 2})
    try:
        render = Renderer(RecordFormat("messages", conversation=how), Normalization())
    except TemplateError:
        assert operation not in FOLLOWED
        return
    assert operation not in REFUSED
    rows = [
        [{"role": "user", "content": text}, {"role": "assistant", "content": text[::-1]}] for text in CONTENTS
    ] * 2
    texts = pa.array([json.dumps(row) for row in rows], pa.large_string())
    batch = render(TextBatch(0, len(rows), len(rows), texts, np.arange(len(rows))))
    assert operation not in FOLLOWED or not batch.rejects
    plain = ImmutableSandboxedEnvironment(trim_blocks=True, lstrip_blocks=True)
    plain.filters["tojson"] = lambda value: json.dumps(value, ensure_ascii=False)
    compiled = plain.from_string(template)
    expected = cache(lambda number: compiled.render(messages=rows[number]))
    for number, text in zip(batch.numbers.tolist(), batch.texts.to_pylist(), strict=True):
        assert text == expected(number % len(CONTENTS))
    for spans in batch.spans:
        markers = unpack(np.array(spans.as_py()))[2]
        assert markers[markers >= 0].tolist() == [1, 2] * 2
