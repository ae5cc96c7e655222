"""Conversations, and templates of fields -> documents of which every byte has a kind.

spans.py           the kinds, and the spans of a batch, in bytes
text.py            strings inside a template, which know what is content
limits.py          processor time and memory of a template
template.py        a chat template in Jinja, run in a sandbox over such strings
turns.py           the output of a template -> parts: where an answer begins and ends
messages.py        the JSON of a record -> a checked conversation
read_documents.py  partitions -> batches of documents, from conversations or plain text
render.py          batches of JSON -> batches of documents with spans
resolve.py         a recipe and a tokenizer -> the template and its markers; refuses what cannot work
encode.py          documents with spans -> token ids, and the kind of each token
"""
