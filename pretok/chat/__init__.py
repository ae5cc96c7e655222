"""Conversations, and fields put together -> documents of which every byte has a kind.

spans.py       the kinds, and the spans of a batch in bytes
text.py        text inside of a template that knows which bytes are content
template.py    a chat template in Jinja, run in a sandbox over such text
turns.py       what a template gave -> spans: where an answer begins and ends
records.py     JSON of a record -> a checked conversation
documents.py   partitions -> batches of documents, of conversations or of plain text
render.py      batches of JSON -> batches of documents with spans
resolve.py     a recipe and a tokenizer -> the template, its markers, and what is refused before anything is written
encode.py      documents with spans -> token ids, and the kind of each token
"""
