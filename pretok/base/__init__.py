"""The ground floor: what every stage stands on. numpy, msgspec, xxhash; rich, ray and duckdb in a module each.

errors.py    kinds of errors and their exit codes
units.py     numbers as people write them: 1.2T, 64MiB
version.py   the version of the program
visible.py   texts from outside without control characters
html.py      what notebooks show: rows -> an escaped table
tokens.py    token ids: in which type they are kept
records.py   JSON -> typed records, strictly, and back
storage.py   atomic writes, canonical JSON, fingerprints, checksums
tree.py      hash trees: files of which a part can be checked, proven or changed
reads.py     many small reads, in threads where they wait
lock.py      one job at a time in an output folder
stop.py      signals and the end of the Slurm job -> a reason to stop
failures.py  what an exception of a task means: again, refuse, or a bug
console.py   what a job tells a person, to a terminal or to nobody
joblog.py    what it told, and more, as lines of JSON for the morning after
gauge.py     how far a step is, as a line of a log or a bar
history.py   logs and the records of a run, read: what happened
terminal.py  a terminal or a pipe: progress, notices and tables
execute.py   one function over many items, on Ray or in this process
tasks.py     a step of a job: its tasks run, told of and added up
memory.py    what this process has and may still take of it
children.py  the environment of a process of ours that another one starts
sql.py       DuckDB in a worker's share of memory and disk
kinds.py     the kinds of text in a conversation
startup.py   what a process of ours does not load
pool.py      workers of this node: processes forked from one that has loaded everything
vocab_map.py from an old vocabulary to one made of it: which rows of a model go where
"""
