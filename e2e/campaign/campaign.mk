# The property campaign of the shadow library. The top GNUmakefile includes it, after sim.mk and intercept.mk.
CAMPAIGN := e2e/campaign
CAMPAIGN_BIN := $(BUILD)/e2e/campaign
CAMPAIGN_SRC := $(wildcard $(CAMPAIGN)/*.c $(CAMPAIGN)/families/*.c $(CAMPAIGN)/families/*/*.c)
CAMPAIGN_OTHER_SRC := $(SIM_STATE_SRC) $(SHADOW_REGION:%=$(INTERCEPT)/%.c) $(INTERCEPT)/tests/fixture.c
CAMPAIGN_CFLAGS := -std=c11 -D_GNU_SOURCE -Wall -Wextra -Werror -O2 -g -pthread -I$(SIM) -I$(SIM)/include -I$(CAMPAIGN) \
    -I$(INTERCEPT)

FUZZ_SECONDS ?= 600

.PHONY: campaign campaign-short fuzz fuzz-c fuzz-go
campaign: $(CAMPAIGN_BIN)

$(CAMPAIGN_BIN): $(CAMPAIGN_SRC) $(CAMPAIGN_OTHER_SRC) $(wildcard $(CAMPAIGN)/*.h $(CAMPAIGN)/families/*.h $(SIM)/*.h $(SIM)/mig/*.h $(SIM)/include/*.h \
    $(INTERCEPT)/region/*.h $(INTERCEPT)/system/*.h) $(CAMPAIGN)/campaign.mk
	@mkdir -p $(@D)
	$(CC) $(CAMPAIGN_CFLAGS) -o $@ $(CAMPAIGN_SRC) $(CAMPAIGN_OTHER_SRC) -rdynamic -ldl

# Four known rounds, and one that nobody has run before: its seed is printed.
campaign-short: campaign shadow sim
	$(CAMPAIGN_BIN) --seed 1 --steps 6000 --rounds 4
	$(CAMPAIGN_BIN) --steps 4000

# Half of the time for the C side, half for the parsers of the Go side.
fuzz: ## Run random CUDA calls and every Go fuzzer for FUZZ_SECONDS together
	@$(MAKE) --no-print-directory fuzz-c FUZZ_SECONDS=$$(($(FUZZ_SECONDS) / 2))
	@$(MAKE) --no-print-directory fuzz-go FUZZ_SECONDS=$$(($(FUZZ_SECONDS) / 2))

fuzz-c: campaign shadow sim ## Run random CUDA calls against the shadow library for FUZZ_SECONDS
	$(CAMPAIGN_BIN) --seconds $(FUZZ_SECONDS) $(if $(FUZZ_SEED),--seed $(FUZZ_SEED))

fuzz-go: ## Run the fuzzers of everything that reads what an attacker writes for FUZZ_SECONDS
	GO='$(GO)' scripts/fuzz-go $(FUZZ_SECONDS)
