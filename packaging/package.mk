# The packages, and their tests. The top GNUmakefile includes this file.

PACKAGE := $(BUILD)/package
# What a user installs has the time of its commit.
PACKAGE_TIME = $(or $(SOURCE_DATE_EPOCH),$(shell git log -1 --format=%ct 2>/dev/null),$(shell stat -c %Y CHANGELOG.md))

$(BUILD)/tools/nfpm: packaging/nfpm/go.mod packaging/nfpm/go.sum
	@echo "==> building nfpm, which writes packages"
	@mkdir -p $(@D)
	cd packaging/nfpm && CGO_ENABLED=0 $(GO) build -o $(CURDIR)/$@ github.com/goreleaser/nfpm/v2/cmd/nfpm

.PHONY: package
package: ## Make deb, rpm and tarball for amd64 and arm64, checksums and SBOM, in build/package/dist
	@scripts/install-packages gcc-aarch64-linux-gnu libc6-dev-arm64-cross
	@$(MAKE) --no-print-directory package-amd64
	@echo "==> building Tranche for arm64"
	@GOARCH=arm64 $(MAKE) --no-print-directory BUILD=$(PACKAGE)/arm64 VERSION='$(VERSION)' CC=aarch64-linux-gnu-gcc build
	@SOURCE_DATE_EPOCH=$(PACKAGE_TIME) packaging/build arm64 $(PACKAGE)/arm64 '$(VERSION)' aarch64-linux-gnu-strip $(PACKAGE)/dist
	@cd $(PACKAGE)/dist && LC_ALL=C sha256sum -- * >../SHA256SUMS && mv ../SHA256SUMS .
	@ls -l $(PACKAGE)/dist

# The packages of this machine's architecture: what the tests in virtual machines install.
.PHONY: package-amd64
package-amd64:
	@$(MAKE) --no-print-directory $(BUILD)/tools/nfpm build
	@echo "==> making packages of version $(VERSION)"
	@rm -rf $(PACKAGE)/dist $(PACKAGE)/shared && mkdir -p $(PACKAGE)/dist $(PACKAGE)/shared/completion
	@SOURCE_DATE_EPOCH=$(PACKAGE_TIME) $(GO) run -buildvcs=false -ldflags='$(VERSION_FLAG)' ./cmd/internal/manpages $(PACKAGE)/shared/man
	@cd $(PACKAGE)/shared/completion && for shell in bash:tranche.bash zsh:_tranche fish:tranche.fish; do \
		$(ABSBUILD)/bin/tranche completion $${shell%:*} >$${shell#*:} || exit 1; done
	@SOURCE_DATE_EPOCH=$(PACKAGE_TIME) packaging/build amd64 $(BUILD) '$(VERSION)' strip $(PACKAGE)/dist

.PHONY: package-test
package-test: ## Install, upgrade, remove and purge the packages in fresh Debian and RPM roots, also under systemd, roll them out with Nomad, and compare two builds
	@scripts/need-root "make package-test"
	@scripts/install-packages debootstrap systemd-container rpm qemu-user-static gcc-aarch64-linux-gnu libc6-dev-arm64-cross runc busybox-static
	@$(MAKE) --no-print-directory package sim $(BUILD)/e2e/sandbox $(PINNED_NOMAD)
	@packaging/tests/package_test.sh $(BUILD)
