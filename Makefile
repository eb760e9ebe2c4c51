# netacc-lab: the commands that people type. What the jobs do is in ci/run.sh.

PREFIX     ?= /usr/local
DESTDIR    ?=
# The library reads /etc/netacc.conf; under a prefix of one's own the sample goes below that prefix.
SYSCONFDIR ?= $(if $(filter /usr /usr/local,$(PREFIX)),/etc,$(PREFIX)/etc)
DOCDIR     ?= $(PREFIX)/share/doc/netacc-lab

BUILT    := target/release
PROGRAMS := netacc netacc_run netacc_ss
LIBRARY  := libnetacc-preload.so
# Runs static programs; it has to lie beside the library.
LOADER   := netacc-loader
SAMPLE   := core/config/netacc.conf
DOCS     := $(wildcard README.md ARCHITECTURE.md CONTRIBUTING.md LICENSE-MIT LICENSE-APACHE core/proto/SPEC.md)

.DEFAULT_GOAL := help
.PHONY: help build check test demo bench lint docs notebooks paper paper-records install uninstall clean

help: ## Show these targets
	@echo 'netacc-lab: unmodified TCP programs over RDMA or shared memory'
	@echo
	@awk -F ':.*## ' '/^[a-z-]+:.*## / { printf "  make %-13s %s\n", $$1, $$2 }' $(firstword $(MAKEFILE_LIST))
	@echo
	@echo '  One job alone: ci/run.sh <job>; "ci/run.sh help" lists them.'

build: ## Build netacc, netacc_run, netacc_ss, netacc-loader and libnetacc-preload.so into target/release
	@ci/run.sh build

check: ## The quick check before each commit: at most five minutes once built
	@ci/run.sh check

test: ## Install what is missing, then run every test; ends with the time of each step
	@ci/run.sh all

demo: ## Real Redis on kernel TCP and under netacc_run, side by side (two minutes at most; twenty seconds once built)
	@ci/run.sh demo

bench: ## The whole benchmark: redis, echo, stream and connect; JSON and plots in results/local
	@ci/run.sh bench

lint: ## Format, clippy, ruff, mypy and shellcheck, all without changing a file
	@ci/run.sh lint

notebooks: ## Open the notebooks in JupyterLab, with everything that they need installed
	@ci/run.sh notebooks

docs: ## Build the documentation into target/docs/index.html, its references and links checked
	@ci/run.sh docs

paper: ## Make target/paper/netacc.pdf, the paper, its numbers and figures from the records
	@ci/run.sh paper

paper-records: ## Make the paper's records again, those that a laptop can (about an hour on an idle machine)
	@ci/run.sh paper-records

install: ## Install what `make build` left (PREFIX=/usr/local DESTDIR= SYSCONFDIR=)
	@for file in $(PROGRAMS) $(LIBRARY) $(LOADER); do \
	    test -e $(BUILT)/$$file || { echo "$(BUILT)/$$file is missing: run 'make build' first" >&2; exit 1; }; \
	done
	install -d '$(DESTDIR)$(PREFIX)/bin' '$(DESTDIR)$(PREFIX)/lib' '$(DESTDIR)$(SYSCONFDIR)' '$(DESTDIR)$(DOCDIR)'
	install -m 755 $(PROGRAMS:%=$(BUILT)/%) '$(DESTDIR)$(PREFIX)/bin/'
	install -m 644 $(BUILT)/$(LIBRARY) '$(DESTDIR)$(PREFIX)/lib/'
	install -m 755 $(BUILT)/$(LOADER) '$(DESTDIR)$(PREFIX)/lib/'
	@# The line tables are most of each file. Debuggers look for them in .debug beside it.
	cd '$(DESTDIR)$(PREFIX)' && install -d bin/.debug lib/.debug && for file in $(PROGRAMS:%=bin/%) lib/$(LIBRARY) lib/$(LOADER); do \
	    debug="$${file%/*}/.debug/$${file##*/}.debug"; \
	    objcopy --only-keep-debug "$$file" "$$debug" && chmod 644 "$$debug" && \
	    strip --strip-unneeded "$$file" && objcopy --add-gnu-debuglink="$$debug" "$$file" || exit; \
	done
	@if test -e '$(DESTDIR)$(SYSCONFDIR)/netacc.conf'; then \
	    echo 'kept $(DESTDIR)$(SYSCONFDIR)/netacc.conf as it is; the sample is in $(DESTDIR)$(DOCDIR)'; \
	else \
	    install -v -m 644 $(SAMPLE) '$(DESTDIR)$(SYSCONFDIR)/netacc.conf'; \
	fi
	install -m 644 $(SAMPLE) '$(DESTDIR)$(DOCDIR)/netacc.conf.sample'
	install -m 644 $(DOCS) '$(DESTDIR)$(DOCDIR)/'
	@if test -z '$(DESTDIR)' && test "$$(id -u)" = 0; then ldconfig; fi

uninstall: ## Remove what `make install` put there; a configuration that was edited stays
	rm -f $(PROGRAMS:%='$(DESTDIR)$(PREFIX)/bin/%') '$(DESTDIR)$(PREFIX)/lib/$(LIBRARY)' '$(DESTDIR)$(PREFIX)/lib/$(LOADER)'
	rm -f $(PROGRAMS:%='$(DESTDIR)$(PREFIX)/bin/.debug/%.debug') '$(DESTDIR)$(PREFIX)/lib/.debug/$(LIBRARY).debug' '$(DESTDIR)$(PREFIX)/lib/.debug/$(LOADER).debug'
	@conf='$(DESTDIR)$(SYSCONFDIR)/netacc.conf'; sample='$(DESTDIR)$(DOCDIR)/netacc.conf.sample'; \
	if test -e "$$conf" && test -e "$$sample"; then \
	    if cmp -s "$$conf" "$$sample"; then rm -v "$$conf"; else echo "kept $$conf: it was edited"; fi; \
	fi
	rm -rf '$(DESTDIR)$(DOCDIR)'
	@if test -z '$(DESTDIR)' && test "$$(id -u)" = 0; then ldconfig; fi

clean: ## Remove what was built, the Python environment and local results
	rm -rf target .venv .pytest_cache .mypy_cache .ruff_cache results/local
	find . -name __pycache__ -type d -prune -exec rm -rf {} +
