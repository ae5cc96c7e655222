"""What is done with the documents of finished shards.

work.py       WORK -> sources, counts, documents, texts, rejects, the mix and the vocabulary's report, in Python
audit/        what shards hold, and whether they are what was sealed
annotate/     tables of other tools -> further columns
removal/      documents are overwritten, everything else stays in place
certificate/  a step of a run -> a file that proves its tokens without the shards
disclosure/   WORK, a mix or a run -> the public summary of the training data
export/       shards -> files for other trainers
"""
