# The simulated NVML: build/sim/lib/libnvidia-ml.so.1 and build/sim/bin/nvidia-smi. The simulator's makefile includes
# it; it is good by itself too, from the root of the repository:
# make -f e2e/simgpu/nvml/nvml.mk nvml-sim-test

CC ?= gcc
GO ?= go
BUILD ?= build

NVML_SIM := e2e/simgpu/nvml
NVML_OBJ := $(BUILD)/sim/obj/nvml
NVML_LIB := $(BUILD)/sim/lib/libnvidia-ml.so.1
NVML_SMI := $(BUILD)/sim/bin/nvidia-smi
NVML_TEST := $(BUILD)/sim/test/nvml-test
NVML_TSAN_TEST := $(BUILD)/sim/test/nvml-test-tsan
# What the Go tests start: a process that holds memory through the CUDA driver, and one that orders faults.
NVML_HOLD := $(BUILD)/sim/test/nvml-hold
NVML_ORDER := $(BUILD)/sim/test/nvml-order
NVML_HEADER := $(NVML_OBJ)/include/nvml.h

NVML_LIB_SRC := $(addprefix $(NVML_SIM)/,library.c device.c memory.c telemetry.c process.c accounting.c events.c mig.c \
	mig_gpu_instance.c mig_compute_instance.c ecc.c call.c)
# The simulator's makefile names the sources of the state, where it has included this one.
NVML_STATE_SRC := $(or $(SIM_STATE_SRC),$(addprefix e2e/simgpu/,state.c sums.c shared_objects.c \
	shared_contents.c record.c turns.c faults.c health.c orders.c processes.c topology.c visible.c sharing.c \
	memory_limits.c charges.c cgroup.c \
	$(addprefix mig/,mig.c mig_profiles.c mig_device.c mig_events.c mig_nodes.c uuid5.c)))
NVML_HEADERS := $(wildcard $(NVML_SIM)/*.h) $(wildcard e2e/simgpu/*.h e2e/simgpu/mig/*.h)

# Names that NVML has deprecated are what programs still call.
NVML_CFLAGS := -std=c11 -D_GNU_SOURCE -O2 -g -Wall -Wextra -Werror -Wno-deprecated-declarations -pthread \
	-I e2e/simgpu -isystem $(NVML_OBJ)/include
NVML_SANITIZE := -O1 -fno-omit-frame-pointer -fsanitize=address,undefined -fno-sanitize-recover=all
# What a test ordered for a call is obeyed at the head of every function (call.c).
NVML_INSTRUMENT := -finstrument-functions
NVML_TSAN := -O1 -fno-omit-frame-pointer -fsanitize=thread

.PHONY: nvml-sim nvml-sim-test sim

nvml-sim: $(NVML_LIB) $(NVML_SMI) $(NVML_HOLD) $(NVML_ORDER)

# Whoever builds the simulated GPU builds this with it.
sim: nvml-sim

# NVIDIA's declarations come with go-nvml; a fresh clone has not downloaded that module yet.
$(NVML_HEADER): go.mod
	@mkdir -p $(@D)
	$(GO) mod download github.com/NVIDIA/go-nvml
	install -m 0644 "$$($(GO) list -m -f '{{.Dir}}' github.com/NVIDIA/go-nvml)/pkg/nvml/nvml.h" $@

$(NVML_OBJ)/%.o: $(NVML_SIM)/%.c $(NVML_HEADERS) $(NVML_HEADER)
	$(CC) $(NVML_CFLAGS) $(NVML_INSTRUMENT) -fPIC -fvisibility=hidden -c -o $@ $<

# Every function of nvml.h that is written nowhere in the library answers that it is not supported, as a driver answers
# for a GPU without the feature: a program that looks it up finds it, as it would in the driver's own library.
NVML_ANSWER := library_ready() ? UNINITIALIZED : NOT_SUPPORTED

$(NVML_OBJ)/unsupported.c: $(NVML_LIB_SRC:$(NVML_SIM)/%.c=$(NVML_OBJ)/%.o) $(NVML_SIM)/nvml.mk
	@{ echo 'enum { UNINITIALIZED = 1, NOT_SUPPORTED = 3 };'; echo 'int library_ready(void);'; \
	   sed -nE 's/.*DECLDIR +(nvml[A-Za-z0-9_]+) *\(.*/\1/p' $(NVML_HEADER) | sort -u | \
	   comm -23 - <(nm --defined-only $(filter %.o,$^) | awk '$$2 == "T" {print $$3}' | sort -u) | \
	   sed 's/.*/__attribute__((visibility("default"))) int &(void);\nint &(void) {\n    return $(NVML_ANSWER);\n}/'; \
	} > $@
$(NVML_OBJ)/unsupported.c: SHELL := /bin/bash

$(NVML_OBJ)/unsupported.o: $(NVML_OBJ)/unsupported.c
	$(CC) $(NVML_CFLAGS) $(NVML_INSTRUMENT) -fPIC -fvisibility=hidden -c -o $@ $<

# As in the driver's own library, a call from one of its functions to another is not to lead to whoever stands in front.
$(NVML_LIB): $(NVML_LIB_SRC:$(NVML_SIM)/%.c=$(NVML_OBJ)/%.o) $(NVML_OBJ)/unsupported.o $(NVML_STATE_SRC) $(NVML_HEADERS)
	@mkdir -p $(@D)
	$(CC) $(NVML_CFLAGS) -fPIC -fvisibility=hidden -shared -Wl,-soname,$(@F) -Wl,-z,defs -Wl,-Bsymbolic \
		-o $@ $(filter %.o %.c,$^)

$(NVML_SMI): $(addprefix $(NVML_SIM)/,smi.c smi_main.c smi_mig.c smi_limits.c smi_nvml.c smi.h smi_nvml.h) $(NVML_HEADER)
	@mkdir -p $(@D)
	$(CC) $(NVML_CFLAGS) -o $@ $(filter %.c,$^) -ldl

$(NVML_HOLD): $(NVML_SIM)/consumers/testdata/hold.c $(NVML_HEADER)
	@mkdir -p $(@D)
	$(CC) $(NVML_CFLAGS) -o $@ $< -ldl

$(NVML_ORDER): $(NVML_SIM)/consumers/testdata/order.c $(NVML_STATE_SRC) $(NVML_HEADERS) $(NVML_HEADER)
	@mkdir -p $(@D)
	$(CC) $(NVML_CFLAGS) -o $@ $(filter %.c,$^)

# The tests are one program with the library, whose functions it exports for their names to be found.
NVML_TEST_FLAGS := $(NVML_INSTRUMENT) -rdynamic $(addprefix -finstrument-functions-exclude-file-list=,nvml_test \
	nvml_mig_test.c state_local.h simgpu/mig $(NVML_STATE_SRC))
NVML_TEST_SRC := $(NVML_SIM)/nvml_test.c $(NVML_SIM)/nvml_mig_test.c $(NVML_LIB_SRC) $(NVML_OBJ)/unsupported.c \
	$(NVML_STATE_SRC)

$(NVML_TEST): $(NVML_TEST_SRC) $(NVML_HEADERS)
	@mkdir -p $(@D)
	$(CC) $(NVML_CFLAGS) $(NVML_TEST_FLAGS) $(NVML_SANITIZE) -o $@ $(filter %.c,$^)

$(NVML_TSAN_TEST): $(NVML_TEST_SRC) $(NVML_HEADERS)
	@mkdir -p $(@D)
	$(CC) $(NVML_CFLAGS) $(NVML_TEST_FLAGS) $(NVML_TSAN) -o $@ $(filter %.c,$^)

# ThreadSanitizer's shadow memory does not fit the addresses that newer kernels give at random.
nvml-sim-test: nvml-sim $(NVML_TEST) $(NVML_TSAN_TEST)
	$(NVML_TEST)
	setarch -R $(NVML_TSAN_TEST)
