# Every target does its own set-up on a fresh Debian machine with Rust: see tools/setup.
# Kernel work happens only inside network namespaces that the programs make and remove; root is needed for that.

CARGO   ?= cargo
RELEASE := $(CURDIR)/target/release
# What is tested is what ships: the release builds, and the static one of the plugin.
export PODWIRE_CNI := $(RELEASE)/podwire-cni
export PODWIRE := $(RELEASE)/podwire

.DEFAULT_GOAL := help
.PHONY: help build demo lab test fresh lint words bench soak clean

help: ## show this
	@awk -F ':.*## ' '/^[a-z]+:.*## / {printf "  make %-7s %s\n", $$1, $$2}' Makefile

build: ## target/release/podwire-cni (static) and target/release/podwire
	@tools/setup build
	@tools/timed "compile podwire-cni" $(CARGO) rustc --profile plugin --locked -p plugin --bin podwire-cni -- -C target-feature=+crt-static
	@tools/timed "compile podwire" $(CARGO) build --release --locked -p podwire
	@ln -f target/plugin/podwire-cni $(RELEASE)/podwire-cni

demo: build ## an agent and two pods, both families, a kill, repairs, and nothing left behind
	@tools/setup demo
	@tools/timed "demo" $(RELEASE)/podwire demo

lab: build ## three nodes on etcd that stay up to try things on, and who reaches whom; what is needed is installed first
	@tools/setup lab
	@$(RELEASE)/podwire lab up --nodes 3 && $(RELEASE)/podwire lab test
	@echo
	@echo "It stays up. Go on with $(RELEASE)/podwire lab --help, and end with $(RELEASE)/podwire lab down"

test: lint build ## everything: format, lints, unit, property and kernel tests
	@tools/setup test
	@tools/timed "compile tests" $(CARGO) test --workspace --locked --no-run
	@tools/timed "run tests" $(CARGO) test --workspace --locked --no-fail-fast

fresh: ## make demo and make test from a clean clone in a minimal Debian; FRESH="demo lab" for other targets
	@tools/setup fresh
	@tools/fresh $(FRESH)

lint:
	@tools/setup build
	$(CARGO) fmt --all --check
	@tools/timed "clippy" $(CARGO) clippy --workspace --all-targets --locked -- -D warnings
	@tools/arrows
	@if command -v cargo-deny >/dev/null; then $(CARGO) deny check licenses bans sources; else echo "cargo-deny is not installed: licences not checked"; fi

words: ## find words that docs/reference/glossary.md replaces, in code and documents
	@tools/words

bench: build ## beside the reference plugins and plain ip; BENCH=pods,firewall,recovery,routes,scale,joins,traffic for some of it, BASELINE=DIR beside an older build
	@tools/setup bench
	$(CARGO) run --release --locked -q -p bench -- $(if $(BENCH),--only $(BENCH)) $(if $(BASELINE),--strict --baseline $(abspath $(BASELINE)))

soak: build ## 10 minutes of load, faults and attacks at the same time, an audit, then the long fault tests; SOAK="--minutes 2 --without vxlan"
	@tools/setup test
	$(CARGO) run --release --locked -q -p bench --bin podwire-soak -- $(SOAK)
	PODWIRE_SOAK=1 $(CARGO) test --release --locked -p plugin --test faults -- --nocapture
	PODWIRE_SOAK=1 $(CARGO) test --release --locked -p agent --test faults -- --nocapture

clean: ## remove what was built
	$(CARGO) clean
