"""Commands: thin typer functions around jobs.

recipe.py     init, plan, run, submit
make.py       count, build-vocab, tokenize, annotate, remove, verify, mix, export
look.py       status, report, disclose, preflight
lookup.py     inspect, query, trace, certify
options.py    options and set-up of several commands; options made of settings and of docstrings
help.py       how `pretok --help` lists them; loads the one that is typed
reference.py  settings -> a page of all keys, and a recipe to begin with
"""
