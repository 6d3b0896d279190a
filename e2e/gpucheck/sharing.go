package main

import (
	"context"
	"fmt"
	"time"
)

// shareBytes is how much two processes share.
const shareBytes = 256 * mib

// checkSharing checks memory that one process makes and another opens, and that outlives its maker or does not.
func (c *checker) checkSharing(ctx context.Context) {
	for _, kind := range []struct{ name, title string }{
		{"ipc", "cuIpcGetMemHandle, opened by another process"},
		{"vmm", "cuMemCreate, exported and imported by another process"},
		{"pool", "a pool and an allocation in it, imported by another process"},
	} {
		if err := c.checkShare(ctx, kind.name, kind.title); err != nil {
			c.broken(kind.title, err)
		}
	}
}

func (c *checker) checkShare(ctx context.Context, name, title string) error {
	l, err := c.newClaim(c.machine.limitBytes)
	if err != nil {
		return err
	}
	m, err := c.newMeter(l)
	if err != nil {
		return err
	}
	p, err := c.start(l.env, c.program("probe"), "share", name, fmt.Sprint(shareBytes))
	if err != nil {
		return err
	}
	defer p.kill()

	at := map[string]reading{}
	pids := []int{p.pid()}
	for _, step := range []string{"empty", "made", "shared", "orphaned", "closed"} {
		e, err := p.expect(ctx, stepPatience, step)
		if err != nil {
			return err
		}
		switch step {
		case "empty":
			pids = append(pids, e.Peer)
		case "orphaned":
			pids = pids[1:]
		case "closed":
			if e.Result != 0 {
				return fmt.Errorf("closing it: %s", e.Name)
			}
		}
		if at[step], err = m.read(pids...); err != nil {
			return err
		}
		if step == "shared" {
			p.killOne()
		} else {
			p.tell("go")
		}
	}
	_, _ = p.next(ctx, 5*time.Second) // the opener has ended
	c.report.shares = append(c.report.shares, shareRow{title, at})
	failures, figures := judgeShare(c.machine.limitBytes, c.machine.contextBytes, at)
	c.conclude(title, failures, figures)
	return nil
}

func judgeShare(limit, contextBytes uint64, at map[string]reading) (failures []string, figures string) {
	fail := func(format string, args ...any) { failures = append(failures, fmt.Sprintf(format, args...)) }
	made := delta(at["made"].counted, at["empty"].counted)
	if made < shareBytes {
		fail("%s were made shareable, and %s more counted", size(shareBytes), signed(made))
	}
	if opened := delta(at["shared"].counted, at["made"].counted); opened > granularity {
		fail("opening it counted it once more: %s", signed(opened))
	}
	for _, step := range []string{"made", "shared", "orphaned"} {
		// Of a device's memory that two hold NVML may tell each: only the whole GPU's is the truth then.
		if at[step].device > int64(limit) {
			fail("at the step %q %s are physically taken, over the limit of %s", step, signed(at[step].device), size(limit))
		}
	}
	// The maker is dead. Whether the driver keeps the memory for the opener is the driver's affair; if it does, it counts.
	held := at["orphaned"].device - int64(contextBytes)
	if missing := min(held, shareBytes) - delta(at["orphaned"].counted, contextBytes); held >= shareBytes && missing > granularity {
		fail("the maker is dead, its memory lives on with the opener, and %s of it are not counted", signed(missing))
	}
	if left := delta(at["closed"].counted, at["empty"].counted/2); left > granularity {
		fail("%s stay counted after it was closed", signed(left))
	}
	return failures, fmt.Sprintf("%s shared: counted %s; with the maker dead: counted %s, of the whole GPU %s", size(shareBytes),
		signed(delta(at["shared"].counted, at["empty"].counted)), size(at["orphaned"].counted), signed(at["orphaned"].device))
}
