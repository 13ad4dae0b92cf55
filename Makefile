# `make` alone prints the targets. Python 3.11 or newer, Linux x86-64.
PYTHON ?= python3
VENV := .venv
PY := $(VENV)/bin/python
PIP := $(PY) -m pip install --quiet --disable-pip-version-check
# The CPU build of torch; where that index can't be reached, the same version from your own index.
TORCH := torch==2.13.0
TORCH_INDEX := https://download.pytorch.org/whl/cpu
# What torch itself needs (its metadata). The lock leaves torch out, since a base image may bring its own.
TORCH_NEEDS := filelock fsspec jinja2 networkx setuptools>=77.0.3 sympy typing-extensions
LOCAL_BUCKET := diloco-local
# The real text of the main job: the Python standard library's own source.
STDLIB := $(PY) -c 'import sysconfig; print(sysconfig.get_path("stdlib"))'
CDK := PATH="$(CURDIR)/$(VENV)/bin:$$PATH" JSII_SILENCE_WARNING_END_OF_LIFE_NODE_VERSION=1 node_modules/.bin/cdk

.DEFAULT_GOAL := help
.PHONY: help setup run aws-job run-local local-job test test-container test-rules test-chaos test-smoke synth lint lock format clean check-platform

help:  ## print this help
	@grep -hE '^[a-z-]+:.*## ' $(MAKEFILE_LIST) | awk -F ':.*## ' '{printf "  make %-12s %s\n", $$1, $$2}'

setup: check-platform $(VENV)/.ready node_modules/.package-lock.json .venv-aws/.ready  ## install everything, below this folder

$(VENV)/.ready: requirements.txt container/requirements.txt
	$(PYTHON) -m venv $(VENV)
	$(PIP) --no-deps --retries 1 --extra-index-url $(TORCH_INDEX) $(TORCH)
	$(PIP) -r requirements.txt
	touch $@

node_modules/.package-lock.json: package-lock.json
	npm ci --no-audit --no-fund --loglevel=error
	touch $@

.venv-aws/.ready: $(VENV)/.ready local_aws/requirements.txt
	$(PY) -m local_aws setup
	touch $@

check-platform:
	@case "$$(uname -sm)" in "Linux x86_64") ;; *) \
	  echo "error: torchft has wheels for Linux x86-64 only, and this is $$(uname -sm)." \
	       "Work in a container (docker run --platform linux/amd64 -it -v \"\$$PWD:/src\" -w /src python:3.11 bash)" \
	       "or, on Windows, in WSL2." >&2; exit 1;; esac
	@$(PYTHON) -c 'import sys; sys.exit(sys.version_info < (3, 11))' || { \
	  echo "error: Python 3.11 or newer is needed; name one with make PYTHON=python3.11" >&2; exit 1; }
	@command -v npm >/dev/null || { \
	  echo "error: Node 20 or newer with npm is needed, for the CDK command line" >&2; exit 1; }

run: setup  ## deploy to an AWS embedded in this machine, train 4 replicas there; results in .local/runs
	@$(PY) -m local_aws -- $(MAKE) --no-print-directory aws-job

# What one does on AWS, too: bootstrap once, deploy, upload, start a run, look at what it leaves.
aws-job: NAME := stdlib-$(shell date -u +%Y%m%d-%H%M%S)
aws-job:
	$(CDK) bootstrap
	$(CDK) deploy --all --require-approval never --progress events
	$(PY) -m runs upload-text "$$($(STDLIB))" --name stdlib
	$(PY) -m runs start runs/examples/stdlib.json --name $(NAME) --follow
	$(PY) -m runs download-model $(NAME)

run-local: setup  ## the same run as plain processes, through an S3 endpoint and nothing else of AWS
	@$(PY) -m local_aws.s3_only --bucket $(LOCAL_BUCKET) -- $(MAKE) --no-print-directory local-job

local-job:
	$(PY) -m runs upload-text "$$($(STDLIB))" --name stdlib --store s3://$(LOCAL_BUCKET)
	$(PY) -m trainer.local runs/examples/stdlib.json --store s3://$(LOCAL_BUCKET)

lock: setup  ## pin what the image installs, each file by its hash: container/requirements.lock
	mkdir -p .local
	printf '%s\n' '$(TORCH_NEEDS)' | tr ' ' '\n' > .local/torch-needs.txt
	echo torch > .local/without-torch.txt
	$(VENV)/bin/uv pip compile --quiet --universal --generate-hashes --only-binary :all: --no-annotate \
	  --python-version 3.11 --custom-compile-command 'make lock' --excludes .local/without-torch.txt \
	  --output-file container/requirements.lock container/requirements.txt .local/torch-needs.txt

test: setup  ## run all tests
	$(PY) -m pytest

test-container: setup  ## build the image and run it as SageMaker does (root; buildah, podman)
	$(PY) -m pytest tests/container

bench: setup  ## run the benchmarks (ten minutes, an otherwise idle machine) and write benchmarks/results.md
	$(PY) -m benchmarks

test-rules: setup  ## break each rule of the rendezvous and see its test fail (two minutes)
	$(PY) -m tests.broken_rules

test-chaos: setup  ## kill, stop and starve replicas by schedule; all must end with the same weights (ten minutes)
	$(PY) -m tests.chaos

test-smoke: setup  ## two local replicas on a real bucket: AWS_SMOKE=1 make test-smoke BUCKET=name
	BUCKET=$(BUCKET) $(PY) -m pytest tests/e2e/test_smoke_bucket.py

# A venv of its own: 300 MB that only `make lint` needs.
.venv-lint/.ready: requirements-lint.txt
	$(PYTHON) -m venv .venv-lint
	.venv-lint/bin/python -m pip install --quiet --disable-pip-version-check -r requirements-lint.txt
	touch $@

synth: setup  ## synthesise the stacks into cdk.out, cdk-nag included
	$(CDK) synth --quiet

lint: setup .venv-lint/.ready  ## check style, types, Dockerfile, stacks (cdk-nag, cfn-lint, checkov), policies and the state machine
	$(VENV)/bin/ruff check .
	$(VENV)/bin/ruff format --check .
	$(VENV)/bin/mypy trainer runs local_aws infra app.py
	$(VENV)/bin/hadolint container/Dockerfile
	$(PY) -m infra.lint

format: setup  ## let ruff rewrite the code
	$(VENV)/bin/ruff check --fix .
	$(VENV)/bin/ruff format .

clean:  ## remove what setup and runs left behind
	rm -rf $(VENV) .venv-aws .venv-lint node_modules cdk.out .local .cache .mypy_cache .ruff_cache .pytest_cache .hypothesis
