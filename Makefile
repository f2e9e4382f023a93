# `make help` lists the targets. On a fresh machine start with `make demo` or `make test`:
# both do all the set-up themselves.

.DEFAULT_GOAL := build
.DELETE_ON_ERROR:
MAKEFLAGS += --no-print-directory --no-builtin-rules

PYTHON := .venv/bin/python
IN_VENV := PATH="$(CURDIR)/.venv/bin:$$PATH"
PYTEST_ARGS ?=
PREFIX ?= /usr/local

# The compiler: clang-19, else the newest there is. Recursive (=), because set-up may install it in this very run.
CLANG = $(or $(shell command -v clang-19),$(lastword $(shell ls -v /usr/bin/clang-[0-9]* 2>/dev/null)),$(shell command -v clang))
# asm/types.h lives in the directory of the machine's architecture, which clang leaves out for bpf.
MULTIARCH = $(shell gcc -print-multiarch 2>/dev/null)
BPF_CFLAGS = --target=bpf -mcpu=v3 -O2 -g -std=gnu11 -Wall -Wextra -Werror $(if $(MULTIARCH),-isystem /usr/include/$(MULTIARCH))

OBJECTS := $(patsubst bpf/%.bpf.c,build/%.bpf.o,$(wildcard bpf/*.bpf.c))
# Python files without a suffix, which ruff does not find by itself.
PYTHON_SCRIPTS = $(shell grep -lsE '^\#!.*python' scripts/*)

.PHONY: help
help: ## list the targets
	@sed -nE 's/^([a-z-]+):.*## (.*)/  \1\t\2/p' Makefile | expand -t 12

.PHONY: build
build: $(OBJECTS) build/counted.bpf.o mrcd/mrc.bpf.o ## compile the eBPF objects (default)

build/%.bpf.o: bpf/%.bpf.c Makefile
	@mkdir -p build
	@test -n "$(CLANG)" || { echo "make: no clang found"; echo "  hint: run 'make set-up'"; exit 1; } >&2
	$(CLANG) $(BPF_CFLAGS) -MMD -MP -MF build/$*.bpf.d -c $< -o $@

# The same programs, counting their calls: for `scripts/bench cost`.
COUNTED := scripts/labkit/bench/counted.h
build/counted.bpf.o: bpf/mrc.bpf.c $(COUNTED) Makefile
	@mkdir -p build
	$(CLANG) $(BPF_CFLAGS) -include $(COUNTED) -MMD -MP -MF build/counted.bpf.d -c $< -o $@

-include $(wildcard build/*.bpf.d)

# The object's place beside the modules serves both a checkout (editable install) and `pip install .`.
mrcd/mrc.bpf.o: build/mrc.bpf.o
	@install -m 644 $< $@

.PHONY: set-up
set-up: ## install what is missing on this machine (apt, .venv); nothing on a second run
	@scripts/set-up

.PHONY: demo
demo: set-up ## a cluster on this machine: one TCP flow over every path, faults, a picture of it
	@$(MAKE) build
	@$(IN_VENV) scripts/demo

.PHONY: test
test: set-up ## all tests; PYTEST_ARGS="tests/unit -k name" for some
	@$(MAKE) build
	@$(PYTHON) -m pytest $(PYTEST_ARGS)

.PHONY: lint
lint: set-up ## ruff (rules and format) and mypy (strict)
	@$(PYTHON) -m ruff check . $(PYTHON_SCRIPTS)
	@$(PYTHON) -m ruff format --check . $(PYTHON_SCRIPTS)
	@$(PYTHON) -m mypy

.PHONY: bench
bench: set-up ## measure mrcd beside the kernel's own SRv6 in the same lab
	@$(MAKE) build
	@$(IN_VENV) scripts/bench

.PHONY: bench-failover
bench-failover: set-up ## break paths by the hundred under a flow: how fast each is left (half an hour; build/failover.svg)
	@$(MAKE) build
	@$(IN_VENV) scripts/bench failover

.PHONY: bench-lifecycle
bench-lifecycle: set-up ## restarts, kills, upgrades and reloads under a UDP flow: nothing lost, nothing reordered (2 minutes)
	@$(MAKE) build
	@$(IN_VENV) scripts/bench lifecycle

.PHONY: bench-calm
bench-calm: set-up ## a flow on busy, stalled and evenly lossy machines: no path may be left (20 minutes)
	@$(MAKE) build
	@$(IN_VENV) scripts/bench calm

.PHONY: bench-overhead
bench-overhead: set-up ## what probes cost: on and off by turns under a flow, its goodput, CPU and packets (5 minutes)
	@$(MAKE) build
	@$(IN_VENV) scripts/bench overhead

.PHONY: bench-paper
bench-paper: set-up ## the MRC paper's failure experiments with a TCP flow, beside its points (3 minutes; build/paper.svg)
	@$(MAKE) build
	@$(IN_VENV) scripts/bench paper

.PHONY: install
install: set-up ## install for this host: commands, systemd unit, example configuration
	/usr/bin/python3 -m venv --system-site-packages $(PREFIX)/lib/mrcd
	$(PREFIX)/lib/mrcd/bin/pip install --quiet --disable-pip-version-check .
	install -d $(PREFIX)/bin /etc/mrcd
	ln -sf $(PREFIX)/lib/mrcd/bin/mrcd $(PREFIX)/lib/mrcd/bin/mrcctl $(PREFIX)/bin/
	install -m 644 scripts/deploy/mrcd.toml /etc/mrcd/mrcd.toml.example
	install -D -m 644 scripts/deploy/mrcd.service /etc/systemd/system/mrcd.service
	@echo "Next: write /etc/mrcd/mrcd.toml (an example is beside it), 'mrcctl config check /etc/mrcd/mrcd.toml',"
	@echo "      'systemctl daemon-reload', 'systemctl enable --now mrcd'"

.PHONY: clean
clean: ## remove what was built, not what was installed
	rm -rf build mrcd/mrc.bpf.o .mypy_cache .pytest_cache .ruff_cache
	find mrcd scripts tests -name __pycache__ -type d -prune -exec rm -rf {} +
