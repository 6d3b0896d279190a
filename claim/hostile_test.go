package claim

import (
	"bufio"
	"context"
	"encoding/hex"
	"fmt"
	"io"
	"os"
	"os/exec"
	"path/filepath"
	"strings"
	"testing"
	"time"

	"github.com/shoenig/test/must"

	"github.com/tranche-gpu/tranche/claim/claimtest"
	"github.com/tranche-gpu/tranche/claim/region"
	"github.com/tranche-gpu/tranche/internal/needs"
)

// environmentOf is a container's environment with a token.
func environmentOf(token Token) map[string]string {
	return map[string]string{token.EnvName(): token.Reveal()}
}

// Tokens that lead nowhere. No error repeats one.
func TestHostile_Tokens(t *testing.T) {
	cases := map[string]struct {
		make func(t *testing.T, l *Ledger) map[string]string
		want string
	}{
		"forged": {func(*testing.T, *Ledger) map[string]string {
			return environmentOf(tokenOf(strings.Repeat("0123abcd", 4)))
		}, "no claim in the ledger"},
		"of another node": {func(t *testing.T, _ *Ledger) map[string]string {
			_, token := reserve(t, newLedger(t), 0, 1)
			return environmentOf(token)
		}, "no claim in the ledger"},
		"replayed when the slices are somebody else's": {func(t *testing.T, l *Ledger) map[string]string {
			_, token := reserve(t, l, 0, 1)
			reserve(t, l, 1, 2)
			return environmentOf(token)
		}, "no claim in the ledger"},
		"replayed after the claim was dropped": {func(t *testing.T, l *Ledger) map[string]string {
			c, token := reserve(t, l, 0, 1)
			must.NoError(t, l.Drop(context.Background(), c.ID))
			return environmentOf(token)
		}, "no claim in the ledger"},
		"expired": {func(t *testing.T, l *Ledger) map[string]string {
			_, token := reserve(t, l, 0, 1)
			l.now = func() time.Time { return time.Now().Add(DormantFor + time.Hour) }
			_, err := l.Sweep(context.Background())
			must.NoError(t, err)
			return environmentOf(token)
		}, "no claim in the ledger"},
		"with the right ID, which is all that others can know": {func(t *testing.T, l *Ledger) map[string]string {
			c, token := reserve(t, l, 0, 1)
			// Another token whose hash begins the same is 2^32 guesses away; take the other hash instead.
			spoil(t, l, c.ID, func(r *record) {
				sum, err := hex.DecodeString(r.TokenSHA256)
				must.NoError(t, err)
				sum[31] ^= 1
				r.TokenSHA256 = hex.EncodeToString(sum)
			})
			return environmentOf(token)
		}, "no claim in the ledger"},
		"under another claim's name": {func(t *testing.T, l *Ledger) map[string]string {
			victim, _ := reserve(t, l, 0, 1)
			_, token := reserve(t, l, 2, 3)
			return map[string]string{EnvPrefix + victim.ID: token.Reveal()}
		}, "of another claim than its name says"},
		"in capitals": {func(t *testing.T, l *Ledger) map[string]string {
			_, token := reserve(t, l, 0, 1)
			return map[string]string{token.EnvName(): strings.ToUpper(token.Reveal())}
		}, "of another claim than its name says"},
		"with something behind it": {func(t *testing.T, l *Ledger) map[string]string {
			_, token := reserve(t, l, 0, 1)
			return map[string]string{token.EnvName(): token.Reveal() + "\x00"}
		}, "holds no claim token"},
		"of one claim among a thousand forged ones": {func(t *testing.T, l *Ledger) map[string]string {
			_, token := reserve(t, l, 0, 1)
			env := environmentOf(token)
			for i := range 1000 {
				forged := tokenOf(fmt.Sprintf("%032x", i))
				env[forged.EnvName()] = forged.Reveal()
			}
			return env
		}, "no claim in the ledger"},
	}
	for name, tc := range cases {
		t.Run(name, func(t *testing.T) {
			l := newLedger(t)
			env := tc.make(t, l)
			claims, err := l.FromEnv(context.Background(), env)
			must.ErrorContains(t, err, tc.want)
			must.SliceEmpty(t, claims)
			for _, secret := range env {
				must.StrNotContains(t, err.Error(), strings.TrimRight(secret, "\x00"))
			}
		})
	}
}

// What a guess has to hit: nothing but 16 bytes from the kernel's generator, of which no two agree.
func TestHostile_TokensAre128RandomBits(t *testing.T) {
	const tokens = 2000
	var ones [8 * tokenBytes]int
	seen := map[string]bool{}
	for range tokens {
		secret, err := hex.DecodeString(newToken().Reveal())
		must.NoError(t, err)
		must.Len(t, tokenBytes, secret)
		must.False(t, seen[string(secret)])
		seen[string(secret)] = true
		for bit := range ones {
			ones[bit] += int(secret[bit/8] >> (bit % 8) & 1)
		}
	}
	for bit, count := range ones { // half of them, give or take eight standard deviations
		must.Between(t, tokens/2-180, count, tokens/2+180, must.Sprintf("bit %d", bit))
	}
}

// Many containers with one token at once: one gets the claim, whoever it is.
func TestHostile_OneTokenManyContainers(t *testing.T) {
	const processes, rounds = 8, 10
	l := newLedger(t)
	orders, answers := startBinders(t, l, processes)
	for round := range rounds {
		c, _ := reserve(t, l, round, round)
		for _, order := range orders {
			_, err := fmt.Fprintln(order, c.ID)
			must.NoError(t, err)
		}
		got := 0
		for _, answer := range answers {
			line, err := answer.ReadString('\n')
			must.NoError(t, err)
			if line == "got it\n" {
				got++
			}
		}
		must.Eq(t, 1, got, must.Sprintf("round %d", round))
	}
}

// startBinders starts processes that bind what they are told to.
func startBinders(t *testing.T, l *Ledger, count int) (orders []io.Writer, answers []*bufio.Reader) {
	t.Helper()
	for range count {
		cmd := exec.Command("/proc/self/exe")
		cmd.Env = append(os.Environ(), "TRANCHE_TEST_ROLE=binder",
			"TRANCHE_TEST_STATE="+filepath.Dir(l.claims), "TRANCHE_TEST_RUN="+filepath.Dir(l.regions))
		cmd.Stderr = os.Stderr
		stdin, err := cmd.StdinPipe()
		must.NoError(t, err)
		stdout, err := cmd.StdoutPipe()
		must.NoError(t, err)
		must.NoError(t, cmd.Start())
		t.Cleanup(func() { endProcess(cmd) })
		orders, answers = append(orders, stdin), append(answers, bufio.NewReader(stdout))
	}
	return orders, answers
}

// A container gets its region on a file system of its own, which goes with the region.
func TestHostile_RegionIsBounded(t *testing.T) {
	needs.Root(t, "to mount a file system")
	l := newLedger(t)
	ctx := context.Background()
	c, _ := reserve(t, l, 0, 1)
	must.False(t, region.Bounded(l.regionPath(c.ID)), must.Sprint("nobody has it yet"))
	dir, err := l.PrepareRegion(ctx, c.ID, "c1", 0)
	must.NoError(t, err)
	must.True(t, region.Bounded(dir))

	init := startProcess(t)
	must.NoError(t, l.Bind(ctx, c.ID, container("c1", init)))
	endProcess(init)
	must.NoError(t, l.Release(ctx, c.ID, "c1"))
	must.DirNotExists(t, dir)

	_, err = l.PrepareRegion(ctx, c.ID, "c1", 0)
	must.NoError(t, err)
	must.NoError(t, l.Drop(ctx, c.ID))
	mounts, err := os.ReadFile("/proc/self/mounts")
	must.NoError(t, err)
	must.StrNotContains(t, string(mounts), l.regions)
}

// A region that a process still uses, from before regions were bounded, is not pulled from under it.
func TestHostile_UnboundedRegionInUseStays(t *testing.T) {
	l := newLedger(t)
	c, _ := reserve(t, l, 0, 1)
	dir := l.regionPath(c.ID)
	user := holdSlot(t, dir, 7)
	before, err := user.Stat()
	must.NoError(t, err)
	_, err = l.PrepareRegion(context.Background(), c.ID, "c1", 0)
	must.NoError(t, err)
	after, err := os.Stat(filepath.Join(dir, region.UsageFile))
	must.NoError(t, err)
	must.True(t, os.SameFile(before, after))
}

// Containers that make their regions longer, all of them: whoever comes next still gets one, and the ledger notices
// nothing. The regions' file system is small, so that a region which took more than its own would be missed.
func TestHostile_RegionsDoNotFillEachOther(t *testing.T) {
	disk := smallDisk(t, "512k")
	l := ledgerAt(t, t.TempDir(), disk)
	claimtest.RemoveRegions(t, disk)
	ctx := context.Background()
	for slice := range 20 {
		c, _ := reserve(t, l, slice, slice)
		dir, err := l.PrepareRegion(ctx, c.ID, "c1", 0)
		must.NoError(t, err, must.Sprintf("container %d", slice))
		must.NoError(t, l.Bind(ctx, c.ID, container("c", startProcess(t))))
		fillUsage(t, dir)
	}
	_, err := l.Sweep(ctx)
	must.NoError(t, err)
	for _, c := range list(t, l) {
		_, err := l.Usage(ctx, c.ID)
		must.ErrorContains(t, err, c.ID) // the vandal's own
	}
}

// fillUsage writes a usage file until there is no room left.
func fillUsage(t *testing.T, dir string) {
	t.Helper()
	f, err := os.OpenFile(filepath.Join(dir, region.UsageFile), os.O_WRONLY, 0)
	must.NoError(t, err)
	defer f.Close()
	must.NoError(t, f.Truncate(1<<30))
	for page := make([]byte, 4096); err == nil; {
		_, err = f.Write(page)
	}
}
