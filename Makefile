# Everything a stranger needs: `make demo` and `make test` set themselves up.
PYTHON ?= python3
VENV := .venv
BIN := $(VENV)/bin
STAMP := $(VENV)/.installed-$(shell cat requirements.lock pyproject.toml | cksum | cut -d' ' -f1)

.PHONY: demo test lint types unit test-slow docs bench hooks clean

demo: $(STAMP)
	$(BIN)/ohmformer verify --out runs/verify.json
	$(BIN)/ohmformer demo --out runs/demo
	$(BIN)/ohmformer reproduce table2 --data drugs --encoding none --encoding lappe --encoding lt-diagonal --seeds 1 --set epochs=12 --runs runs --out runs/demo
	$(BIN)/ohmformer report --out runs/report.html

test: lint types unit

lint: $(STAMP)
	$(BIN)/ruff format --check .
	$(BIN)/ruff check .

types: $(STAMP)
	$(BIN)/pyright

unit: $(STAMP)
	$(BIN)/pytest -m "not slow" -n 2 --dist worksteal

test-slow: $(STAMP)
	$(BIN)/pytest -m slow

docs: $(STAMP)
	NO_MKDOCS_2_WARNING=1 $(BIN)/mkdocs build --strict

bench: $(STAMP)
	for name in forward solve scale edge_resistances any_graph networkx_backend learn learn_depths learn_random explorer; do $(BIN)/python benchmarks/$$name.py || exit 1; done

hooks: $(STAMP)
	$(BIN)/pre-commit install

# torch first and pinned: any other order lets a dependency pull another build of it
$(STAMP): requirements.lock pyproject.toml
	test -x $(BIN)/python || $(PYTHON) -m venv $(VENV)
	$(BIN)/python -m pip install --quiet torch==2.13.0
	$(BIN)/python -m pip install --quiet -r requirements.lock
	$(BIN)/python -m pip install --quiet --no-deps --no-build-isolation -e .
	rm -f $(VENV)/.installed-*
	touch $@

clean:
	rm -rf $(VENV) runs
