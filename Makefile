# make study    the whole study on embedded servers -> results/$(RUN)/index.html
# make test     what CI runs; make test-all adds its long parts
# make fuzz     random inputs for two minutes (FUZZ_MINUTES=2)
# make lab      JupyterLab on the notebooks
# make serve    the embedded servers, until Ctrl-C
# make rehearsal  the notebooks against a "rented machine": a namespace of this one behind a link (Linux, root)
# make bench    the project's own speed figures, as ratios measured in one run
# make images-test  build and run the CPU image without a registry (root, buildah, debootstrap)
PYTHON   ?= python3.11
RUN      ?= quick
SIZES    ?= quick
# Where pip finds torch. The default index brings CUDA builds (gigabytes); for the small CPU build:
#   make install TORCH_INDEX=https://download.pytorch.org/whl/cpu
TORCH_INDEX ?=
# Weights of the study. random:0 needs no download and no timing depends on it; laion2b_s34b_b79k is the real one.
MODEL_PRETRAINED ?= random:0
export MODEL_PRETRAINED

BIN    := .venv/bin
TRITON := .venv-triton

.PHONY: help install tools study rehearsal reference render test test-all test-format test-timing test-study test-notebooks test-rooms fuzz lab serve bench images-test lint types clean

help:
	@sed -n 's/^# make/make/p' Makefile

install: .venv/.installed $(TRITON)/.installed

.venv/.installed: pyproject.toml constraints.txt
	$(PYTHON) -m venv .venv
	$(BIN)/pip install -q --upgrade pip
	$(BIN)/pip install -q -c constraints.txt torch $(if $(TORCH_INDEX),--index-url $(TORCH_INDEX))
	$(BIN)/pip install -q -c constraints.txt -e '.[embed,service,cpu,openvino,app,study,test]'
	touch $@

# Triton lives apart: nvidia-pytriton needs NumPy 1.x, and a server's dependencies are the server's business.
$(TRITON)/.installed: constraints-triton.txt
	@if [ "$$(uname -sm)" != "Linux x86_64" ]; then \
	  echo "The embedded Triton runs on Linux x86-64 only: use an endpoints file for a Triton elsewhere." >&2; \
	else $(PYTHON) -m venv $(TRITON) && $(TRITON)/bin/pip install -q --upgrade pip \
	  && $(TRITON)/bin/pip install -q -r constraints-triton.txt; fi
	@mkdir -p $(TRITON) && touch $@

study: install tools
	$(BIN)/photodup study run --run $(RUN) --sizes $(SIZES)

# REHEARSAL goes to the command: make rehearsal REHEARSAL="--without control --only 03"
rehearsal: install tools
	rm -rf results/rehearsal results/rehearsal-host
	$(BIN)/photodup study rehearse $(REHEARSAL)

# The committed reference run: measured again in one go (the old records go first, so that all of it comes
# from one machine and one commit), then the notebooks are rendered from its records.
reference: install tools
	rm -rf results/reference-cpu
	$(BIN)/photodup study run --run reference-cpu --sizes full
	$(BIN)/photodup study render
	$(BIN)/photodup report reference-cpu
	$(BIN)/photodup study readme

render: install
	$(BIN)/photodup study render

# The tests that assert on times have the machine for themselves. Then all notebooks run at small sizes on real
# servers, and beside them the other tests, in three processes, for many of them wait. Every part runs, whatever
# became of the others.
test: install tools
	@bad=0; $(MAKE) --keep-going test-format test-timing || bad=1; \
	$(MAKE) --keep-going -j2 $(SYNC) test-study test-rooms test-notebooks || bad=1; exit $$bad

# Also the browser-heavy parts, the image, the policies of checkov, and 1,000 kills where `test` has 200.
test-all: install tools
	@bad=0; $(MAKE) --keep-going test-format test-timing || bad=1; export PHOTODUP_KILLS=1000 PHOTODUP_IMAGES=1; \
	$(MAKE) --keep-going -j2 $(SYNC) test-study test-rooms test-notebooks GATE= || bad=1; exit $$bad

GATE := -m "not long"
SYNC := $(if $(filter output-sync,$(.FEATURES)),--output-sync)

test-format: install
	$(BIN)/ruff check . && $(BIN)/ruff format --check . && $(BIN)/mypy

test-timing: install
	$(BIN)/pytest -rR tests/timing

test-study: install
	$(BIN)/photodup study run --run ci --sizes smoke --again

# The committed notebooks against the committed records.
test-notebooks: install
	$(BIN)/pytest --nbval-lax --nbval-current-env --nbval-cell-timeout 600 \
	  --nbval-sanitize-with tests/repository/nbval_sanitize.cfg notebooks/[0-9]*.ipynb

# Each file in one process, so that its servers and fixtures are made once (xdist 3.8 does not see groups of pytest 9.2).
test-rooms: install
	$(BIN)/pytest -n 3 --dist loadfile --durations 40 $(GATE) tests/unit tests/servers tests/repository

# Random inputs to the service, to trash and catalogue and to the decoders, on loopback alone; prints counts.
FUZZ_MINUTES ?= 2
fuzz: install
	@$(BIN)/python -c "import schemathesis" 2>/dev/null || $(BIN)/pip install -q -c constraints.txt -e '.[fuzz]'
	PYTHONPATH=tests FUZZ_MINUTES=$(FUZZ_MINUTES) $(BIN)/python -m fuzz

# kubectl, helm and checkov for the manifests; notebook 09 is skipped where they cannot be had.
tools:
	@k8s/get-tools.sh || echo "Without these tools notebook 09 and the manifest checks are skipped." >&2

# LAB_OPTIONS goes to JupyterLab: make lab LAB_OPTIONS="--no-browser --port=9999"
lab: install
	$(BIN)/jupyter lab $(LAB_OPTIONS) notebooks/00_start_here.ipynb

serve: install
	$(BIN)/photodup serve --embedded

bench: install
	$(BIN)/photodup bench

lint: install
	$(BIN)/ruff check --fix . && $(BIN)/ruff format .

# Which modules are checked is said in pyproject.toml.
types: install
	$(BIN)/mypy

# Builds in a folder of its own, which is removed; PHOTODUP_IMAGES_DIR keeps it for the next time.
images-test: install
	PHOTODUP_IMAGES=1 TORCH_INDEX="$(TORCH_INDEX)" $(BIN)/pytest -v -rs -s tests/repository/test_docker.py -k cpu_image

clean:
	rm -rf build results/quick
