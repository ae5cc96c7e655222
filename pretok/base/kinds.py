"""What the tokens of a conversation are: names for the parts of which a recipe says which are learned.

Input: nothing. Output: KINDS, whose order is that of the numbers in files.
"""

from __future__ import annotations

CHAT_KINDS = ("template", "system", "user", "tool result", "thinking", "tool call", "answer")
"""Of a conversation. `template` is what the chat template puts around messages; the end marker of an answer is
answer."""
KINDS = (*CHAT_KINDS, "text")
"""Number -> kind. `text` is of no conversation, and always learned."""
TEXT = len(CHAT_KINDS)
LEARNED = ("thinking", "tool call", "answer")
"""What an assistant writes, in the order of KINDS: learned unless a recipe or a mix says otherwise."""
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
"""Tokens of the chat template that ships with the package; the first two are around every message."""
