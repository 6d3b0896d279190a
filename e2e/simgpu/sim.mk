# The simulated GPU: build/sim/lib/libcuda.so.1, build/sim/bin/simgpu, and their tests.
# The top GNUmakefile includes it; it is good by itself too, from the root of the repository:
# make -f e2e/simgpu/sim.mk sim sim-test

CC ?= gcc
BUILD ?= build

SIM := e2e/simgpu
SIM_LIB := $(BUILD)/sim/lib/libcuda.so.1
SIM_TOOL := $(BUILD)/sim/bin/simgpu

SIM_STATE_SRC := $(addprefix $(SIM)/,state.c sums.c shared_objects.c shared_contents.c record.c turns.c faults.c \
	health.c orders.c processes.c topology.c visible.c sharing.c \
	memory_limits.c charges.c cgroup.c \
	$(addprefix mig/,mig.c mig_profiles.c mig_device.c mig_events.c mig_nodes.c uuid5.c))
# MPS has a part in the driver: messages and settings.
SIM_CUDA_SRC := $(wildcard $(SIM)/cuda/*.c $(SIM)/cuda/*/*.c) $(addprefix $(SIM)/mps/,message.c setting.c)
SIM_TOOL_SRC := $(wildcard $(SIM)/tool/*.c)
SIM_TEST_SRC := $(wildcard $(SIM)/tests/*.c)

# initial-exec: variables of a thread work also in a static program that loads the driver by dlopen, where glibc's general
# model crashes.
SIM_CFLAGS := -std=c11 -D_GNU_SOURCE -O2 -g -Wall -Wextra -Werror -pthread -fPIC -fvisibility=hidden -fno-ipa-icf \
	-ftls-model=initial-exec -I$(SIM) -I$(SIM)/include -MMD -MP
SIM_SANITIZE := -O1 -fno-omit-frame-pointer -fsanitize=address,undefined -fno-sanitize-recover=all

SIM_OBJ := $(BUILD)/sim/obj/release
SIM_ASAN_OBJ := $(BUILD)/sim/obj/asan
# The same library once more, built with the sanitizers, for the tests.
SIM_ASAN_LIB := $(BUILD)/sim/asan/lib/libcuda.so.1
SIM_ASAN_TOOL := $(BUILD)/sim/asan/bin/simgpu
SIM_TEST := $(BUILD)/sim/asan/bin/sim-test

sim_objects = $(patsubst $(SIM)/%.c,$(1)/%.o,$(2))

.PHONY: sim sim-test

sim: $(SIM_LIB) $(SIM_TOOL) ## Build the simulated GPU

$(SIM_OBJ)/%.o: $(SIM)/%.c
	@mkdir -p $(@D)
	$(CC) $(SIM_CFLAGS) -c -o $@ $<

$(SIM_ASAN_OBJ)/%.o: $(SIM)/%.c
	@mkdir -p $(@D)
	$(CC) $(SIM_CFLAGS) $(SIM_SANITIZE) -c -o $@ $<

# The driver's own calls among its functions must stay its own, whoever stands in front of it: -Bsymbolic. It depends on
# libdl.so.2 as NVIDIA's does, so that the shadow, which needs it too, is not charged with loading it.
$(SIM_LIB): $(call sim_objects,$(SIM_OBJ),$(SIM_CUDA_SRC) $(SIM_STATE_SRC))
	@mkdir -p $(@D)
	$(CC) $(SIM_CFLAGS) -shared -Wl,-soname,$(@F) -Wl,-z,defs -Wl,-Bsymbolic -Wl,-z,nodelete -Wl,--no-as-needed -o $@ $^ \
	    -l:libdl.so.2

$(SIM_ASAN_LIB): $(call sim_objects,$(SIM_ASAN_OBJ),$(SIM_CUDA_SRC) $(SIM_STATE_SRC))
	@mkdir -p $(@D)
	$(CC) $(SIM_CFLAGS) $(SIM_SANITIZE) -shared -Wl,-soname,$(@F) -Wl,-Bsymbolic -Wl,-z,nodelete -o $@ $^

$(SIM_TOOL): $(call sim_objects,$(SIM_OBJ),$(SIM_TOOL_SRC) $(SIM_STATE_SRC))
	@mkdir -p $(@D)
	$(CC) $(SIM_CFLAGS) -o $@ $^

$(SIM_ASAN_TOOL): $(call sim_objects,$(SIM_ASAN_OBJ),$(SIM_TOOL_SRC) $(SIM_STATE_SRC))
	@mkdir -p $(@D)
	$(CC) $(SIM_CFLAGS) $(SIM_SANITIZE) -o $@ $^

$(SIM_TEST): $(call sim_objects,$(SIM_ASAN_OBJ),$(SIM_TEST_SRC) $(SIM_STATE_SRC)) $(SIM_ASAN_LIB)
	@mkdir -p $(@D)
	$(CC) $(SIM_CFLAGS) $(SIM_SANITIZE) -o $@ $(filter %.o,$^) $(SIM_ASAN_LIB) \
		-Wl,-rpath,'$$ORIGIN/../lib' -ldl

include $(SIM)/mps/mps.mk

sim-test: $(SIM_TEST) $(SIM_ASAN_TOOL) $(MPS_ASAN_PROGRAMS)
	$(SIM_TEST) $(SIM)/topologies $(SIM_ASAN_TOOL)

-include $(SIM)/nvml/nvml.mk
-include $(shell find $(BUILD)/sim/obj/release $(BUILD)/sim/obj/asan -name '*.d' 2>/dev/null)
