# Every target installs the Debian packages that it needs (tools/setup); Rust must be there.
# Networks are created only inside network namespaces, which the programs create and remove as root.

CARGO   ?= cargo
RELEASE := $(CURDIR)/target/release
# Tests use the programs that ship: release builds, with a static plugin.
export PODWIRE_CNI := $(RELEASE)/podwire-cni
export PODWIRE := $(RELEASE)/podwire

.DEFAULT_GOAL := help
.PHONY: help build demo lab test fresh lint words bench soak clean

help: ## show this list
	@awk -F ':.*## ' '/^[a-z]+:.*## / {printf "  make %-7s %s\n", $$1, $$2}' Makefile

build: ## target/release/podwire-cni (static) and target/release/podwire
	@tools/setup build
	@tools/timed "compile podwire-cni" $(CARGO) rustc --profile plugin --locked -p plugin --bin podwire-cni -- -C target-feature=+crt-static
	@tools/timed "compile podwire" $(CARGO) build --release --locked -p podwire
	@ln -f target/plugin/podwire-cni $(RELEASE)/podwire-cni

demo: build ## run an agent and two pods, kill the agent, show repairs, clean up
	@tools/setup demo
	@tools/timed "demo" $(RELEASE)/podwire demo

PODWIRE_LAB = $(RELEASE)/podwire lab$(if $(LAB), --name $(LAB))
lab: build ## start three nodes in two subnets on etcd that stay up, and test all pod-to-pod paths; LAB=two: another name
	@tools/setup lab
	@$(PODWIRE_LAB) up --nodes 3 --subnets 2 && $(PODWIRE_LAB) test
	@echo
	@echo "The lab stays up. Break and repair it: docs/lab.md. Remove it: $(PODWIRE_LAB) down"

test: lint build ## run format check, lints, unit, property and kernel tests
	@tools/setup test
	@tools/timed "compile tests" $(CARGO) test --workspace --locked --no-run
	@tools/timed "run tests" $(CARGO) test --workspace --locked --no-fail-fast

fresh: ## run make demo and make test from a clean clone in a minimal Debian; FRESH="demo lab": other targets
	@tools/setup fresh
	@tools/fresh $(FRESH)

lint:
	@tools/setup build
	$(CARGO) fmt --all --check
	@tools/timed "clippy" $(CARGO) clippy --workspace --all-targets --locked -- -D warnings
	@tools/arrows
	@tools/words
	@if command -v cargo-deny >/dev/null; then $(CARGO) deny check licenses bans sources; else echo "cargo-deny is not installed: licences not checked"; fi

words: ## find words that docs/reference/glossary.md replaces, in code and documents
	@tools/words

bench: build ## compare with the reference plugins and plain ip; BENCH=pods,firewall,recovery,routes,scale,joins,traffic: parts; BASELINE=DIR: an older build
	@tools/setup bench
	@tools/timed "compile podwire-floor" $(CARGO) rustc --release --locked -p bench --bin podwire-floor -- -C target-feature=+crt-static
	$(CARGO) run --release --locked -q -p bench --bin podwire-bench -- $(if $(BENCH),--only $(BENCH)) $(if $(BASELINE),--strict --baseline $(abspath $(BASELINE)))

soak: build ## run 10 minutes of load, faults and attacks, an audit, then the long fault tests; SOAK="--minutes 2 --without vxlan"
	@tools/setup test
	$(CARGO) run --release --locked -q -p bench --bin podwire-soak -- $(SOAK)
	PODWIRE_SOAK=1 $(CARGO) test --release --locked -p plugin --test faults -- --nocapture
	PODWIRE_SOAK=1 $(CARGO) test --release --locked -p agent --test faults -- --nocapture
	PODWIRE_SOAK=1 $(CARGO) test --release --locked -p agent --test policies -- faults --nocapture

clean: ## remove all build results
	$(CARGO) clean
