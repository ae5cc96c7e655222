"""Shards -> what other trainers read.

Input: a shards folder, optionally a mix. Output: a few lines of configuration or Python where a trainer can read the
shards as they are; a folder of files in its own format where it cannot, or wants larger ones.

In this folder:

    text.py     a blend for Megatron-LM, snippets over `pretok.stream`
    formats.py  the bytes around the tokens in each format
    job.py      the job: shards -> files of a format, checked and listed in export.json
"""
