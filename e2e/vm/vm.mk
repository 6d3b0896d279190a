# Tests in virtual machines. The top GNUmakefile includes this file.

VM := $(BUILD)/vm
VM_PACKAGES := qemu-system-x86 mmdebstrap e2fsprogs busybox-static

.PHONY: test-vm
test-vm: test-vm-setup ## Run Tranche under systemd and cgroup v2 in virtual machines, through reboots and power cuts
	@echo "==> tests in virtual machines"
	@cd e2e/vm && TRANCHE_BUILD=$(ABSBUILD) $(ABSBUILD)/vm/vm.test -test.v -test.timeout 60m $(if $(VM_RUN),-test.run '$(VM_RUN)')

.PHONY: test-vm-short
test-vm-short: test-vm-setup ## Boot one virtual machine with one job in it
	@echo "==> a job in a virtual machine"
	@cd e2e/vm && TRANCHE_BUILD=$(ABSBUILD) $(ABSBUILD)/vm/vm.test -test.v -test.short -test.timeout 30m

.PHONY: test-vm-setup
test-vm-setup:
	@scripts/need-root "make test-vm"
	@scripts/install-packages $(VM_PACKAGES)
	@$(MAKE) --no-print-directory package-amd64 sim $(BUILD)/e2e/gpu-probe $(BUILD)/e2e/load $(PINNED_NOMAD)
	@$(GO) test -c -tags e2e -o $(VM)/vm.test ./e2e/vm
