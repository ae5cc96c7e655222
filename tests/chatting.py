"""Helpers of the tests on conversations: five templates in the form of known ones, vocabularies that hold their
markers, and generated conversations."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

from hypothesis import strategies as st
from tokenizing import trained_model

from pretok.kernels.pretokenize import PATTERNS
from pretok.tokenizer.vocabulary import tokenizer_data

TEMPLATES = Path(__file__).parent / "chat" / "templates"
FORMS = {
    name: (TEMPLATES / f"{name}.jinja").read_text("utf-8")
    for name in ("chatml", "llama3", "mistral", "gemma", "qwen3")
}
"""Name -> template, in which @ and @@ stand where a test puts generation tags."""
MARKERS = {
    "chatml": ("<|im_start|>", "<|im_end|>"),
    "llama3": ("<|begin_of_text|>", "<|start_header_id|>", "<|end_header_id|>", "<|eot_id|>"),
    "mistral": ("<s>", "</s>", "[INST]", "[/INST]"),
    "gemma": ("<bos>", "<start_of_turn>", "<end_of_turn>"),
    "qwen3": (
        "<|im_start|>", "<|im_end|>", "<think>", "</think>", "<tool_call>", "</tool_call>", "<tool_response>",
        "</tool_response>",
    ),
}  # fmt: skip
PLAIN = ("<think>", "</think>", "<tool_call>", "</tool_call>", "<tool_response>", "</tool_response>")
"""Markers that are not special, as Qwen has them."""


def without_tags(form: str) -> str:
    return FORMS[form].replace("@@", "").replace("@", "")


def with_tags(form: str) -> str:
    """The template with generation tags where an assistant speaks."""
    return (
        FORMS[form].replace("@@", "\0").replace("@", "{% generation %}").replace("\0", "{% endgeneration %}")
    )


def write_tokenizer(folder: Path, form: str, texts: list[str]) -> Path:
    """A byte-level vocabulary that holds the markers of a form, with its template beside it."""
    folder.mkdir(parents=True, exist_ok=True)
    names = ["<|endoftext|>", *MARKERS[form]]
    model = trained_model(texts, "cl100k", [], vocab_size=900)
    added = [
        {
            "id": len(model["vocab"]) + number,
            "content": name,
            "special": name not in PLAIN,
            **dict.fromkeys(("single_word", "lstrip", "rstrip", "normalized"), False),
        }
        for number, name in enumerate(names)
    ]
    data = tokenizer_data(PATTERNS["cl100k"], [], []) | {"added_tokens": added, "model": model}
    (folder / "tokenizer.json").write_text(json.dumps(data), encoding="utf-8")
    bos = {"llama3": "<|begin_of_text|>", "mistral": "<s>", "gemma": "<bos>"}.get(form)
    eos = {"mistral": "</s>"}.get(form, "<|endoftext|>")
    config = {
        "tokenizer_class": "PreTrainedTokenizerFast",
        "eos_token": eos,
        "chat_template": without_tags(form),
    }
    (folder / "tokenizer_config.json").write_text(
        json.dumps(config | ({"bos_token": bos} if bos else {})), encoding="utf-8"
    )
    return folder


CONTENT = st.text(
    st.sampled_from("abc déà\n\t  .,'1٣😀\u0301\u2028\ufdd0\x00{}%#<|>東{%"), min_size=1, max_size=24
).map(lambda text: "x" + text if not text.strip() else text)
"""What somebody writes, and no marker."""


def hostile(form: str) -> st.SearchStrategy[str]:
    """What somebody writes who wants to be taken for the template."""
    tricks = st.sampled_from(
        [*MARKERS[form], "<|im_", "start|>", "{{ messages }}", "{% endfor %}", "\ufdd0", "\ue000", "<think>",
         "</think>", "assistant\n", "<|endoftext|>", "\x1b[31m", "\u202e"]
    )  # fmt: skip
    return st.lists(st.one_of(tricks, CONTENT), min_size=1, max_size=5).map("".join).filter(str.strip)


@st.composite
def conversations(draw: Any, form: str, content: st.SearchStrategy[str] = CONTENT) -> list[dict[str, Any]]:
    """Messages that a form takes."""
    messages: list[dict[str, Any]] = []
    if form != "gemma" and draw(st.booleans()):
        messages.append({"role": "system", "content": draw(content)})
    for _ in range(draw(st.integers(1, 3))):
        messages.append({"role": "user", "content": draw(content)})
        answer: dict[str, Any] = {"role": "assistant", "content": draw(content)}
        if form == "qwen3":
            if draw(st.booleans()):
                answer["reasoning_content"] = draw(content)
            if draw(st.booleans()):
                arguments = draw(
                    st.dictionaries(content, st.one_of(content, st.integers(), st.lists(content)), max_size=2)
                )
                call = {"type": "function", "function": {"name": draw(content), "arguments": arguments}}
                answer["tool_calls"] = draw(st.lists(st.just(call), min_size=1, max_size=2))
                if draw(st.booleans()):
                    answer["content"] = draw(st.sampled_from(["", None]))
                messages += [answer, {"role": "tool", "content": draw(content)}]
                answer = {"role": "assistant", "content": draw(content)}
        messages.append(answer)
    return messages
