# make study    the whole study on embedded servers -> results/$(RUN)/index.html
# make test     what CI runs
# make lab      JupyterLab on the notebooks
# make serve    the embedded servers, until Ctrl-C
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

.PHONY: help install tools study reference render test test-notebooks test-a-to-p test-q-to-z lab serve bench images-test lint clean

help:
	@sed -n 's/^# make/make/p' Makefile

install: .venv/.installed $(TRITON)/.installed

.venv/.installed: pyproject.toml constraints.txt
	$(PYTHON) -m venv .venv
	$(BIN)/pip install -q --upgrade pip
	$(BIN)/pip install -q -c constraints.txt torch $(if $(TORCH_INDEX),--index-url $(TORCH_INDEX))
	$(BIN)/pip install -q -c constraints.txt -e '.[embed,service,cpu,app,study,test]'
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

# What needs the machine for itself first: all notebooks at small sizes on real servers, and the tests that
# assert on times. Then three things at once, each printed when it is done; one that fails fails the whole.
test: install tools
	$(BIN)/ruff check . && $(BIN)/ruff format --check .
	$(BIN)/photodup study run --run ci --sizes quick --again
	$(BIN)/pytest -m quiet
	$(MAKE) -j3 $(if $(filter output-sync,$(.FEATURES)),--output-sync) test-notebooks test-a-to-p test-q-to-z

# The committed notebooks against the committed records.
test-notebooks: install
	$(BIN)/pytest --nbval-lax --nbval-current-env --nbval-cell-timeout 120 \
	  --nbval-sanitize-with tests/nbval_sanitize.cfg notebooks/[0-9]*.ipynb

# The tests that assert on no time, by the first letter of what they are about; two halves of about equal length.
test-a-to-p: install
	$(BIN)/pytest -m "not quiet" tests/test_[a-p]*.py

test-q-to-z: install
	$(BIN)/pytest -m "not quiet" tests/test_[!a-p]*.py

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

# Builds in a folder of its own, which is removed; PHOTODUP_IMAGES_DIR keeps it for the next time.
images-test: install
	PHOTODUP_IMAGES=1 TORCH_INDEX="$(TORCH_INDEX)" $(BIN)/pytest -v -rs -s tests/repository/test_docker.py -k cpu_image

clean:
	rm -rf build results/quick
