# Everything a stranger needs: `make demo` and `make test` set themselves up.
PYTHON ?= python3
VENV := .venv
BIN := $(VENV)/bin
BUILD := build
KERNELS := $(wildcard src/ohmformer/native/src/*)
NEEDED := requirements.lock pyproject.toml CMakeLists.txt .ci/build_backend.py $(KERNELS)
STAMP := $(VENV)/.installed-$(shell cat $(NEEDED) | cksum | cut -d' ' -f1)

.PHONY: demo test lint types unit test-slow test-devices test-native test-aarch64 wheel package docs bench hooks clean

demo: $(STAMP)
	$(BIN)/ohmformer verify --out runs/verify.json
	$(BIN)/ohmformer demo --out runs/demo
	$(BIN)/ohmformer reproduce table2 --data drugs --encoding none --encoding lappe --encoding lt-diagonal --seeds 1 --set epochs=12 --runs runs --out runs/demo
	$(BIN)/ohmformer report --out runs/report.html

test: lint types unit

lint: $(STAMP)
	$(BIN)/ruff format --check .
	$(BIN)/ruff check .
	$(BIN)/lint-imports

types: $(STAMP)
	$(BIN)/pyright

unit: $(STAMP)
	$(BIN)/pytest -m "not slow" -n 2 --dist worksteal

test-slow: $(STAMP)
	$(BIN)/pytest -m slow

# the whole suite on a device that this machine only pretends to have: an operation that mixes devices is an error
test-devices: $(STAMP)
	OHMFORMER_TEST_DEVICE=elsewhere $(BIN)/pytest -m "not slow" -n 2 --dist worksteal tests

# the same tests with torch alone, with every instruction set that this processor has, and with the kernels that clang makes;
# without what computes nothing by a kernel (pages in a browser, the texts of the documentation's site) and without
# checking types at run time, which takes half of the time and is done by `make test`
NATIVE_TESTS := --jaxtyping-packages= tests --ignore-glob "tests/apps/*/test_browser*.py" --ignore tests/docs/test_site.py
test-native: $(STAMP)
	for name in off $$($(BIN)/python -c "from ohmformer import native; print(*native.available())"); do \
	  echo "OHMFORMER_NATIVE=$$name"; \
	  OHMFORMER_NATIVE=$$name $(BIN)/pytest -m "not slow" -n 2 --dist worksteal $(NATIVE_TESTS) || exit 1; done
	rm -rf $(BUILD)/clang
	CC=clang $(BIN)/python -m pip install --quiet --no-deps --no-build-isolation -C install.strip=false --target $(BUILD)/clang .
	grep -qa "clang version" $(BUILD)/clang/ohmformer/native/lib/ohmformer_*.so
	PYTHONPATH=$(BUILD)/clang $(BIN)/pytest -m "not slow" -n 2 --dist worksteal $(NATIVE_TESTS)

# every kernel repeats recorded calls, compiled for this processor and, under qemu, for aarch64
CROSS_CC ?= aarch64-linux-gnu-gcc
QEMU ?= qemu-aarch64
DRIVER := -std=c11 -D_POSIX_C_SOURCE=200809L -O3 -fno-math-errno -ffp-contract=fast -Wall -Wextra -Wno-psabi -pthread \
  -I$(BUILD)/aarch64 tests/native/driver.c $(filter %.c,$(KERNELS)) -lm
test-aarch64: $(STAMP)
	mkdir -p $(BUILD)/aarch64
	$(BIN)/python tests/native/record.py $(BUILD)/aarch64
	$(CC) -o $(BUILD)/aarch64/driver-here $(DRIVER)
	$(CROSS_CC) -static -o $(BUILD)/aarch64/driver $(DRIVER)
	$(BUILD)/aarch64/driver-here $(BUILD)/aarch64/calls 2
	$(QEMU) $(BUILD)/aarch64/driver $(BUILD)/aarch64/calls 2

# the wheel, with kernels and as it is built where there is no compiler, each in an environment of its own without a compiler
wheel: $(STAMP)
	rm -rf $(BUILD)/wheel
	mkdir -p $(BUILD)/wheel/nothing
	$(BIN)/python -m pip wheel --quiet --no-deps --no-build-isolation -w $(BUILD)/wheel/kernels .
	PATH=$(CURDIR)/$(BIN) $(BIN)/python -m pip wheel --quiet --no-deps --no-build-isolation -w $(BUILD)/wheel/none .
	for kind in kernels none; do sh .ci/smoke $(BIN)/python $(BUILD)/wheel $$kind || exit 1; done

# wheel and sdist as they would be uploaded, built and checked in an environment of their own
package:
	rm -rf $(BUILD)/package
	$(PYTHON) -m venv $(BUILD)/package/env
	$(BUILD)/package/env/bin/python -m pip install --quiet build twine check-wheel-contents
	$(BUILD)/package/env/bin/python -m build --outdir $(BUILD)/package/dist .
	$(BUILD)/package/env/bin/twine check --strict $(BUILD)/package/dist/*
	$(BUILD)/package/env/bin/check-wheel-contents $(BUILD)/package/dist/*.whl

docs: $(STAMP)
	NO_MKDOCS_2_WARNING=1 $(BIN)/mkdocs build --strict

bench: $(STAMP)
	for name in forward solve scale edge_resistances real_graphs certificates any_graph networkx_backend mixed_batch busy_neighbour learn learn_depths learn_random explorer; do $(BIN)/python benchmarks/$$name.py || exit 1; done

hooks: $(STAMP)
	$(BIN)/pre-commit install

# torch first and pinned: any other order lets a dependency pull another build of it; the lock file has every dependency
$(STAMP): $(NEEDED)
	test -x $(BIN)/python || $(PYTHON) -m venv $(VENV)
	$(BIN)/python -m pip install --quiet --no-compile torch==2.13.0
	$(BIN)/python -m pip install --quiet --no-compile --no-deps -r requirements.lock
	$(BIN)/python -m pip install --quiet --no-deps --no-build-isolation -e .
	rm -f $(VENV)/.installed-*
	touch $@

clean:
	rm -rf $(VENV) $(BUILD) src/ohmformer/native/lib runs
