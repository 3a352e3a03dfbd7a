# Everything here works on a fresh Debian-like machine as root; see README.md.
SHELL := /bin/bash
PYTHON ?= python3
VENV := .venv
BIN := $(CURDIR)/$(VENV)/bin

.DEFAULT_GOAL := help

help: ## Show the targets
	@grep -hE '^[a-z-]+:.*## ' $(MAKEFILE_LIST) | sed -E 's/:.*## /\t/' | expand -t 16

lock: $(VENV)/.installed ## Resolve the dependencies again and write locks/ (with hashes)
	$(BIN)/pip install -q uv
	for lock in "agent" "driver --extra driver" "dev --group dev --extra driver"; do \
	  set -- $$lock; name=$$1; shift; \
	  $(BIN)/uv pip compile -q --python-version 3.11 --generate-hashes --no-emit-index-url --no-emit-find-links \
	    --no-annotate --custom-compile-command "make lock" "$$@" pyproject.toml -o locks/$$name.txt; \
	done

.PHONY: help lock
