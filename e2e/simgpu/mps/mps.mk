# The simulated MPS: build/sim/bin/nvidia-cuda-mps-control and nvidia-cuda-mps-server. The simulator's makefile includes it.

MPS := $(SIM)/mps
# libcuda has these, too.
MPS_COMMON_SRC := $(addprefix $(MPS)/,message.c setting.c)
MPS_CONTROL_SRC := $(wildcard $(MPS)/control_*.c) $(MPS)/log.c $(MPS_COMMON_SRC)
MPS_SERVER_SRC := $(wildcard $(MPS)/server_*.c) $(MPS)/log.c $(MPS_COMMON_SRC)
MPS_PROGRAMS := $(addprefix $(BUILD)/sim/bin/,nvidia-cuda-mps-control nvidia-cuda-mps-server)
# With the sanitizers, for the tests.
MPS_ASAN_PROGRAMS := $(addprefix $(BUILD)/sim/asan/bin/,nvidia-cuda-mps-control nvidia-cuda-mps-server)

.PHONY: mps-sim

mps-sim: $(MPS_PROGRAMS)

# Whoever builds the simulated GPU builds this with it.
sim: mps-sim

$(BUILD)/sim/bin/nvidia-cuda-mps-control: $(call sim_objects,$(SIM_OBJ),$(MPS_CONTROL_SRC) $(SIM_STATE_SRC))
	@mkdir -p $(@D)
	$(CC) $(SIM_CFLAGS) -o $@ $^

$(BUILD)/sim/bin/nvidia-cuda-mps-server: $(call sim_objects,$(SIM_OBJ),$(MPS_SERVER_SRC) $(SIM_STATE_SRC))
	@mkdir -p $(@D)
	$(CC) $(SIM_CFLAGS) -o $@ $^

$(BUILD)/sim/asan/bin/nvidia-cuda-mps-control: $(call sim_objects,$(SIM_ASAN_OBJ),$(MPS_CONTROL_SRC) $(SIM_STATE_SRC))
	@mkdir -p $(@D)
	$(CC) $(SIM_CFLAGS) $(SIM_SANITIZE) -o $@ $^

$(BUILD)/sim/asan/bin/nvidia-cuda-mps-server: $(call sim_objects,$(SIM_ASAN_OBJ),$(MPS_SERVER_SRC) $(SIM_STATE_SRC))
	@mkdir -p $(@D)
	$(CC) $(SIM_CFLAGS) $(SIM_SANITIZE) -o $@ $^
