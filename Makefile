# make study    the whole study on embedded servers -> results/$(RUN)/index.html
# make check    format, lint, types and the tests without a server: minutes
# make test     what CI runs; make test-all adds what is long and what measures figures
# make planted  planted faults against the tests that have to find them (FAULT=word: those named so)
# make remote-test  README's papermill line for every notebook as it stands, on servers behind a link: hours (NOTEBOOK=12)
# make fuzz     random inputs for two minutes (FUZZ_MINUTES=2)
# make lab      JupyterLab on the notebooks
# make serve    the embedded servers, until Ctrl-C
# make bench    the project's own speed figures, as ratios measured in one run
# make judge    comparisons and gates of two real servers with planted delays: nulls failed, delays found (about an hour)
# make site     every notebook and document as pages with a search, in build/site/index.html
# make sizes    MB that `pip install .` and each extra fill, each in an environment of its own (USES="load serve")
# make images-test  build and run the CPU image without a registry (root, buildah, debootstrap)
# The first of these that is there.
PYTHON   ?= $(firstword $(foreach name,python3.11 python3.12 python3.13,$(if $(shell command -v $(name) 2>/dev/null),$(name))) python3.11)
RUN      ?= quick
SIZES    ?= quick
# Where pip finds torch. The default index brings CUDA builds (gigabytes); for the small CPU build:
#   make install TORCH_INDEX=https://download.pytorch.org/whl/cpu
TORCH_INDEX ?=
# Weights of the study. random:0 needs no download and no timing depends on it; laion2b_s34b_b79k is the real one.
MODEL_PRETRAINED ?= random:0
export MODEL_PRETRAINED
# Compiled modules are kept: pip does not make them, and several hundred processes would each compile pandas anew.
unexport PYTHONDONTWRITEBYTECODE

BIN    := .venv/bin
TRITON := .venv-triton

.PHONY: help install tools study reference render check test test-all test-format test-unit test-package test-code test-figures planted remote-test test-study test-notebooks models fuzz lab serve bench judge pictures site sizes images-test lint types clean

help:
	@sed -n 's/^# make/make/p' Makefile

install: .venv/.installed $(TRITON)/.installed

# Python compiles a module when it is first imported; pip would compile all, one after the other.
.venv/.installed: pyproject.toml constraints.txt
	$(PYTHON) -m venv .venv
	$(BIN)/pip install -q --upgrade pip
	$(BIN)/pip install -q --no-compile -c constraints.txt torch $(if $(TORCH_INDEX),--index-url $(TORCH_INDEX))
	$(BIN)/pip install -q --no-compile -c constraints.txt -e '.[study,cpu,openvino,test]'
	touch $@

# Triton lives apart: nvidia-pytriton needs NumPy 1.x, and a server's dependencies are the server's business.
$(TRITON)/.installed: constraints-triton.txt
	@if [ "$$(uname -sm)" != "Linux x86_64" ]; then \
	  echo "The embedded Triton runs on Linux x86-64 only: use an endpoints file for a Triton elsewhere." >&2; \
	else $(PYTHON) -m venv --clear $(TRITON) && $(TRITON)/bin/pip install -q --upgrade pip \
	  && $(TRITON)/bin/pip install -q --no-compile -r constraints-triton.txt; fi
	@mkdir -p $(TRITON) && touch $@

study: install tools
	$(BIN)/photodup study run --run $(RUN) --sizes $(SIZES)

# The committed reference run, about two hours on a machine that does nothing else; the notebooks are then rendered from it.
reference: install tools
	$(BIN)/python -m benchmarks.reference
	$(BIN)/photodup study render
	$(BIN)/photodup report reference-cpu
	$(BIN)/python -m tools.readme

render: install
	$(BIN)/photodup study render

# What a change has to pass before it is shown to anybody: minutes.
check: test-format test-unit

# Two stages at a time, for the study often waits for a server or a link; every stage runs, whatever became of the others.
# No stage asserts a time, a rate or a memory figure, so a busy machine passes too.
test: install tools
	@$(MAKE) --keep-going -j2 test-format models test-code test-study test-notebooks

# Also what measures figures (nothing runs beside that), every notebook on real servers, the browser-heavy parts, the
# image, the policies of checkov and planted faults. Before each release.
test-all: install tools site
	@PHOTODUP_IMAGES=1 $(MAKE) --keep-going GATE= STUDY= test-format test-code test-notebooks test-study test-figures

GATE := -m "not long"
# Each file in one process, so that its servers and fixtures are made once (xdist 3.8 does not see groups of pytest 9.2).
PYTEST := $(BIN)/pytest -n 3 --dist loadfile --no-loadscope-reorder
# One thread a library, for three processes share two cores.
test-unit test-package test-code test-notebooks test-study: export OMP_NUM_THREADS := 1

# The exported model, which tests and study share: made once, before both ask for it.
models: install
	$(BIN)/photodup export >/dev/null

test-format: install
	$(BIN)/ruff check . && $(BIN)/ruff format --check . && $(BIN)/mypy && $(BIN)/python tools/shape.py

test-unit: install
	$(PYTEST) --durations 25 $(GATE) --ignore-glob='*/servers' $(addprefix tests/,core cli embedding serving bench photos study benchmarks)

# The tests that import from a package, such as photos/trash.
test-package: install
	$(PYTEST) $(GATE) $$(grep -rlE "photodup[.]$(subst /,[.],$(PACKAGE))\b" tests --include="test_*.py")

test-code: models
	$(PYTEST) --durations 25 $(GATE) tests

# Faults of one line in a copy of lib/, each run against the tests that have to find it.
planted: install
	$(BIN)/pytest -n 0 -v tests/planted -k "$(FAULT)"

remote-test: models
	PHOTODUP_AS_IT_STANDS=1 $(BIN)/pytest -n 0 -v tests/study/servers/test_host_by_papermill.py -k "readme_line and not rests and $(or $(NOTEBOOK),readme)"

test-figures: install
	$(BIN)/pytest --figures --durations 25 tests

# Three notebooks that between them start every server, link and kind of load (a test runs 06 by its papermill line); STUDY= runs all.
STUDY := --only 03 --only 07 --only 10
test-study: models
	$(BIN)/photodup study run --run ci --sizes smoke --again $(STUDY)

# The committed notebooks against the committed records.
test-notebooks: install
	$(PYTEST) --nbval-lax --nbval-current-env --nbval-cell-timeout 600 \
	  --nbval-sanitize-with tests/repository/nbval_sanitize.cfg notebooks/[0-9]*.ipynb

# Random inputs to the service, to trash and catalogue and to the decoders, on loopback alone; prints counts.
FUZZ_MINUTES ?= 2
fuzz: install
	@$(BIN)/python -c "import schemathesis" 2>/dev/null || $(BIN)/pip install -q -c constraints.txt -e '.[fuzz]'
	PYTHONPATH=tests FUZZ_MINUTES=$(FUZZ_MINUTES) $(BIN)/python -m fuzz

# kubectl, helm and checkov for the manifests; notebook 09 names what it lacks where they cannot be had.
tools:
	@k8s/get-tools.sh || echo "Without these tools parts of notebook 09 are not measured and the manifest checks are skipped." >&2

# LAB_OPTIONS goes to JupyterLab: make lab LAB_OPTIONS="--no-browser --port=9999"
lab: install
	$(BIN)/jupyter lab $(LAB_OPTIONS) notebooks/00_start_here.ipynb

serve: install
	$(BIN)/photodup serve --embedded

bench: install
	$(BIN)/python -m benchmarks

# The picture of the review page in README and docs (Chromium).
pictures: install
	PHOTODUP_PICTURES=docs/images $(BIN)/pytest -n 0 tests/photos/servers/test_review_browser.py -k picture

site: install
	$(BIN)/pip install -q -c constraints.txt -e '.[site]'
	$(BIN)/sphinx-build -q -W --keep-going -c docs/site -b html . build/site

judge: install
	$(BIN)/python -m benchmarks.statistics_live

USES ?= base load serve photos study
sizes:
	@for use in $(USES); do rm -rf build/sizes && $(PYTHON) -m venv build/sizes && \
	  build/sizes/bin/pip install -q -c constraints.txt ".$$(test $$use = base || echo "[$$use]")" && \
	  echo "$$use $$(du -sm --exclude='pip*' --exclude='setuptools*' --exclude=pkg_resources build/sizes/lib/python*/site-packages | cut -f1) MB"; \
	done; rm -rf build/sizes

lint: install
	$(BIN)/ruff check --fix . && $(BIN)/ruff format . && $(BIN)/python tools/shape.py

# Which modules are checked is said in pyproject.toml.
types: install
	$(BIN)/mypy

# Builds in a folder of its own, which is removed; PHOTODUP_IMAGES_DIR keeps it for the next time.
images-test: install
	PHOTODUP_IMAGES=1 TORCH_INDEX="$(TORCH_INDEX)" $(BIN)/pytest -v -rs -s tests/repository/test_docker.py -m long

clean:
	rm -rf build results/quick
