package claim

import (
	"context"
	"errors"
	"fmt"
)

// Class is the priority of a claim among those that compute on one GPU in turns.
type Class string

// The classes, the highest first. A higher class gets the next turn; lower ones keep a small part of the GPU's time.
const (
	ClassHigh       Class = "high"
	ClassNormal     Class = "normal"
	ClassBestEffort Class = "best-effort"
)

// ParseClass parses the name of a class; an empty text is ClassNormal.
func ParseClass(text string) (Class, error) {
	switch c := Class(text); c {
	case "":
		return ClassNormal, nil
	case ClassHigh, ClassNormal, ClassBestEffort:
		return c, nil
	}
	return "", fmt.Errorf("%q is no priority; there are %s, %s and %s", text, ClassHigh, ClassNormal, ClassBestEffort)
}

// WholeCompute is all of a GPU's time in the unit of Compute: thousandths.
const WholeCompute = 1000

// Compute is a claim's part of its GPU's time. A claim that has it is governed: it computes in turns with the others.
type Compute struct {
	// Share is the part, in thousandths, that the claim gets while others want the GPU, too. If the shares of those who want it
	// have another sum than 1000, each gets its part of the sum.
	Share int `json:"share"`
	// Max is the most, in thousandths, that the claim gets, also while nobody else wants the GPU.
	Max   int   `json:"max"`
	Class Class `json:"class"`
}

// ShareOf returns what so many of all equal parts of a GPU are worth: at least a thousandth.
func ShareOf(parts, all int) *Compute {
	return &Compute{Share: max(1, (parts*WholeCompute+all/2)/all), Max: WholeCompute, Class: ClassNormal}
}

func (c *Compute) check() error {
	if c == nil {
		return nil
	}
	switch class, err := ParseClass(string(c.Class)); {
	case err != nil:
		return err
	case class != c.Class:
		return errors.New("the share of compute has no priority")
	case c.Share < 1 || c.Share > WholeCompute:
		return fmt.Errorf("the share of compute must be 1 to %d thousandths of the GPU, got %d", WholeCompute, c.Share)
	case c.Max < c.Share || c.Max > WholeCompute:
		return fmt.Errorf("the ceiling of compute must be from the share, %d, to %d thousandths of the GPU, got %d", c.Share,
			WholeCompute, c.Max)
	}
	return nil
}

// Governed reports whether the claim computes in turns with the others on its GPU.
func (c *Claim) Governed() bool { return c.Compute != nil }

// Shadowed reports whether the claim's programs need the shadow library: for a limit of memory that the driver does not enforce,
// or to compute in turns.
func (c *Claim) Shadowed() bool { return c.Enforced() == EnforcementLibrary || c.Governed() }

// ErrNotGoverned is what CheckGoverned returns, wrapped.
var ErrNotGoverned = errors.New("the claim is not governed")

// CheckGoverned returns why a claim is not governed, and what to do about it; nil if it is.
func (c *Claim) CheckGoverned() error {
	switch why := WhyNoShares(c.Mode); {
	case c.Governed():
		return nil
	case c.Owner == OwnerRun:
		return fmt.Errorf("%w: start the command with --share, --max or --priority", ErrNotGoverned)
	case why != "":
		return fmt.Errorf("%w: its GPU is in mode %q, and %s; request slices or replicas of a GPU with compute = \"shares\"",
			ErrNotGoverned, c.Mode, why)
	}
	return fmt.Errorf("%w: its GPU's time is shared by the driver; set compute = \"shares\" in the device plugin's configuration, "+
		"and start the job again", ErrNotGoverned)
}

// WhyNoShares returns why claims cannot compute in turns in a mode; empty if they can.
func WhyNoShares(mode Mode) string {
	switch mode {
	case ModeExclusive:
		return "a whole GPU has nobody to share its time with"
	case ModeMPS:
		return "MPS divides the GPU's multiprocessors among programs that compute at the same time"
	case ModeMIG:
		return "MIG divides the GPU's multiprocessors among its instances; tasks share one in turns with mig.mode"
	}
	return ""
}

// ChangeCompute changes the part of a governed claim, also while its container runs, and returns it. The function gets what the
// claim has at that moment: no other change is lost.
func (l *Ledger) ChangeCompute(ctx context.Context, id string, change func(had Compute) (Compute, error)) (to Compute, err error) {
	err = l.read(ctx, func(snap *snapshot) error {
		r, err := snap.get(id)
		if err != nil {
			return err
		}
		changed := *r
		if to, err = changed.ChangeCompute(change); err != nil {
			return err
		}
		if to == *r.Compute {
			return nil
		}
		refreshed := l.Refreshed(&r.Claim)
		if err := l.replace(snap, &changed); err != nil {
			return accessError(err)
		}
		if err := l.Refresh(id, refreshed); err != nil { // no container is being started: see awaited
			return err
		}
		l.logger.Info("share of a claim changed", "claim", id, "share", to.Share, "max", to.Max, "priority", string(to.Class),
			"was_share", r.Compute.Share, "was_max", r.Compute.Max, "was_priority", string(r.Compute.Class))
		return nil
	})
	return to, err
}

// ChangeCompute changes what this claim has, and returns it; it does not record it.
func (c *Claim) ChangeCompute(change func(had Compute) (Compute, error)) (Compute, error) {
	if err := c.CheckGoverned(); err != nil {
		return Compute{}, err
	}
	to, err := change(*c.Compute)
	if err == nil {
		err = to.check()
	}
	if err != nil {
		return Compute{}, err
	}
	c.Compute = &to
	return to, nil
}
