# What a contributor types; CONTRIBUTING says more. `make test` takes some four minutes on two cores.
PYTHON ?= .venv/bin/python

install:
	python3 -m venv .venv && .venv/bin/pip install --quiet --constraint constraints.txt -e '.[train,test,docs]'
lint:
	$(PYTHON) -m ruff check . && $(PYTHON) -m ruff format --check . && $(PYTHON) -m mypy
test:
	$(PYTHON) -m pytest -n 2 --dist loadfile
coverage:
	$(PYTHON) -m pytest -n 2 --dist loadfile --cov --cov-report=term:skip-covered
docs:
	$(PYTHON) docs/site.py
bench:
	$(PYTHON) -m benchmarks all

.PHONY: install lint test coverage docs bench
