"""Shards -> what other trainers read.

Input: a shards folder, optionally a mix. Output: a few lines of configuration where a trainer can read the shards as
they are; a folder of files in its own format where it cannot.

In this folder:

    text.py        a blend for Megatron-LM, and what another trainer does otherwise
    export_job.py  the job: shards -> files of OLMo-core, checked and listed in export.json
"""

EXPORT_FILE = "export.json"
"""Says what an export was made of; written last."""
