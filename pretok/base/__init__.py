"""The foundations of all stages. They use numpy, msgspec, xxhash; rich, ray, pyarrow and duckdb in a module each.

errors.py           kinds of errors and their exit codes
units.py            numbers as people write them: 1.2T, 64MiB
version.py          the version of the program
visible.py          texts from outside without control characters
html.py             templates of HTML pages
tokens.py           types of token ids
texts.py            Arrow strings as arrays of bytes and offsets
records.py          JSON -> typed records, strictly, and back
storage.py          atomic writes, canonical JSON, fingerprints, checksums
tree.py             hash trees: files of which a part can be checked, proven or changed
reads.py            many small reads, in threads if they wait
lock.py             one job at a time in an output folder
stop.py             signals and the end of the Slurm job -> a reason to stop
console.py          what jobs report to, and the progress of a step
terminal.py         reports on a terminal or in a pipe: progress, notices, tables
joblog.py           the log of a job: lines of JSON
failures.py         what the exception of a task means: try again, refuse, or a bug
execute.py          one function over many items: in this process, in processes of this node, on Ray
pool.py             processes of this node, forked from one that has loaded everything
tasks.py            a step of a job: runs its tasks, logs each, raises their failures
partition_tasks.py  one task per partition: shared by counting and tokenizing
begin.py            signals before a command begins, and after it
startup.py          what our processes do not load
children.py         the environment of our child processes
memory.py           memory used and still available
sql.py              DuckDB in a share of memory and disk
"""
