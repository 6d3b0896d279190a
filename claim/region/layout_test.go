package region

import (
	"bufio"
	"fmt"
	"io"
	"os"
	"os/exec"
	"path/filepath"
	"strings"
	"testing"

	"github.com/shoenig/test/must"
)

// intercept holds the C side's statement of the layout.
const intercept = "../../intercept"

func compile(t *testing.T, source string) string {
	t.Helper()
	cc := os.Getenv("CC")
	if cc == "" {
		cc = "gcc"
	}
	program := filepath.Join(t.TempDir(), "program")
	out, err := exec.Command(cc, "-std=c11", "-Wall", "-Wextra", "-Werror", "-I", intercept, "-o", program, source).
		CombinedOutput()
	must.NoError(t, err, must.Sprint(string(out)))
	return program
}

// Every line that the C side prints about the layout is one that the Go side says too.
func TestLayoutIsTheSameInC(t *testing.T) {
	out, err := exec.Command(compile(t, intercept+"/tests/layout.c")).Output()
	must.NoError(t, err)
	mine := goLayout()
	for line := range strings.Lines(string(out)) {
		name, value, _ := strings.Cut(strings.TrimSpace(line), " ")
		want, known := mine[name]
		must.True(t, known, must.Sprintf("the C side has %s (%s), which the Go side doesn't know", name, value))
		must.Eq(t, fmt.Sprint(want), value, must.Sprint(name))
		delete(mine, name)
	}
	must.MapEmpty(t, mine, must.Sprint("the C side lacks these"))
}

func goLayout() map[string]any {
	all := map[string]any{
		"REGION_VERSION":              Version,
		"REGION_LIMIT_FILE":           LimitFile,
		"REGION_USAGE_FILE":           UsageFile,
		"REGION_LIMIT_MAGIC":          strings.TrimRight(limitMagic, "\x00"),
		"REGION_USAGE_MAGIC":          strings.TrimRight(usageMagic, "\x00"),
		"REGION_CLAIM_ID_LENGTH":      claimIDBytes,
		"REGION_GPU_UUID_SIZE":        gpuUUIDBytes,
		"REGION_PAGE_SHIFT":           pageShift,
		"REGION_SLOT_COUNT":           SlotCount,
		"REGION_SLOT_SIZE":            slotSize,
		"REGION_SLOTS_OFFSET":         headerSize,
		"REGION_LIMIT_SIZE":           LimitSize,
		"REGION_USAGE_SIZE":           UsageSize,
		"REGION_SEQ_BITS":             seqBits,
		"REGION_TOTAL_SLOT_BITS":      seqShift - totalSlotShift,
		"REGION_TOTAL_PAGES_BITS":     totalPagesBits,
		"REGION_OP_DELTA_BITS":        opDeltaBits,
		"REGION_OP_MOVE_SLOT_BITS":    opDeltaBits - movePagesBits,
		"REGION_OP_MOVE_PAGES_BITS":   movePagesBits,
		"REGION_LIFE_KIND_BITS":       lifeKindBits,
		"REGION_LEDGER_COUNT":         int(ledgerCount),
		"REGION_GPU":                  int(ledgerGPU),
		"REGION_SPILL":                int(ledgerSpill),
		"REGION_KIND_NONE":            kindNone,
		"REGION_KIND_PROCESS":         kindProcess,
		"REGION_KIND_SHARE":           kindShare,
		"REGION_KIND_ENDED":           kindEnded,
		"REGION_KIND_NAME":            kindName,
		"REGION_COMMITTED_PAGES_BITS": slotPagesBits,
		"region_limit.size":           LimitSize,
		"region_usage.size":           UsageSize,
		"region_slot.size":            slotSize,
		"region_sum.size":             sumSize,
		"region_held.size":            heldSize,
	}
	for field, place := range map[string][2]int{
		"region_limit.magic":                  {offMagic, magicBytes},
		"region_limit.version":                {offVersion, 4},
		"region_limit.size":                   {offSize, 4},
		"region_limit.claim_id":               {offClaimID, claimIDBytes},
		"region_limit.gpu_uuid":               {offLimitGPUUUID, gpuUUIDBytes},
		"region_limit.limit_bytes":            {offLimitLimitBytes, 8},
		"region_limit.context_bytes":          {offLimitContextBytes, 8},
		"region_limit.compute_share_permille": {offLimitShare, 8},
		"region_limit.flags":                  {offLimitFlags, 8},
		"region_limit.spill_bytes":            {offLimitSpillBytes, 8},
		"region_limit.uncounted_bytes":        {offLimitUncounted, 8},
		"region_usage.magic":                  {offMagic, magicBytes},
		"region_usage.version":                {offVersion, 4},
		"region_usage.size":                   {offSize, 4},
		"region_usage.claim_id":               {offClaimID, claimIDBytes},
		"region_usage.slot_count":             {offUsageSlotCount, 4},
		"region_usage.page_shift":             {offUsagePageShift, 4},
		"region_usage.sums":                   {offUsageSums, int(ledgerCount) * sumSize},
		"region_usage.high_water":             {offUsageHighWater, 8},
		"region_usage.next_slot":              {offUsageNextSlot, 8},
		"region_sum.total":                    {offSumTotal, 8},
		"region_sum.refused":                  {offSumRefused, 8},
		"region_sum.peak_pages":               {offSumPeak, 8},
		"region_usage.slots":                  {headerSize, SlotCount * slotSize},
		"region_held.op":                      {offHeldOp, 8},
		"region_held.committed":               {offHeldCommitted, 8},
		"region_slot.held":                    {offSlotHeld, int(ledgerCount) * heldSize},
		"region_slot.tag":                     {offSlotTag, 8},
		"region_slot.target":                  {offSlotTarget, 8},
		"region_slot.life":                    {offSlotLife, 8},
		"region_slot.pid":                     {offSlotPID, 4},
		"region_slot.contexts":                {offSlotContexts, 4},
	} {
		all[field+".offset"], all[field+".size"] = place[0], place[1]
	}
	return all
}

// A region that one side writes, the other reads.
func TestBothSidesOfOneRegion(t *testing.T) {
	dir := newRegion(t)
	must.NoError(t, SetSpill(dir, 1<<30))
	peer := exec.Command(compile(t, "testdata/peer.c"), dir)
	stdin, err := peer.StdinPipe()
	must.NoError(t, err)
	stdout, err := peer.StdoutPipe()
	must.NoError(t, err)
	must.NoError(t, peer.Start())
	t.Cleanup(func() { _ = peer.Process.Kill() })
	out := bufio.NewScanner(stdout)
	nextLine := func() string { must.True(t, out.Scan()); return out.Text() }

	must.Eq(t, "TRNCLIM 3 4096 0badcafe GPU-1 8589934592 314572800 0 0 1073741824", nextLine())
	must.Eq(t, "TRNCUSE 3 266240 0badcafe 4096 16 0 0", nextLine())
	must.Eq(t, "ready", nextLine())

	u, err := Read(dir)
	must.NoError(t, err)
	must.Eq(t, Usage{
		LimitBytes: 8 << 30, ContextBytes: 300 << 20,
		UsedBytes: 1340 << 16, PeakBytes: 1570 << 16, Refused: 9, SharedBytes: 60 << 16,
		Processes: []Process{{PID: 11, Contexts: 1, Bytes: 980 << 16}, {PID: 12, Contexts: 2, Bytes: 300 << 16}},
		Spill:     &Spill{LimitBytes: 1 << 30, UsedBytes: 13 << 16, PeakBytes: 17 << 16, Refused: 2},
	}, u)

	must.NoError(t, SetLimit(dir, 5<<30))
	must.NoError(t, SetSpill(dir, 3<<30))
	must.NoError(t, stdin.Close())
	must.Eq(t, fmt.Sprint(5<<30, " ", 3<<30), nextLine()) // through the mapping that the peer made before
	_, err = io.Copy(io.Discard, stdout)
	must.NoError(t, err)
	must.NoError(t, peer.Wait())

	u, err = Read(dir)
	must.NoError(t, err)
	must.Zero(t, u.UsedBytes)
	must.SliceEmpty(t, u.Processes)
}
