# Everything here works on a fresh Debian-like machine as root; see README.md.
SHELL := /bin/bash
PYTHON ?= python3
VENV := .venv
BIN := $(VENV)/bin
PROTO := $(wildcard proto/*.proto)

.DEFAULT_GOAL := help
.PHONY: help demo test test-cluster bench lint format proto lock machine clean agent podvm-files manifests docs messages

help: ## Show the targets
	@grep -hE '^[a-z-]+:.*## ' $(MAKEFILE_LIST) | sed -E 's/:.*## /\t/' | expand -t 12

demo: $(VENV)/.installed ## A PVC becomes an encrypted volume that outlives its pod, in a real VM
	@$(BIN)/python -m tests.demo

# csi-sanity, Helm and the Go peers are built first, so that no test waits for a compiler. Two processes share
# the files.
test: lint ## Every check and test but the cluster's
	$(BIN)/python -m tests.tools.go_programs csi-sanity helm
	$(BIN)/python -m tests.peers ttrpc-go dockerfile-lint
	$(BIN)/python -m pytest -n 2 --dist loadfile --no-loadscope-reorder --ignore=tests/cluster tests

# Two processes, each with a control plane of its own: mostly they wait.
test-cluster: $(VENV)/.installed ## The tests against a real Kubernetes control plane, which is built first
	tests/lab/setup.sh tests/cluster/debian-packages.txt
	$(BIN)/python -m tests.tools.go_programs helm
	$(BIN)/python -m tests.cluster.programs
	$(BIN)/python -m tests.cluster.chart_images
	$(BIN)/python -m pytest -n 2 --dist loadfile --no-loadscope-reorder tests/cluster

bench: $(VENV)/.installed ## Print the measured figures, each with its baseline
	$(BIN)/python -m tests.bench

lint: $(VENV)/.installed ## ruff, mypy --strict, import rules between the packages
	$(BIN)/ruff check .
	$(BIN)/ruff format --check .
	$(BIN)/mypy
	$(BIN)/lint-imports

format: $(VENV)/.installed ## Rewrite the sources in the one format
	$(BIN)/ruff check --fix .
	$(BIN)/ruff format .

proto: $(VENV)/.installed ## Generate the Python code of proto/ again
	$(BIN)/python -m proto.generate

lock: $(VENV)/.installed ## Resolve the dependencies again and write locks/ (with hashes)
	$(BIN)/pip install -q uv
	set -e; for lock in "agent" "driver --extra driver" "build --group build" \
	  "aws --extra driver --extra aws" "azure --extra driver --extra azure" "libvirt --extra driver --extra libvirt" \
	  "dev --group dev --extra driver --extra cli --extra aws --extra azure --extra libvirt"; do \
	  set -- $$lock; name=$$1; shift; \
	  $(BIN)/uv pip compile -q --python-version 3.11 --generate-hashes --no-emit-index-url --no-emit-find-links \
	    --no-annotate --custom-compile-command "make lock" "$$@" pyproject.toml -o locks/$$name.txt; \
	done

# AGENT_PYTHON: an interpreter of the version that the image has makes the agent's start fastest there.
AGENT_PYTHON ?= $(BIN)/python
agent: $(VENV)/.installed ## Build the in-guest agent as one file, dist/confidential-csi-agent
	@$(BIN)/python -m deploy.podvm.build_agent --python $(AGENT_PYTHON)

podvm-files: agent ## Write what a PodVM image needs to dist/podvm-MODE: MODE=a, b or c [POLICY=volumes.toml]
	@test -n "$(MODE)" || { echo "say MODE=a, b or c: docs/podvm.md" >&2; exit 1; }
	@rm -rf dist/podvm-$(MODE)
	@$(BIN)/python -m deploy.podvm.overlay --mode $(MODE) --into dist/podvm-$(MODE) $(if $(POLICY),--policy $(POLICY))

manifests: $(VENV)/.installed ## Render the Helm chart into deploy/ and docs/security.md again
	@$(BIN)/python -m deploy.manifests --helm "$$($(BIN)/python -m tests.tools.go_programs helm)"

docs: $(VENV)/.installed ## Build the site of docs/ into dist/docs
	@NO_MKDOCS_2_WARNING=1 $(BIN)/mkdocs build --strict

messages: $(VENV)/.installed ## Write docs/messages.md again from the sources
	@$(BIN)/python -m deploy.messages

machine: ## Install the Debian packages and the guest kernel that the lab needs (quick when they are there)
	tests/lab/setup.sh

# The editable install also registers the commands and the provider entry points; the
# generated protobuf code lands beside its contracts.
$(VENV)/.installed: locks/dev.txt pyproject.toml setup.py proto/generate.py $(PROTO) | machine
	$(PYTHON) -c 'import sys; sys.exit(sys.version_info < (3, 11) and "Python 3.11 or newer is needed")'
	@echo "Installing the Python packages of locks/dev.txt into $(VENV); nothing more is printed for a minute or two"
	test -x $(BIN)/pip || $(PYTHON) -m venv $(VENV)
	$(BIN)/pip install -q --disable-pip-version-check --require-hashes -r locks/dev.txt
	$(BIN)/pip install -q --disable-pip-version-check --no-deps --no-build-isolation -e .
	$(BIN)/python -m proto.generate
	touch $@

clean: ## Remove everything that was built here
	rm -rf $(VENV) build dist *.egg-info proto/*_pb2*
