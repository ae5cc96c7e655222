"""Commands: one module each, a thin typer function around a job.

options.py                   options and set-up that several commands share
help.py                      the order in which `pretok --help` lists them
steps.py                     the steps of a recipe, each with its progress
plan_train.py                the [train] part of plan
reference.py                 settings -> a page of all keys, and a commented recipe
dry_run.py                   what a command would do, and the commands to type
plan.py  run.py  build_vocab.py  count.py  tokenize.py  annotate.py  verify.py  stats.py  init.py  inspect.py  query.py
trace.py  disclose.py  mix.py  export.py  report.py  submit.py  preflight.py
status.py  watch.py
"""
