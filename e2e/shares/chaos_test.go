package shares

import (
	"context"
	"fmt"
	"math/rand/v2"
	"strconv"
	"syscall"
	"testing"
	"time"

	"github.com/shoenig/test/must"

	"github.com/tranche-gpu/tranche/internal/needs"
)

// chaosTime is how long TestShares_Chaos makes trouble.
func chaosTime() time.Duration {
	if needs.Long() {
		return 10 * time.Minute
	}
	return 10 * time.Second
}

// stillAt is the part of the time, in percent, at which nothing is getting on. What programs that have no processor leave of the
// GPU lies far above: with thirty others that wanted one, a fifth was used.
const stillAt = 2.0

// chaos is what troubles a node: claims that come, stop, go on and die, and governors that are killed.
type chaos struct {
	*Node
	t      *testing.T
	random *rand.Rand
	others []*Load
	made   int
}

// TestShares_Chaos troubles a node at random while one claim always wants the GPU, and looks at the record afterwards and all
// along: the GPU never stands still, that claim never starves, and shares hold again once there is quiet.
func TestShares_Chaos(t *testing.T) {
	t.Parallel()
	ctx, n := newNode(t)
	seed := rand.Uint64()
	t.Log("seed ", seed)
	c := &chaos{Node: n, t: t, random: rand.New(rand.NewPCG(seed, 0))}
	steady := n.start(ctx, t, "steady", Share(50), "--kernel", "1000")

	const period = 2 * time.Second
	for end := time.Now().Add(chaosTime()); time.Now().Before(end); {
		w, err := n.Over(ctx, func() error { return c.trouble(ctx, period) })
		must.NoError(t, err)
		t.Log(w)
		must.Greater(t, stillAt, w.Used(), must.Sprint("the GPU stood still: ", w))
		must.Positive(t, w.Busy["steady"], must.Sprint("it starves: ", w))
	}

	for _, l := range c.others {
		must.NoError(t, l.Kill())
	}
	n.start(ctx, t, "quiet", Share(25), "--kernel", "1000")
	n.comesTo(ctx, t, map[string]float64{"steady": 50, "quiet": 25})
	_, err := steady.Stop()
	must.NoError(t, err, must.Sprint("a launch failed"))
}

// trouble makes some for so long.
func (c *chaos) trouble(ctx context.Context, d time.Duration) error {
	for end := time.Now().Add(d); time.Now().Before(end); {
		if err := c.act(ctx); err != nil {
			return err
		}
		select {
		case <-ctx.Done():
			return ctx.Err()
		case <-time.After(time.Duration(c.random.IntN(200)) * time.Millisecond):
		}
	}
	return nil
}

// act does one thing.
func (c *chaos) act(ctx context.Context) error {
	if len(c.others) < 2 || len(c.others) < 5 && c.random.IntN(2) == 0 {
		return c.come(ctx)
	}
	i := c.random.IntN(len(c.others))
	l := c.others[i]
	switch c.random.IntN(8) {
	case 0:
		if err := c.KillGovernor(); err != nil {
			return err
		}
		return c.StartGovernor(ctx)
	case 1, 2:
		c.others = append(c.others[:i], c.others[i+1:]...)
		return l.Kill()
	case 3, 4:
		return l.Signal(syscall.SIGSTOP)
	default:
		return l.Signal(syscall.SIGCONT)
	}
}

// come starts a claim of any kind.
func (c *chaos) come(ctx context.Context) error {
	claim := Share(float64(5 + c.random.IntN(40)))
	if c.random.IntN(4) == 0 {
		claim = claim.Max(50)
	}
	claim = claim.Priority([]string{"normal", "normal", "best-effort", "high"}[c.random.IntN(4)])
	args := []string{"--kernel", strconv.Itoa([]int{100, 1000, 5000, 30_000}[c.random.IntN(4)]),
		"--depth", strconv.Itoa([]int{1, 4, 64}[c.random.IntN(3)]), "--processes", strconv.Itoa(1 + c.random.IntN(3))}
	if c.random.IntN(3) == 0 {
		args = append(args, "--graph", "5")
	}
	if c.random.IntN(3) == 0 {
		args = append(args, "--burst", "20", "--pause", "20000")
	}
	c.made++
	l, err := c.Start(ctx, fmt.Sprint("other-", c.made), claim, args...)
	if err != nil {
		return err
	}
	c.t.Cleanup(func() { _ = l.Kill() })
	c.others = append(c.others, l)
	return nil
}
