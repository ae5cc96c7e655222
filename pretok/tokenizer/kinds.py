"""The kinds of tokens in a conversation. A recipe names those that are learned. Files use their numbers in KINDS."""

from __future__ import annotations

CHAT_KINDS = ("template", "system", "user", "tool result", "thinking", "tool call", "answer")
"""Kinds in conversations. `template`: what the chat template adds around messages, except the end marker of an answer,
which is `answer`."""
KINDS = (*CHAT_KINDS, "text")
"""All kinds, by number. `text` is outside conversations, and always learned."""
TEXT = len(CHAT_KINDS)
LEARNED = ("thinking", "tool call", "answer")
"""The assistant's tokens, in the order of KINDS: learned unless a recipe or a mix says otherwise."""
MARKERS = (
    "<|im_start|>",
    "<|im_end|>",
    "<think>",
    "</think>",
    "<tool_call>",
    "</tool_call>",
    "<tool_response>",
    "</tool_response>",
)
"""Tokens of our chat template; the first two are around every message."""
