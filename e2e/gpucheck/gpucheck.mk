# The checks on a real GPU, as a bundle that needs nothing but the machine with the GPU, and the test that it works.
# The top GNUmakefile includes this file.
#   make gpu-check         build/gpu-check.tar.gz, and the same as the folder build/gpu-check
#   make gpu-check-test    runs the bundle against the simulated GPU
CC ?= gcc
GO ?= go
BUILD ?= build

GPUCHECK := e2e/gpucheck
GPUCHECK_BUNDLE := $(BUILD)/gpu-check
GPUCHECK_GO := $(shell find $(GPUCHECK) claim device/processes governor internal runtime/shadow -name '*.go' -not -name '*_test.go') \
	go.mod go.sum
GPUCHECK_PYTHON := $(wildcard $(GPUCHECK)/python/*.py)
GPUCHECK_PROGRAMS := probe watch callbench
GPUCHECK_PROBE_SRC := $(filter-out %/watch.c,$(wildcard $(GPUCHECK)/probe/*.c))

# What moved with glibc 2.34 is asked for under its old version, and the start files are our own: a program that is built
# here runs with glibc 2.17. See start.S and old_glibc.h.
GPUCHECK_CFLAGS := -std=c11 -D_GNU_SOURCE -Wall -Wextra -Werror -O2 -fPIE -include $(GPUCHECK)/probe/old_glibc.h
GPUCHECK_LDFLAGS := -pie -nostartfiles -Wl,-z,relro -Wl,-z,now $(GPUCHECK)/probe/start.S
GPUCHECK_LIBS := -l:libdl.so.2 -l:libpthread.so.0

$(GPUCHECK_BUNDLE)/bin/probe: $(GPUCHECK_PROBE_SRC) $(wildcard $(GPUCHECK)/probe/*.[hS]) $(GPUCHECK)/gpucheck.mk
	@mkdir -p $(@D)
	$(CC) $(GPUCHECK_CFLAGS) $(GPUCHECK_LDFLAGS) -o $@ $(GPUCHECK_PROBE_SRC) $(GPUCHECK_LIBS)

$(GPUCHECK_BUNDLE)/bin/watch: $(addprefix $(GPUCHECK)/probe/,watch.c talk.c talk.h start.S old_glibc.h) $(GPUCHECK)/gpucheck.mk
	@mkdir -p $(@D)
	$(CC) $(GPUCHECK_CFLAGS) $(GPUCHECK_LDFLAGS) -o $@ $(filter %.c,$^) $(GPUCHECK_LIBS)

# A two hundredth of the calls that `make bench` makes: a real driver's allocation takes a hundred times as long.
$(GPUCHECK_BUNDLE)/bin/callbench: intercept/bench.c intercept/driver/cuda_api.h $(addprefix $(GPUCHECK)/probe/,start.S old_glibc.h) \
		$(GPUCHECK)/gpucheck.mk
	@mkdir -p $(@D)
	$(CC) $(GPUCHECK_CFLAGS) -DBATCHES=50 -DCALLS=20 $(GPUCHECK_LDFLAGS) -o $@ $< $(GPUCHECK_LIBS)

$(GPUCHECK_BUNDLE)/gpu-check: $(GPUCHECK_GO)
	@mkdir -p $(@D)
	CGO_ENABLED=0 $(GO) build -buildvcs=false -trimpath -ldflags '-s -w' -o $@ ./$(GPUCHECK)

# The shadow libraries, and the names of what they stand in front of.
GPUCHECK_LIBRARIES := $(addprefix lib/,libcuda.so.1 libnvidia-ml.so.1 governed/libcuda.so.1)

$(GPUCHECK_BUNDLE)/symbols: $(GPUCHECK_LIBRARIES:%=$(BUILD)/%)
	for library in $(GPUCHECK_LIBRARIES); do install -m 0755 -D $(BUILD)/$$library $(GPUCHECK_BUNDLE)/$$library || exit 1; done
	nm -D --defined-only --format=posix $< | cut -d' ' -f1 | sort >$@

$(GPUCHECK_BUNDLE)/python/%.py: $(GPUCHECK)/python/%.py
	@mkdir -p $(@D)
	install -m 0644 $< $@

GPUCHECK_FILES := $(GPUCHECK_PROGRAMS:%=$(GPUCHECK_BUNDLE)/bin/%) $(GPUCHECK_BUNDLE)/gpu-check $(GPUCHECK_BUNDLE)/symbols \
	$(GPUCHECK_PYTHON:$(GPUCHECK)/%=$(GPUCHECK_BUNDLE)/%)

$(GPUCHECK_BUNDLE).tar.gz: $(GPUCHECK_FILES) $(GPUCHECK)/check-bundle
	tar -C $(BUILD) --owner=0 --group=0 --numeric-owner -czf $@ $(patsubst $(BUILD)/%,%,$(GPUCHECK_FILES)) \
		$(GPUCHECK_LIBRARIES:%=gpu-check/%)
	$(GPUCHECK)/check-bundle $(GPUCHECK_BUNDLE) $@

# With programs of CUDA's runtime library as well, which is linked into them: for a machine of one's own, and not in make test.
GPUCHECK_CUDART := $(addprefix $(GPUCHECK_BUNDLE)/bin/cudart-,11.8 12.4) $(GPUCHECK_BUNDLE)/lib/trace.so

$(GPUCHECK_BUNDLE)/bin/cudart-%: $(addprefix $(GPUCHECK)/cudart/,fill.cu compile) scripts/nvcc-root
	$(GPUCHECK)/cudart/compile $* $@ $(BUILD)

$(GPUCHECK_BUNDLE)/lib/trace.so: $(GPUCHECK)/cudart/trace.c
	@mkdir -p $(@D)
	$(CC) -std=c11 -D_GNU_SOURCE -Wall -Wextra -Werror -O2 -fPIC -shared -o $@ $< -l:libdl.so.2 -l:libpthread.so.0

.PHONY: gpu-check-cudart
gpu-check-cudart: $(GPUCHECK_FILES) $(GPUCHECK_CUDART) ## The same with programs of NVIDIA's runtime library (large downloads)
	tar -C $(BUILD) --owner=0 --group=0 --numeric-owner -Sczf $(GPUCHECK_BUNDLE)-cudart.tar.gz gpu-check
	$(GPUCHECK)/check-bundle $(GPUCHECK_BUNDLE) $(GPUCHECK_BUNDLE)-cudart.tar.gz
	@echo "Copy $(GPUCHECK_BUNDLE)-cudart.tar.gz to a machine with a GPU, unpack it there, and run gpu-check/gpu-check."

# With llama.cpp as well.
GPUCHECK_LLAMA := $(addprefix $(GPUCHECK_BUNDLE)/llama/,libggml-cuda.so llama)

# More than one file, of which the last one stands for all.
$(GPUCHECK_BUNDLE)/llama/libggml-cuda.so: $(GPUCHECK)/llama/fetch $(GPUCHECK)/llama/prune/main.go
	$< $(@D)
	touch $@

$(GPUCHECK_BUNDLE)/llama/llama: $(GPUCHECK)/llama/llama.c $(addprefix $(GPUCHECK)/probe/,talk.c talk.h)
	@mkdir -p $(@D)
	$(CC) -std=c11 -D_GNU_SOURCE -Wall -Wextra -Werror -O2 -o $@ $(filter %.c,$^) -ldl

.PHONY: gpu-check-llama
gpu-check-llama: $(GPUCHECK_FILES) $(GPUCHECK_LLAMA) ## The same with llama.cpp (downloads 140 MB)
	tar -C $(BUILD) --owner=0 --group=0 --numeric-owner -Sczf $(GPUCHECK_BUNDLE)-llama.tar.gz gpu-check
	$(GPUCHECK)/check-bundle $(GPUCHECK_BUNDLE) $(GPUCHECK_BUNDLE)-llama.tar.gz
	@echo "Copy $(GPUCHECK_BUNDLE)-llama.tar.gz to a machine with a GPU, unpack it there, and run gpu-check/gpu-check."

.PHONY: gpu-check-llama-test
gpu-check-llama-test: gpu-check-llama sim
	TRANCHE_BUILD=$(abspath $(BUILD)) GPU_CHECK=gpu-check-llama $(GO) test -count=1 -tags gpucheck -run TestLlama ./$(GPUCHECK)

.PHONY: gpu-check-cudart-test
gpu-check-cudart-test: gpu-check-cudart sim
	scripts/nvidia-packages $(BUILD)/nvidia/550 trixie libcuda1
	TRANCHE_BUILD=$(abspath $(BUILD)) GPU_CHECK=gpu-check-cudart $(GO) test -count=1 -tags gpucheck -run TestCudart ./$(GPUCHECK)

.PHONY: gpu-check
gpu-check: $(GPUCHECK_BUNDLE).tar.gz ## Make the bundle that checks everything on a real GPU
	@echo "Copy $< to a machine with a GPU, unpack it there, and run gpu-check/gpu-check."

.PHONY: gpu-check-test
gpu-check-test: gpu-check sim
	TRANCHE_BUILD=$(abspath $(BUILD)) $(GO) test -count=1 -tags gpucheck -timeout 15m ./$(GPUCHECK)
