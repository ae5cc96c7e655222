"""Commands: thin typer functions around jobs.

recipe.py                    init, plan, run, submit
make.py                      count, build-vocab, tokenize, annotate, verify, mix, export
look.py                      watch, status, report, disclose, preflight
documents.py                 inspect, query, trace
options.py                   options and set-up that several commands share, options made of settings
help.py                      how `pretok --help` lists them; loads the one that is typed
steps.py                     the steps of a recipe, each with its progress
reference.py                 settings -> a page of all keys, and a recipe to begin with
"""
