# `make` alone prints the targets. Python 3.11 or newer, Linux x86-64.
PYTHON ?= python3
VENV := .venv
PY := $(VENV)/bin/python
# The CPU build of torch; where that index can't be reached, the same version from your own index.
TORCH := torch==2.13.0
TORCH_INDEX := https://download.pytorch.org/whl/cpu
LOCAL_BUCKET := diloco-local

.DEFAULT_GOAL := help
.PHONY: help setup run main-job test test-smoke lint format clean check-platform

help:  ## print this help
	@grep -hE '^[a-z-]+:.*## ' $(MAKEFILE_LIST) | awk -F ':.*## ' '{printf "  make %-12s %s\n", $$1, $$2}'

setup: check-platform $(VENV)/.ready  ## make .venv with everything in it

$(VENV)/.ready: requirements.txt container/requirements.txt
	$(PYTHON) -m venv $(VENV)
	$(PY) -m pip install --quiet --disable-pip-version-check --no-deps --retries 1 --extra-index-url $(TORCH_INDEX) $(TORCH)
	$(PY) -m pip install --quiet --disable-pip-version-check -r requirements.txt
	touch $@

check-platform:
	@case "$$(uname -sm)" in "Linux x86_64") ;; *) \
	  echo "error: torchft has wheels for Linux x86-64 only, and this is $$(uname -sm)." \
	       "Work in a container (docker run --platform linux/amd64 -it -v \"\$$PWD:/src\" -w /src python:3.11 bash)" \
	       "or, on Windows, in WSL2." >&2; exit 1;; esac
	@$(PYTHON) -c 'import sys; sys.exit(sys.version_info < (3, 11))' || { \
	  echo "error: Python 3.11 or newer is needed; name one with make PYTHON=python3.11" >&2; exit 1; }

run: setup  ## train 4 replicas on the standard library's source, through an S3 endpoint; results in .local/runs
	$(PY) -m local_aws.s3_only --bucket $(LOCAL_BUCKET) -- $(MAKE) --no-print-directory main-job

main-job:
	@$(PY) -m runs upload-text "$$($(PY) -c 'import sysconfig; print(sysconfig.get_path("stdlib"))')" \
	  --store s3://$(LOCAL_BUCKET) --name stdlib
	@$(PY) -m trainer.local runs/examples/stdlib.json --store s3://$(LOCAL_BUCKET)

test: setup  ## run all tests
	$(PY) -m pytest

test-smoke: setup  ## two local replicas on a real bucket: AWS_SMOKE=1 make test-smoke BUCKET=name
	BUCKET=$(BUCKET) $(PY) -m pytest tests/e2e/test_smoke_bucket.py

lint: setup  ## check style and types
	$(VENV)/bin/ruff check .
	$(VENV)/bin/ruff format --check .
	$(VENV)/bin/mypy trainer runs local_aws

format: setup  ## let ruff rewrite the code
	$(VENV)/bin/ruff check --fix .
	$(VENV)/bin/ruff format .

clean:  ## remove what setup and runs left behind
	rm -rf $(VENV) .local .mypy_cache .ruff_cache .pytest_cache .hypothesis
