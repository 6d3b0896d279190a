# The shadow libraries and their tests. The top GNUmakefile includes this file; it also works alone, from the repository's root:
#   make -f intercept/intercept.mk shadow shadow-test
CC ?= gcc
GO ?= go
BUILD ?= build

# What the build writes into all programs and libraries. The file changes only when the version does.
VERSION := $(shell scripts/version)
ifneq ($(VERSION),$(file <$(BUILD)/version))
$(shell mkdir -p $(BUILD))
$(file >$(BUILD)/version,$(VERSION))
endif

INTERCEPT := intercept
INTERCEPT_BUILD := $(BUILD)/intercept
# initial-exec: in a static program that calls dlopen, glibc's general model for thread-local variables crashes.
INTERCEPT_CFLAGS := -std=c11 -D_GNU_SOURCE -Wall -Wextra -Werror -O2 -g -fPIC -fvisibility=hidden -fno-plt \
    -ftls-model=initial-exec -ffile-prefix-map=$(CURDIR)=. -I$(INTERCEPT)

INTERCEPT_HEADERS := $(wildcard $(INTERCEPT)/*/*.h)
SHADOW_REGION := $(addprefix region/,region limit file teardown read tags share)
SHADOW_COMMON := $(SHADOW_REGION) region/claims region/open system/explain driver/real
SHADOW_IMAGE := $(addprefix image/,image ptx)
SHADOW_STATE := $(addprefix state/,process table charge gpus visible contexts)
SHADOW_MEMORY := $(addprefix memory/,objects allocations blocks further borrowed physical exports pools holes streams)
SHADOW_CONTEXT := $(addprefix context/,lifecycle work extra modules libraries variables kernels)
SHADOW_CUDA := $(SHADOW_COMMON) driver/cuda_real $(SHADOW_IMAGE) $(SHADOW_STATE) $(SHADOW_MEMORY) $(SHADOW_CONTEXT) \
    $(addprefix cuda/,array checkpoint context graph ipc library memory module pool procaddr refused sparse vmm)
# Compute shares.
SHADOW_TURNS := $(addprefix governor/,page queues connection passage turn agent launches)
SHADOW_GOVERNOR := $(SHADOW_TURNS) governor/contexts
SHADOW_SAME := $(SHADOW_COMMON) $(SHADOW_IMAGE) state/table
SHADOW_GOVERNED := $(SHADOW_SAME) $(addprefix governed/,$(filter-out $(SHADOW_SAME),$(SHADOW_CUDA)) $(SHADOW_GOVERNOR))
# Compute shares alone.
SHADOW_COMPUTE_SAME := region/limit region/claims system/explain driver/real
SHADOW_COMPUTE := $(SHADOW_COMPUTE_SAME) $(addprefix compute/,driver/cuda_real cuda/procaddr compute/contexts \
    $(addprefix state/,process gpus visible) $(SHADOW_TURNS))
SHADOW_NVML := $(SHADOW_COMMON) $(addprefix nvml/,nvml visible members memory processes usage)

# -z nodelete: the state of a process outlives dlclose. libdl.so.2 has dlsym before glibc 2.34, see driver/real.c.
SHADOW_LDFLAGS := -shared -Wl,-z,defs -Wl,-z,nodelete -Wl,-z,now -Wl,-z,relro -Wl,--no-as-needed

.PHONY: shadow
shadow: $(BUILD)/lib/libcuda.so.1 $(BUILD)/lib/libnvidia-ml.so.1 $(addprefix $(BUILD)/lib/,governed/libcuda.so.1 compute/libcuda.so.1)

$(INTERCEPT_BUILD)/%.o: $(INTERCEPT)/%.c $(INTERCEPT_HEADERS) $(INTERCEPT)/intercept.mk
	@mkdir -p $(@D)
	$(CC) $(INTERCEPT_CFLAGS) -c -o $@ $<

$(INTERCEPT_BUILD)/governed/%.o: $(INTERCEPT)/%.c $(INTERCEPT_HEADERS) $(INTERCEPT)/intercept.mk
	@mkdir -p $(@D)
	$(CC) $(INTERCEPT_CFLAGS) -DTRANCHE_GOVERNED -c -o $@ $<

$(INTERCEPT_BUILD)/compute/%.o: $(INTERCEPT)/%.c $(INTERCEPT_HEADERS) $(INTERCEPT)/intercept.mk
	@mkdir -p $(@D)
	$(CC) $(INTERCEPT_CFLAGS) -DTRANCHE_GOVERNED -DTRANCHE_COMPUTE_ONLY -c -o $@ $<

# An empty library whose SONAME is the path of the driver's library, relative to the shadow's directory. That file is not named
# libcuda.so.1, or LD_LIBRARY_PATH with its directory would bypass the shadow.
$(INTERCEPT_BUILD)/driver-%.so: $(INTERCEPT)/intercept.mk
	@mkdir -p $(@D)
	$(CC) -shared -nostdlib -Wl,-soname,'$$ORIGIN/.tranche/$(@F)' -o $@ -x c /dev/null

# The version, in a section of its own.
$(INTERCEPT_BUILD)/version.o: $(BUILD)/version
	@mkdir -p $(@D)
	echo '.section .tranche.version,"a"; .string "$(VERSION)"; .section .note.GNU-stack,"",@progbits' | \
	    $(CC) -c -x assembler -o $@ -

define shadow_library
$(BUILD)/lib/$(3)$(1): $$(addprefix $(INTERCEPT_BUILD)/,$$(addsuffix .o,$(2) version)) $(INTERCEPT_BUILD)/driver-$(1:.1=)
	@mkdir -p $$(@D)
	$$(CC) $$(SHADOW_LDFLAGS) -Wl,-soname,$(1) -o $$@ $(INTERCEPT_BUILD)/driver-$(1:.1=) \
	    $$(filter %.o,$$^) -l:libdl.so.2
endef
$(eval $(call shadow_library,libcuda.so.1,$(SHADOW_CUDA)))
$(eval $(call shadow_library,libnvidia-ml.so.1,$(SHADOW_NVML)))
$(eval $(call shadow_library,libcuda.so.1,$(SHADOW_GOVERNED),governed/))
$(eval $(call shadow_library,libcuda.so.1,$(SHADOW_COMPUTE),compute/))

# --- tests ---

INTERCEPT_TESTS := $(INTERCEPT)/tests
INTERCEPT_TEST_BUILD := $(INTERCEPT_BUILD)/tests
INTERCEPT_TEST_CFLAGS := -std=c11 -D_GNU_SOURCE -DREGION_TEST -Wall -Wextra -Werror -O1 -g -fno-omit-frame-pointer -I$(INTERCEPT)
INTERCEPT_ASAN := -fsanitize=address,undefined -fno-sanitize-recover=undefined
INTERCEPT_TSAN := -fsanitize=thread
INTERCEPT_TEST_SOURCES := $(wildcard $(INTERCEPT)/*/*.[ch]) \
    $(wildcard e2e/simgpu/cuda/image/*.[ch])

INTERCEPT_REGION_TEST := $(addprefix $(INTERCEPT_TESTS)/,region_steps.c check.c fixture.c) $(SHADOW_REGION:%=$(INTERCEPT)/%.c)
INTERCEPT_region_test := $(INTERCEPT_TESTS)/region_test.c $(INTERCEPT_REGION_TEST)
INTERCEPT_region_share_test := $(INTERCEPT_TESTS)/region_share_test.c $(INTERCEPT_REGION_TEST)
INTERCEPT_region_fault_test := $(INTERCEPT_TESTS)/region_fault_test.c $(INTERCEPT_REGION_TEST)
INTERCEPT_region_threads := $(addprefix $(INTERCEPT_TESTS)/,region_threads.c check.c fixture.c) $(SHADOW_REGION:%=$(INTERCEPT)/%.c)
# The shadow's sources, with the fake driver in place of driver/real.c.
INTERCEPT_shadow_test := $(addprefix $(INTERCEPT_TESTS)/,shadow_test.c objects_test.c fake_driver.c fake_streams.c fake_graphs.c no_steps.c check.c fixture.c) \
    $(addprefix $(INTERCEPT)/,$(addsuffix .c,$(filter-out driver/real,$(SHADOW_CUDA))))
# The governed library's sources, with a driver and a governor for tests.
INTERCEPT_governor_test := -DTRANCHE_GOVERNED \
    $(addprefix $(INTERCEPT_TESTS)/,governor_test.c governor_double.c governor_driver.c no_steps.c check.c fixture.c) \
    $(addprefix $(INTERCEPT)/,$(addsuffix .c,$(filter-out driver/real,$(SHADOW_CUDA)) $(SHADOW_GOVERNOR)))
INTERCEPT_compute_test := -DTRANCHE_GOVERNED -DTRANCHE_COMPUTE_ONLY \
    $(addprefix $(INTERCEPT_TESTS)/,governor_test.c governor_double.c governor_driver.c check.c fixture.c) \
    $(patsubst %,$(INTERCEPT)/%.c,$(patsubst compute/%,%,$(filter-out driver/real,$(SHADOW_COMPUTE))))
# With the simulated driver's reader of images.
INTERCEPT_image_test := $(addprefix $(INTERCEPT_TESTS)/,image_test.c image_driver.c check.c) \
    $(SHADOW_IMAGE:%=$(INTERCEPT)/%.c) $(INTERCEPT)/system/explain.c \
    -Ie2e/simgpu -Ie2e/simgpu/include $(addprefix e2e/simgpu/cuda/image/,image.c image_cubin.c image_ptx.c unpack.c)

$(INTERCEPT_TEST_BUILD)/%-asan: $(INTERCEPT_TEST_SOURCES)
	@mkdir -p $(@D)
	$(CC) $(INTERCEPT_TEST_CFLAGS) $(INTERCEPT_ASAN) -o $@ $(INTERCEPT_$*) -pthread

$(INTERCEPT_TEST_BUILD)/%-tsan: $(INTERCEPT_TEST_SOURCES)
	@mkdir -p $(@D)
	$(CC) $(INTERCEPT_TEST_CFLAGS) $(INTERCEPT_TSAN) -o $@ $(INTERCEPT_$*) -pthread

# Without sanitizers: it steps through the lock's instructions.
$(INTERCEPT_TEST_BUILD)/lock_test: $(INTERCEPT_TESTS)/lock_test.c $(INTERCEPT_TESTS)/check.c $(INTERCEPT_TESTS)/check.h $(INTERCEPT)/system/lock.h
	@mkdir -p $(@D)
	$(CC) $(INTERCEPT_TEST_CFLAGS) -o $@ $(filter %.c,$^) -pthread

# Without sanitizers: its threads are coroutines.
$(INTERCEPT_TEST_BUILD)/gate_test: $(INTERCEPT_TESTS)/gate_test.c $(INTERCEPT_TESTS)/check.c $(INTERCEPT_TESTS)/check.h $(INTERCEPT)/system/gate.h $(INTERCEPT)/system/lock.h
	@mkdir -p $(@D)
	$(CC) $(INTERCEPT_TEST_CFLAGS) -o $@ $(filter %.c,$^) -pthread

$(INTERCEPT_TEST_BUILD)/layout: $(INTERCEPT_TESTS)/layout.c $(INTERCEPT)/region/region.h
	@mkdir -p $(@D)
	$(CC) $(INTERCEPT_TEST_CFLAGS) -o $@ $<

# Compares the declarations of CUDA with those of an installed toolkit, which CUDA_HOME may name. Skipped if there is none.
.PHONY: shadow-cuda-headers
shadow-cuda-headers:
	CC='$(CC)' $(GO) test -count=1 -v -run TestDeclarationsAreNVIDIAs ./$(INTERCEPT_TESTS)/headers

# Compares the declarations of NVML with NVIDIA's, which come with go-nvml.
.PHONY: shadow-nvml-headers
shadow-nvml-headers:
	$(GO) mod download github.com/NVIDIA/go-nvml
	CC='$(CC)' $(INTERCEPT_TESTS)/nvml_headers_test.sh \
	    "$$($(GO) list -m -f '{{.Dir}}' github.com/NVIDIA/go-nvml)/gen/nvml/nvml.h"

# Processes end while their agent's thread runs, which the leak sanitizer cannot stop; children start threads.
TURNS_TEST := ASAN_OPTIONS=detect_leaks=0 TSAN_OPTIONS=die_after_fork=0:atexit_sleep_ms=0 $(INTERCEPT_TEST_BUILD)

# Only the tests that start, kill and stop processes; stopped ones stay so for a minute.
.PHONY: shadow-life
shadow-life: shadow $(if $(SIM_LIB),sim)
	CC='$(CC)' $(INTERCEPT_TESTS)/life_test.sh $(BUILD) 60

# SHADOW_TEST_SEED repeats a failed random test. The last tests need the simulated GPU, which the top GNUmakefile builds.
.PHONY: shadow-test
shadow-test: shadow $(if $(SIM_LIB),sim) $(addprefix $(INTERCEPT_TEST_BUILD)/,layout lock_test gate_test region_test-asan region_share_test-asan region_fault_test-asan image_test-asan shadow_test-asan governor_test-asan compute_test-asan) shadow-nvml-headers shadow-cuda-headers
	$(INTERCEPT_TEST_BUILD)/lock_test
	$(INTERCEPT_TEST_BUILD)/gate_test
	$(INTERCEPT_TEST_BUILD)/region_test-asan $(SHADOW_TEST_SEED)
	$(INTERCEPT_TEST_BUILD)/region_share_test-asan $(SHADOW_TEST_SEED)
	$(INTERCEPT_TEST_BUILD)/region_fault_test-asan
	$(INTERCEPT_TEST_BUILD)/image_test-asan $(SHADOW_TEST_SEED)
	$(INTERCEPT_TEST_BUILD)/shadow_test-asan $(SHADOW_TEST_SEED)
	$(TURNS_TEST)/governor_test-asan
	$(TURNS_TEST)/compute_test-asan
	CC='$(CC)' $(INTERCEPT_TESTS)/loader_test.sh $(BUILD)
	CC='$(CC)' $(INTERCEPT_TESTS)/life_test.sh $(BUILD)
	$(INTERCEPT_TESTS)/limit_test.sh $(BUILD)
	CC='$(CC)' $(INTERCEPT_TESTS)/compute_test.sh $(BUILD)
	CC='$(CC)' $(INTERCEPT_TESTS)/nvml_test.sh $(BUILD)
	CC='$(CC)' e2e/cudart/replay_test.sh $(BUILD)
	CC='$(CC)' e2e/cudart/replay_test.sh $(BUILD) governed
	CC='$(CC)' e2e/cudart/replay_test.sh $(BUILD) compute

.PHONY: shadow-tsan
shadow-tsan: $(addprefix $(INTERCEPT_TEST_BUILD)/,region_threads-tsan shadow_test-tsan governor_test-tsan compute_test-tsan)
	$(INTERCEPT_TEST_BUILD)/region_threads-tsan $(SHADOW_TEST_SEED)
	$(INTERCEPT_TEST_BUILD)/shadow_test-tsan 1 test_threads test_first_calls_of_many_threads test_contexts test_full_blocks_of_many_threads
	$(TURNS_TEST)/governor_test-tsan
	$(TURNS_TEST)/compute_test-tsan

# --- benchmark ---

.PHONY: shadow-bench-tool
shadow-bench-tool: $(BUILD)/bench/callbench

$(BUILD)/bench/callbench: $(INTERCEPT)/bench.c $(INTERCEPT)/driver/cuda_api.h
	@mkdir -p $(@D)
	$(CC) -std=c11 -D_GNU_SOURCE -Wall -Wextra -Werror -O2 -g -o $@ $< -ldl -pthread
