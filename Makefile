# Everything that this repository builds, tests and shows. `make help` lists the targets.

ifneq ($(words $(CURDIR)),1)
$(error The path of this checkout has a space in it, which make cannot handle: $(CURDIR))
endif

BUILD := build
CC ?= gcc
GO ?= go
# No checksum database has an entry for this module; go.sum pins it.
comma := ,
export GONOSUMDB := $(if $(GONOSUMDB),$(GONOSUMDB)$(comma))github.com/hashicorp/nomad/api
export CGO_ENABLED := 1

BINARIES := nomad-device-tranche nomad-driver-tranche tranche-runtime tranche-hook tranche
# Those that start with every container are linked statically, and without symbols: they are small and start fast.
STATIC_BINARIES := tranche-runtime tranche-hook
GO_SOURCES := $(shell find cmd cli claim device driver hooks internal runtime \( -name '*.go' -not -name '*_test.go' -o -name '*.[ch]' \) 2>/dev/null) cli/install/config.toml go.mod go.sum
E2E_SOURCES := $(shell find e2e -name '*.go' -not -path 'e2e/tools/*' 2>/dev/null)
ABSBUILD := $(CURDIR)/$(BUILD)
SANDBOX := $(ABSBUILD)/e2e/sandbox
PINNED_NOMAD := $(BUILD)/tools/nomad
# The demo takes the machine's own Nomad where there is one; the tests always take the pinned one.
NOMAD ?= $(or $(shell command -v nomad 2>/dev/null),$(PINNED_NOMAD))

RUN_PACKAGES := ca-certificates libc6-dev containerd runc containernetworking-plugins iptables busybox-static
# Docker may be one from elsewhere than Debian.
DOCKER_PACKAGE := $(if $(shell command -v dockerd 2>/dev/null),,docker.io)
TEST_PACKAGES := $(RUN_PACKAGES) crun tini catatonit musl-tools podman $(DOCKER_PACKAGE)
LINT_PACKAGES := clang-format cppcheck
# Docker is what the starts of tasks are compared with.
BENCH_PACKAGES := $(RUN_PACKAGES) crun $(DOCKER_PACKAGE)

GOLANGCI_LINT_VERSION := v2.15.0
GOTESTSUM_VERSION := v1.13.0

.DEFAULT_GOAL := help

.PHONY: help
help: ## Show this list
	@awk -F ':.*## ' '/^[a-z0-9-]+:.*## / { printf "  make %-14s %s\n", $$1, $$2 }' $(MAKEFILE_LIST)

include e2e/simgpu/sim.mk
include intercept/intercept.mk
include e2e/campaign/campaign.mk
include e2e/gpucheck/gpucheck.mk

.PHONY: build
build: $(BINARIES:%=$(BUILD)/bin/%) shadow ## Build the binaries and the shadow libraries

# One rule makes them all: two calls of the Go command are faster than five.
$(BINARIES:%=$(BUILD)/bin/%) &: $(GO_SOURCES)
	@echo "==> building Tranche's binaries"
	@mkdir -p $(BUILD)/bin
	$(GO) build -buildvcs=false -trimpath -o $(BUILD)/bin/ $(patsubst %,./cmd/%,$(filter-out $(STATIC_BINARIES),$(BINARIES)))
	CGO_ENABLED=0 $(GO) build -buildvcs=false -trimpath -ldflags='-s -w' -o $(BUILD)/bin/ $(STATIC_BINARIES:%=./cmd/%)

$(BUILD)/e2e/sandbox $(BUILD)/e2e/demo $(BUILD)/e2e/bench &: $(E2E_SOURCES) $(GO_SOURCES)
	@mkdir -p $(BUILD)/e2e
	$(GO) build -buildvcs=false -o $(BUILD)/e2e/ ./e2e/sandbox ./e2e/demo ./e2e/bench

# Stands in for another device plugin, by what that one was recorded to say.
$(BUILD)/e2e/replay: $(wildcard device/internal/recorded/*.go device/internal/recorded/replay/*.go)
	@mkdir -p $(@D)
	$(GO) build -buildvcs=false -o $@ ./device/internal/recorded/replay

$(BUILD)/e2e/gpu-probe: examples/gpu-probe/gpu-probe.c examples/gpu-probe/driver.h
	@mkdir -p $(@D)
	$(CC) -std=c11 -O2 -Wall -Wextra -Werror -o $@ $< -ldl

$(BUILD)/e2e/churn: e2e/programs/churn.c examples/gpu-probe/driver.h
	@mkdir -p $(@D)
	$(CC) -std=c11 -O2 -Wall -Wextra -Werror -I examples/gpu-probe -o $@ $< -ldl

$(BUILD)/e2e/vandal: e2e/programs/vandal.c examples/gpu-probe/driver.h
	@mkdir -p $(@D)
	$(CC) -std=c11 -O2 -Wall -Wextra -Werror -I examples/gpu-probe -o $@ $< -ldl

# What the benchmark runs in containers: an image of nothing else has no libraries.
$(BUILD)/e2e/stopwatch: e2e/programs/stopwatch.c
	@mkdir -p $(@D)
	$(CC) -std=c11 -O2 -Wall -Wextra -Werror -static -o $@ $<

# What Tranche's runtime is tried beside: NVIDIA's own, and for its part that is no Go module a simulated one.
NVIDIA_TOOLS := $(addprefix $(BUILD)/tools/,nvidia-container-runtime nvidia-container-runtime-hook nvidia-cdi-hook)

$(NVIDIA_TOOLS): e2e/tools/nvidia/go.mod e2e/tools/nvidia/go.sum
	@echo "==> building NVIDIA's $(@F)"
	@mkdir -p $(@D)
	cd e2e/tools/nvidia && $(GO) build -o $(CURDIR)/$@ github.com/NVIDIA/nvidia-container-toolkit/cmd/$(@F)

$(BUILD)/e2e/nvidia-container-cli: $(wildcard e2e/simgpu/nvidiacli/*.go)
	@mkdir -p $(@D)
	$(GO) build -buildvcs=false -o $@ ./e2e/simgpu/nvidiacli

$(BUILD)/tools/docker-plugin: $(wildcard e2e/tools/dockerplugin/*)
	@echo "==> building Nomad's docker driver to compare with (it takes minutes, once)"
	@mkdir -p $(@D)
	cd e2e/tools/dockerplugin && ../../../scripts/build-progress $(CURDIR)/$@ .

$(PINNED_NOMAD): e2e/tools/go.mod e2e/tools/go.sum
	@echo "==> building the Nomad agent (it takes minutes, once)"
	@mkdir -p $(@D)
	cd e2e/tools && ../../scripts/build-progress $(CURDIR)/$@ github.com/hashicorp/nomad

# What the tests start containers with that Debian does not have, or not as new: each in a module of its own.
ENGINES := $(BUILD)/tools/containerd/containerd $(BUILD)/tools/nerdctl $(BUILD)/tools/nomad-driver-podman
CONTAINERD_PROGRAMS := containerd containerd-shim-runc-v2 ctr

$(BUILD)/tools/containerd/containerd: $(wildcard e2e/tools/containerd/go.* e2e/tools/containerd/*/*.go)
	@echo "==> building containerd 2 for the tests (it takes minutes, once)"
	@mkdir -p $(@D)
	@for program in $(CONTAINERD_PROGRAMS); do \
		(cd e2e/tools/containerd && CGO_ENABLED=0 GOFLAGS="$$GOFLAGS -tags=no_btrfs,no_devmapper" ../../../scripts/build-progress \
			$(CURDIR)/$(@D)/$$program github.com/containerd/containerd/v2/cmd/$$program) || exit 1; \
	done
	cd e2e/tools/containerd && CGO_ENABLED=0 $(GO) build -buildvcs=false -o $(CURDIR)/$(@D)/criclient ./criclient

$(BUILD)/tools/nerdctl: $(wildcard e2e/tools/nerdctl/*)
	@echo "==> building nerdctl for the tests (it takes minutes, once)"
	@mkdir -p $(@D)
	cd e2e/tools/nerdctl && CGO_ENABLED=0 ../../../scripts/build-progress $(CURDIR)/$@ github.com/containerd/nerdctl/v2/cmd/nerdctl

$(BUILD)/tools/nomad-driver-podman: $(wildcard e2e/tools/podmandriver/*)
	@echo "==> building Nomad's podman driver for the tests (it takes minutes, once)"
	@mkdir -p $(@D)
	cd e2e/tools/podmandriver && CGO_ENABLED=0 ../../../scripts/build-progress $(CURDIR)/$@ github.com/hashicorp/nomad-driver-podman

$(BUILD)/tools/golangci-lint: Makefile
	@echo "==> building golangci-lint $(GOLANGCI_LINT_VERSION)"
	GOBIN=$(ABSBUILD)/tools $(GO) install github.com/golangci/golangci-lint/v2/cmd/golangci-lint@$(GOLANGCI_LINT_VERSION)
	@touch $@

$(BUILD)/tools/gotestsum: Makefile
	GOBIN=$(ABSBUILD)/tools $(GO) install gotest.tools/gotestsum@$(GOTESTSUM_VERSION)
	@touch $@

.PHONY: demo
demo: ## Show two jobs on fractions of one GPU, with everything that takes (KEEP=1 leaves it running)
	@scripts/need-root "make demo"
	@scripts/install-packages $(RUN_PACKAGES)
	@$(MAKE) --no-print-directory build sim $(BUILD)/e2e/sandbox $(BUILD)/e2e/gpu-probe $(NOMAD)
	@$(BUILD)/e2e/demo -build $(ABSBUILD) -nomad $(abspath $(NOMAD)) $(if $(KEEP),-keep)

.PHONY: demo-stop
demo-stop: ## Stop a demo that KEEP=1 left running
	@if [ -x $(BUILD)/e2e/demo ]; then $(BUILD)/e2e/demo -build $(ABSBUILD) -stop; else echo "No demo is running."; fi

.PHONY: test
test: test-setup ## Run every test: C under sanitizers, Go with the race detector, end to end
	@$(MAKE) --no-print-directory test-c
	@$(MAKE) --no-print-directory test-go
	@$(MAKE) --no-print-directory gpu-check-test
	@$(MAKE) --no-print-directory e2e

TEST_PROGRAMS := $(addprefix $(BUILD)/e2e/,sandbox demo gpu-probe replay churn vandal stopwatch)

.PHONY: test-setup
test-setup:
	@scripts/need-root "make test"
	@scripts/install-packages $(TEST_PACKAGES)
	@$(MAKE) --no-print-directory build sim shadow-bench-tool $(TEST_PROGRAMS) $(PINNED_NOMAD) $(BUILD)/tools/gotestsum \
		$(ENGINES) $(NVIDIA_TOOLS) $(BUILD)/e2e/nvidia-container-cli

.PHONY: test-c
test-c: ## Run the C tests under ASan, UBSan and TSan
	@$(MAKE) --no-print-directory sim-test nvml-sim-test shadow-test shadow-tsan campaign-short

GOTEST := TRANCHE_REQUIRE_ROOT=1 TRANCHE_BUILD=$(ABSBUILD) $(BUILD)/tools/gotestsum --format pkgname --
IN_SANDBOX := -exec '$(SANDBOX) --dir $(CURDIR) --'

.PHONY: test-go
test-go: test-setup ## Run the Go tests of the packages with the race detector
	@echo "==> Go tests"
	@$(GOTEST) -race -timeout 40m $(IN_SANDBOX) $$($(GO) list ./... | grep -v '/e2e$$')

.PHONY: e2e
e2e: test-setup ## Run the end-to-end tests against real Nomad, containerd, Docker, Podman, runc and crun
	@echo "==> end-to-end tests"
	@$(GOTEST) -tags e2e -timeout 60m $(IN_SANDBOX) ./e2e

.PHONY: lint
lint: ## Check the code's form: golangci-lint, clang-format, cppcheck
	@scripts/install-packages $(LINT_PACKAGES)
	@$(MAKE) --no-print-directory $(BUILD)/tools/golangci-lint
	$(BUILD)/tools/golangci-lint run ./...
	$(BUILD)/tools/golangci-lint run --build-tags e2e ./e2e/...
	clang-format --dry-run -Werror $$(git ls-files '*.c' '*.h')
	cppcheck --quiet --error-exitcode=1 --std=c11 --enable=warning,performance,portability --inline-suppr \
		--suppress=missingIncludeSystem -I e2e/simgpu -I intercept $$(git ls-files '*.c')

.PHONY: bench
bench: ## Measure calls, containers, tasks of Nomad, the device plugin and packing, beside doing without Tranche and beside Docker
	@scripts/need-root "make bench"
	@scripts/install-packages $(BENCH_PACKAGES)
	@$(MAKE) --no-print-directory build sim shadow-bench-tool $(BUILD)/e2e/sandbox $(BUILD)/e2e/bench \
		$(BUILD)/e2e/stopwatch $(PINNED_NOMAD) $$(command -v dockerd >/dev/null && echo $(BUILD)/tools/docker-plugin)
	@$(SANDBOX) --dir $(CURDIR) -- $(BUILD)/e2e/bench -build $(ABSBUILD) -runtimes runc,crun $(BENCH_ARGS)

.PHONY: clean
clean: demo-stop ## Stop a kept demo and remove the build folder
	rm -rf $(BUILD)
