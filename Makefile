# SPDX-License-Identifier: BSD-2-Clause
# `make help` lists the targets. On a new machine start with `make demo` or `make test`: both run the set-up.

.DEFAULT_GOAL := build
.DELETE_ON_ERROR:
MAKEFLAGS += --no-print-directory --no-builtin-rules

PYTHON := .venv/bin/python
IN_VENV := PATH="$(CURDIR)/.venv/bin:$$PATH"
PYTEST_ARGS ?=
BENCH ?=
KERNELS ?=
NICS ?=
FUZZ_SECONDS ?= 60
FUZZ_RUNS ?=
MODEL_PACKETS ?= 100000
ONLY ?=
REPEAT ?= 50
PREFIX ?= /usr/local
SYSCONFDIR ?= /etc
DESTDIR ?=
TREE = $(DESTDIR)$(PREFIX)

# The compiler: clang-19, else the newest installed one. Recursive (=), because set-up may install it in this run.
CLANG = $(or $(shell command -v clang-19),$(lastword $(shell ls -v /usr/bin/clang-[0-9]* 2>/dev/null)),$(shell command -v clang))
# asm/types.h is in the directory of the machine's architecture, which clang does not search for the bpf target.
MULTIARCH = $(shell gcc -print-multiarch 2>/dev/null)
BPF_CFLAGS = --target=bpf -mcpu=v3 -O2 -g -std=gnu11 -Wall -Wextra -Werror $(if $(MULTIARCH),-isystem /usr/include/$(MULTIARCH))

OBJECTS := $(patsubst %.bpf.c,build/%.bpf.o,$(notdir $(wildcard bpf/*.bpf.c bpf/lab/*.bpf.c)))
# Python files without a suffix, which ruff does not find.
PYTHON_SCRIPTS = $(shell grep -lsE '^\#!.*python' scripts/*)

.PHONY: help
help: ## list the targets
	@sed -nE 's/^([a-z0-9-]+):.*## (.*)/  \1\t\2/p' Makefile | expand -t 20

.PHONY: build
build: $(OBJECTS) build/counted.bpf.o mrcd/mrc.bpf.o ## compile the eBPF objects (default)

vpath %.bpf.c bpf bpf/lab

build/%.bpf.o: %.bpf.c Makefile
	@mkdir -p build
	@test -n "$(CLANG)" || { echo "make: no clang found"; echo "  hint: run 'make set-up'"; exit 1; } >&2
	$(CLANG) $(BPF_CFLAGS) -MMD -MP -MF build/$*.dep -c $< -o $@

# The same programs with counted helper calls, for `scripts/bench cost`.
COUNTED := scripts/labkit/bench/counted.h
build/counted.bpf.o: bpf/mrc.bpf.c $(COUNTED) Makefile
	@mkdir -p build
	$(CLANG) $(BPF_CFLAGS) -include $(COUNTED) -MMD -MP -MF build/counted.dep -c $< -o $@

-include $(wildcard build/*.dep)

# The object is beside the modules, for a checkout (editable install) and for `pip install .`.
mrcd/mrc.bpf.o: build/mrc.bpf.o
	@install -m 644 $< $@

.PHONY: start-cost
start-cost: ## print the CPU time that mrcctl takes to start
	@$(PYTHON) scripts/start-cost

.PHONY: set-up
set-up: ## install missing packages (apt, .venv); a second run changes nothing
	@scripts/set-up

.PHONY: demo
demo: set-up ## run a cluster on this machine: one TCP flow over every path, faults, a picture
	@$(MAKE) build
	@$(IN_VENV) scripts/demo

.PHONY: demo-training
demo-training: set-up-training ## run a training job (gloo) through five faults, with mrcd and over the kernel's SRv6 (4 minutes)
	@$(MAKE) build
	@$(IN_VENV) scripts/demo-training

.PHONY: set-up-training
set-up-training:
	@scripts/set-up --training

.PHONY: check
check: lint ## the loop of a developer: lint, types, pure tests, packet tests, one lab
	@$(MAKE) build
	@$(PYTHON) -m pytest tests/unit tests/packet tests/lab/test_back_to_back.py

.PHONY: test
test: $(if $(PYTEST_ARGS),set-up,lint) ## lint and all tests; PYTEST_ARGS="tests/unit -k name" for some tests, without lint
	@$(MAKE) build
	@$(PYTHON) -m pytest $(PYTEST_ARGS)

.PHONY: test-all
test-all: test test-training test-deb test-rpm test-image test-network-manager test-firewalld test-ansible test-kernels test-arm64 test-nics ## all tests, all faults, kernels and cards, long fuzzing, all benches (hours)
	@$(PYTHON) -m pytest --all-faults tests/lab/test_diagnosis.py tests/lab/test_alertmanager.py
	@$(MAKE) test-arm64 KERNELS="--kernel 6.12-arm64 --part packets"
	@$(MAKE) test-model MODEL_PACKETS=1000000
	@$(MAKE) fuzz FUZZ_SECONDS=600
	@$(MAKE) fuzz-planted bench

# Not part of `test`: PyTorch is large.
.PHONY: test-training
test-training: set-up-training ## check a training job under a fault, with and without mrcd
	@$(MAKE) build
	@$(PYTHON) -m pytest $(PYTEST_ARGS) tests/lab/training_job.py

.PHONY: test-model
test-model: set-up ## compare mrc_pop and mrc_pop_xdp with a model in Python, on random packets; MODEL_PACKETS=100000
	@$(MAKE) build
	@$(PYTHON) -m pytest --model-packets $(MODEL_PACKETS) $(PYTEST_ARGS) tests/packet/test_model.py

.PHONY: fuzz
fuzz: set-up-fuzz ## fuzz the headers of bpf/ on this machine, with sanitizers; FUZZ_SECONDS=60 in all, FUZZ_RUNS= per target
	@PYTHONPATH=scripts $(PYTHON) -m tests.fuzz.run --seconds $(FUZZ_SECONDS) $(if $(FUZZ_RUNS),--runs $(FUZZ_RUNS))

.PHONY: fuzz-planted
fuzz-planted: set-up-fuzz ## check that each fuzz target finds a check that is removed from a copy of bpf/ (a minute each at most)
	@PYTHONPATH=scripts $(PYTHON) -m tests.fuzz.run --planted

.PHONY: mutants
mutants: set-up ## plant 37 faults in a copy of bpf/ and mrcd/: the tests must notice each (6 minutes; ONLY=text for some)
	@$(PYTHON) tests/mutants.py --only "$(ONLY)"

.PHONY: test-packet-repeat
test-packet-repeat: set-up ## run the packet tests again and again, until one fails; REPEAT=50
	@$(MAKE) build
	@for n in $$(seq $(REPEAT)); do echo "run $$n of $(REPEAT)"; $(PYTHON) -m pytest -q -x tests/packet || exit; done

.PHONY: set-up-fuzz
set-up-fuzz:
	@scripts/set-up --fuzz

.PHONY: test-kernels
test-kernels: set-up ## check programs, packet tests and a lab on Debian's 6.1 and 6.12 in virtual machines, and on this kernel
	@$(MAKE) build
	@$(IN_VENV) scripts/kernels test $(KERNELS)

ARM64_PARTS = $(or $(KERNELS),--part programs --part smoke --part package)
.PHONY: test-arm64
test-arm64: set-up ## check programs, the package and a lab on arm64 kernels with pages of 4 and 16 KiB, emulated (KERNELS="--part packets")
	@scripts/set-up --arm64
	@$(MAKE) build build/roots/arm64
	$(if $(findstring package,$(ARM64_PARTS)),@$(MAKE) build/roots/arm64-package)
	@$(IN_VENV) scripts/kernels test --arm64 $(ARM64_PARTS)

.PHONY: test-nics
test-nics: set-up ## check mrcd on two virtual machines by three network cards: traffic, pulled cables, resets, VLANs (NICS=…)
	@$(MAKE) build
	@$(IN_VENV) scripts/kernels nics $(NICS)

.PHONY: lint
lint: set-up ## run ruff (rules and format), mypy (strict) and reuse (licences)
	@$(PYTHON) -m ruff check . $(PYTHON_SCRIPTS)
	@$(PYTHON) -m ruff format --check . $(PYTHON_SCRIPTS)
	@$(PYTHON) -m mypy
	@$(PYTHON) -m reuse lint --lines

.PHONY: bench
bench: set-up ## measure throughput, cost, planes, the paper's experiments, scale (15 minutes; BENCH="paper --full" for parts)
	@$(MAKE) build
	@$(IN_VENV) scripts/bench $(BENCH)

.PHONY: bench-failover
bench-failover: set-up ## measure how fast a flow leaves hundreds of broken paths (40 minutes; build/failover.svg)
	@$(MAKE) build
	@$(IN_VENV) scripts/bench failover

.PHONY: bench-alone
bench-alone: set-up ## measure paths that fail and heal while both daemons are dead, for ten minutes (12 minutes; build/alone.svg)
	@$(MAKE) build
	@$(IN_VENV) scripts/bench alone

.PHONY: bench-lifecycle
bench-lifecycle: set-up ## measure loss and reordering under restarts, kills, upgrades and reloads (2 minutes)
	@$(MAKE) build
	@$(IN_VENV) scripts/bench lifecycle

.PHONY: bench-calm
bench-calm: set-up ## measure false demotions under stress: busy, stalled and evenly lossy machines (20 minutes)
	@$(MAKE) build
	@$(IN_VENV) scripts/bench calm

.PHONY: bench-paper
bench-paper: set-up ## repeat the MRC paper's failure experiments with a TCP flow, all at length (8 minutes)
	@$(MAKE) build
	@$(IN_VENV) scripts/bench paper --full

.PHONY: bench-scale
bench-scale: set-up ## measure one host among up to 4,096 peers: memory, start, work, answers (10 minutes; build/scale.svg)
	@$(MAKE) build
	@$(IN_VENV) scripts/bench scale --full

.PHONY: install
install: ## install on this host, with nothing of the tests; PREFIX=/usr/local SYSCONFDIR=/etc DESTDIR=
	@scripts/set-up --install
	@$(MAKE) mrcd/mrc.bpf.o install-python
	@$(MAKE) install-files
	@echo "Next: write $(SYSCONFDIR)/mrcd/mrcd.toml (an example is beside it), check it with 'mrcctl config check', then"
	@echo "      'systemd-sysusers', 'systemctl daemon-reload', 'systemctl enable --now mrcd'"

# The commands, in a virtual environment of their own: all Python packages but bcc are inside, whatever this machine has.
# In a DESTDIR its files must not contain the DESTDIR.
PIP_INSTALL = $(TREE)/lib/mrcd/bin/python -m pip install --quiet --disable-pip-version-check --no-input --no-deps
.PHONY: install-python
install-python: mrcd/mrc.bpf.o
	/usr/bin/python3 -m venv --system-site-packages $(TREE)/lib/mrcd
	$(PIP_INSTALL) --ignore-installed --require-hashes -r scripts/deploy/requirements.txt
	$(PIP_INSTALL) .
	$(if $(DESTDIR),grep -rlIF '$(DESTDIR)' $(TREE)/lib/mrcd/bin $(TREE)/lib/mrcd/pyvenv.cfg | xargs sed -i 's|$(DESTDIR)||g')
	install -d $(TREE)/bin
	ln -sf $(PREFIX)/lib/mrcd/bin/mrcd $(PREFIX)/lib/mrcd/bin/mrcctl $(TREE)/bin/

# All other files: unit, user, man pages, completions, the example, files for Prometheus and Grafana, the pages of docs/.
INSTALLED_PYTHON = $(firstword $(wildcard $(TREE)/lib/mrcd/bin/python3) $(PYTHON))
.PHONY: install-files
install-files:
	@mkdir -p build/install
	sed 's|=/usr/local/|=$(PREFIX)/|' scripts/deploy/mrcd.service >build/install/mrcd.service
	$(INSTALLED_PYTHON) scripts/deploy/manpages.py build/install
	for s in bash zsh fish; do $(INSTALLED_PYTHON) -m mrcd.ctl completion $$s >build/install/mrcctl.$$s || exit; done
	$(foreach f,$(INSTALLED),install -D -m 644 $(firstword $(subst :, ,$f)) $(lastword $(subst :, ,$f)) &&) true
	chmod 755 $(SLURM_EXAMPLES:%=$(TREE)/share/mrcd/%)

SLURM_EXAMPLES = prolog-slurmctld task-prolog health-check

# NetworkManager reads no files below /usr/local.
NETWORK_MANAGER = $(if $(filter /usr,$(PREFIX)),$(TREE)/lib,$(DESTDIR)$(SYSCONFDIR))/NetworkManager
# Source and destination of each installed file; `uninstall` removes the same files.
INSTALLED = \
	build/install/mrcd.service:$(TREE)/lib/systemd/system/mrcd.service \
	scripts/deploy/sysusers.conf:$(TREE)/lib/sysusers.d/mrcd.conf \
	scripts/deploy/networkd.conf:$(TREE)/lib/systemd/networkd.conf.d/mrcd.conf \
	scripts/deploy/mrc0.network:$(TREE)/lib/systemd/network/10-mrcd.network \
	scripts/deploy/network-manager.conf:$(NETWORK_MANAGER)/conf.d/mrcd.conf \
	build/install/mrcd.8:$(TREE)/share/man/man8/mrcd.8 \
	build/install/mrcctl.1:$(TREE)/share/man/man1/mrcctl.1 \
	build/install/mrcd.toml.5:$(TREE)/share/man/man5/mrcd.toml.5 \
	build/install/mrcctl.bash:$(TREE)/share/bash-completion/completions/mrcctl \
	build/install/mrcctl.zsh:$(TREE)/share/zsh/site-functions/_mrcctl \
	build/install/mrcctl.fish:$(TREE)/share/fish/vendor_completions.d/mrcctl.fish \
	$(foreach f,$(wildcard scripts/deploy/prometheus/*),$f:$(TREE)/share/mrcd/$(notdir $f)) \
	$(foreach f,$(wildcard docs/*.md docs/images/*),$f:$(TREE)/share/doc/mrcd/$f) \
	$(foreach f,$(SLURM_EXAMPLES),scripts/deploy/$f:$(TREE)/share/mrcd/$f) \
	$(foreach f,$(wildcard scripts/deploy/kubernetes/*),$f:$(TREE)/share/mrcd/kubernetes/$(notdir $f)) \
	scripts/deploy/image/seccomp.json:$(TREE)/share/mrcd/seccomp.json \
	$(foreach f,$(shell find scripts/deploy/ansible -type f),$f:$(TREE)/share/mrcd/$(f:scripts/deploy/%=%)) \
	scripts/deploy/wireshark/mrc.lua:$(TREE)/share/mrcd/mrc.lua \
	scripts/deploy/mrcd.toml:$(DESTDIR)$(SYSCONFDIR)/mrcd/mrcd.toml.example

# Needs pip-tools, and the network.
.PHONY: lock
lock: ## choose anew the Python packages that an installation has inside
	rm -f build/pins.txt
	pip-compile --quiet --strip-extras --no-annotate --no-header --no-emit-find-links --no-emit-index-url \
		--no-emit-trusted-host --output-file build/pins.txt setup.cfg
	{ sed -n '/^#/p' scripts/deploy/requirements.txt; $(PYTHON) scripts/deploy/lock.py $(GLIBCS) <build/pins.txt; } >build/requirements.txt
	mv build/requirements.txt scripts/deploy/requirements.txt

.PHONY: man
man: set-up ## write the man pages into build/man (`man -l build/man/mrcctl.1`)
	@$(PYTHON) scripts/deploy/manpages.py build/man

.PHONY: uninstall
uninstall: ## remove the installed files; same PREFIX, SYSCONFDIR and DESTDIR; the configuration stays
	$(if $(DESTDIR),,-[ ! -d /run/mrcd ] || $(PREFIX)/bin/mrcctl detach --force || \
		{ systemctl stop mrcd; $(PREFIX)/bin/mrcctl detach --force; })
	$(if $(DESTDIR),,-[ ! -d /run/systemd/system ] || systemctl disable --now mrcd)
	rm -rf $(TREE)/lib/mrcd
	rm -f $(TREE)/bin/mrcd $(TREE)/bin/mrcctl $(foreach f,$(INSTALLED),$(lastword $(subst :, ,$f)))
	-rmdir -p --ignore-fail-on-non-empty $(sort $(TREE)/bin/ $(dir $(foreach f,$(INSTALLED),$(lastword $(subst :, ,$f)))))
	$(if $(DESTDIR),,rm -rf /run/mrcd /sys/fs/bpf/mrcd)
	$(if $(DESTDIR),,@echo "These stay until the next boot: mrc0 and tmrc0 (ip link del) and routes (ip route flush proto 77, and with ip -6)")

# Debian 12 has Python 3.11 and Debian 13 has 3.13, so that an upgrade from one to the other keeps the package; RHEL 9 has
# 3.11. For each there are compiled packages inside, whatever Python and architecture this machine has.
DEB = FORMAT=deb PYTHONS="3.11 3.13"
HOST_ARCH = $(shell dpkg --print-architecture)
ARCH = $(HOST_ARCH)
MACHINE_amd64 = x86_64
MACHINE_arm64 = aarch64
.PHONY: deb
deb: set-up ## build a Debian package with the files of `install`, in build/; ARCH=arm64 for another architecture
	@$(MAKE) package-tree $(DEB)
	@$(IN_VENV) scripts/deploy/package/build deb build/deb build $(ARCH)

.PHONY: rpm
rpm: set-up ## build an RPM with the files of `install`, in build/; ARCH=arm64 for another architecture
	@$(MAKE) package-tree FORMAT=rpm PYTHONS=3.11
	@$(IN_VENV) scripts/deploy/package/build rpm build/rpm build $(ARCH)

.PHONY: package-tree package-pythons package-wheels
package-tree:
	@scripts/set-up --install
	@rm -rf build/$(FORMAT)
	@$(MAKE) install-python DESTDIR=$(CURDIR)/build/$(FORMAT) PREFIX=/usr
	@$(MAKE) install-files DESTDIR=$(CURDIR)/build/$(FORMAT) PREFIX=/usr
	@$(MAKE) package-pythons DESTDIR=$(CURDIR)/build/$(FORMAT) PREFIX=/usr

GLIBCS = manylinux2014 manylinux_2_28 manylinux_2_34 # of the compiled packages: PEP 600
# pip's options for the compiled packages of architecture $1.
pip_platforms = --no-deps --only-binary :all: --require-hashes -r scripts/deploy/requirements.txt \
	$(foreach v,$(GLIBCS),--platform $v_$(or $(MACHINE_$1),$(error ARCH=$1: packages are for amd64 and arm64)))
PYTHON_LIB = $(TREE)/lib/mrcd/lib
package-pythons:
	for v in $(PYTHONS); do \
		to=$(PYTHON_LIB).new/python$$v/site-packages && \
		$(PIP_INSTALL) --no-compile $(call pip_platforms,$(ARCH)) --python-version $$v --target $$to && \
		cp -a $(PYTHON_LIB)/python*/site-packages/mrcd $(PYTHON_LIB)/python*/site-packages/mrcd-* $$to || exit; done
	rm -rf $(PYTHON_LIB) && mv $(PYTHON_LIB).new $(PYTHON_LIB)

# All that package-tree takes from an index, for a system that reaches none.
PIP_DOWNLOAD = $(PYTHON) -m pip download --quiet --disable-pip-version-check --no-input --dest build/wheels
package-wheels:
	rm -rf build/wheels
	for v in $(PYTHONS); do \
		$(foreach a,$(sort $(ARCH) $(HOST_ARCH)),$(PIP_DOWNLOAD) $(call pip_platforms,$a) --python-version $$v || exit;) done
	$(PIP_DOWNLOAD) setuptools wheel

# The smallest system of each Debian that the package is for, with what the package depends on, and ip, ping and rpm for
# the tests. They come from where apt gets its packages; without that, the tests of these systems are skipped.
build/roots/%:
	rm -rf $@ $@.part && mkdir -p build/roots
	! debootstrap --variant=minbase --include=systemd,python3,python3-bpfcc,libbpf1,iproute2,iputils-ping,rpm $* $@.part \
		"$$(apt-get indextargets --format '$$(SITE)' 'Created-By: Packages' | head -n 1)" >build/roots/$*.log || mv $@.part $@

# What the machines of test-arm64 run, from this machine's Debian so that its Python is the same. No program of it runs here.
ARM64_PACKAGES = base-files,coreutils,dash,ethtool,grep,iperf3,iproute2,iputils-ping,kmod,libbpf1,libstdc++6,mount,netbase,procps,python3,util-linux
build/roots/arm64: scripts/deploy/requirements.txt
	rm -rf $@ $@.part
	mkdir -p build/roots
	mmdebstrap --quiet --variant=extract --architectures=arm64 --include=$(ARM64_PACKAGES) \
		"$$(. /etc/os-release && echo "$$VERSION_CODENAME")" $@.part \
		"$$(apt-get indextargets --format '$$(SITE)' 'Created-By: Packages' | head -n 1)"
	$(PYTHON) -m pip install --quiet --no-compile $(call pip_platforms,arm64) --target $@.part/usr/lib/python3/dist-packages
	$(PYTHON) -m compileall -q --invalidation-mode unchecked-hash $@.part/usr/lib/python3*
	mkdir -p $@.part/lib/modules
	touch $@.part && mv $@.part $@

.PHONY: build/roots/arm64-package
build/roots/arm64-package:
	$(MAKE) deb ARCH=arm64
	rm -rf $@
	dpkg-deb --extract "$$(ls -t build/mrcd_*_arm64.deb | head -n 1)" $@

.PHONY: deb-clean
deb-clean: set-up build/roots/bookworm ## build the package in the smallest Debian 12, where nothing of this machine gets into it
	@if [ -d build/roots/bookworm ]; then \
		$(MAKE) package-wheels $(DEB) && \
		scripts/deploy/package/in-root build/roots/bookworm build/deb $(MAKE) package-tree $(DEB) ARCH=$(ARCH) && \
		$(IN_VENV) scripts/deploy/package/build deb build/deb build $(ARCH); \
	else \
		echo "No Debian 12 to build in (build/roots/bookworm.log): the package is built here"; \
		$(MAKE) deb; \
	fi

# Not part of `test`: building the package takes minutes.
.PHONY: test-deb
test-deb: set-up deb-clean build/roots/trixie ## install, start, upgrade, remove and purge the package, here and on a bare Debian 12 and 13
	@scripts/set-up --ansible
	@$(PYTHON) -m pytest $(PYTEST_ARGS) tests/lab/debian.py

.PHONY: test-rpm
test-rpm: set-up rpm build/roots/bookworm ## install, start and remove the RPM on a bare system
	@$(MAKE) build
	@$(PYTHON) -m pytest $(PYTEST_ARGS) tests/lab/redhat.py

.PHONY: image
image: deb ## build a container image in build/, an OCI archive: the package, Python and libbpf
	@scripts/set-up --image
	@scripts/deploy/image/build "$$(ls -t build/mrcd_*_$(HOST_ARCH).deb | head -n 1)" build

.PHONY: test-image
test-image: set-up image ## run the image under podman in a lab: the commands of docs/containers.md, and an upgrade; check the manifests
	@$(MAKE) build
	@$(PYTHON) -m pytest $(PYTEST_ARGS) tests/lab/test_image.py tests/unit/test_kubernetes.py

.PHONY: test-network-manager
test-network-manager: set-up ## check mrcd beside a real NetworkManager
	@scripts/set-up --network-manager
	@$(MAKE) build
	@$(PYTHON) -m pytest $(PYTEST_ARGS) tests/lab/test_network_manager.py

.PHONY: test-firewalld
test-firewalld: set-up ## check mrcd beside a real firewalld
	@scripts/set-up --firewalld
	@$(MAKE) build
	@$(PYTHON) -m pytest $(PYTEST_ARGS) tests/lab/test_firewalld.py

.PHONY: test-ansible
test-ansible: set-up ## run the Ansible role on the hosts of a lab
	@scripts/set-up --ansible
	@$(MAKE) build
	@$(PYTHON) -m pytest $(PYTEST_ARGS) tests/lab/test_ansible.py

.PHONY: clean
clean: ## remove built files, not installed ones
	rm -rf build mrcd/mrc.bpf.o .hypothesis .mypy_cache .pytest_cache .ruff_cache
	find mrcd scripts tests -name __pycache__ -type d -prune -exec rm -rf {} +
