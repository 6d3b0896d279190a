// Package compute reads what a container, a task or a command states of its part of a GPU's time, and gives it to claims. It
// makes no claims, and governs nothing.
package compute

import (
	"context"
	"errors"
	"fmt"
	"strings"

	"github.com/tranche-gpu/tranche/claim"
	"github.com/tranche-gpu/tranche/claim/layout"
	"github.com/tranche-gpu/tranche/internal/percent"
)

// Request is what is stated of a part of a GPU's time. What is zero is not stated, and stays as the claim has it.
type Request struct {
	// Share and Max are thousandths: see claim.Compute.
	Share, Max int
	Class      claim.Class
}

// Stated reports whether anything is stated.
func (r Request) Stated() bool { return r != Request{} }

// Bounds is what the operator of a node allows. The zero value allows a container to have less than its slices are worth.
type Bounds struct {
	// MaxShare is the most that may be stated as the share, in thousandths; what the slices are worth may always be.
	MaxShare int
	// HighPriority allows claim.ClassHigh.
	HighPriority bool
}

// Parse reads a request in one text, such as "share=30,max=50,priority=high". An empty text states nothing.
func Parse(text string) (Request, error) {
	var r Request
	if text == "" {
		return r, nil
	}
	seen := map[string]bool{}
	for part := range strings.SplitSeq(text, ",") {
		name, value, _ := strings.Cut(part, "=")
		name = strings.TrimSpace(name)
		if seen[name] {
			return Request{}, fmt.Errorf("%s is stated twice", name)
		}
		seen[name] = true
		if err := r.set(name, strings.TrimSpace(value)); err != nil {
			return Request{}, err
		}
	}
	return r, r.Check()
}

func (r *Request) set(name, value string) (err error) {
	switch name {
	case "share":
		r.Share, err = percent.Parse(value)
	case "max":
		r.Max, err = percent.Parse(value)
	case "priority":
		if value == "" {
			return errors.New("priority is empty")
		}
		r.Class, err = claim.ParseClass(value)
	default:
		return fmt.Errorf("%q is none of share, max and priority; an example is share=30,max=50,priority=normal", name)
	}
	if err != nil {
		return fmt.Errorf("%s: %w", name, err)
	}
	return nil
}

// Check refuses what contradicts itself.
func (r Request) Check() error {
	if r.Max != 0 && r.Share > r.Max {
		return fmt.Errorf("the share, %s, is more than the ceiling max, %s", percent.Format(r.Share), percent.Format(r.Max))
	}
	return nil
}

// Over returns what a claim has that is given the request. Where only a ceiling is stated that is below the claim's share, the
// share is lowered to it.
func (r Request) Over(had claim.Compute) (claim.Compute, error) {
	if r.Share != 0 {
		had.Share = r.Share
	}
	if r.Class != "" {
		had.Class = r.Class
	}
	switch {
	case r.Max != 0:
		had.Max = r.Max
		had.Share = min(had.Share, had.Max)
	case had.Share > had.Max:
		return had, fmt.Errorf("the share, %s, is more than the claim's ceiling, %s; state max too",
			percent.Format(had.Share), percent.Format(had.Max))
	}
	return had, nil
}

// Check refuses a priority that is not allowed.
func (b Bounds) Check(r Request) error {
	if r.Class == claim.ClassHigh && !b.HighPriority {
		return fmt.Errorf("priority: this node allows no priority %q; the operator can allow it with "+
			"gpu_compute_high_priority = true", claim.ClassHigh)
	}
	return nil
}

// checkShare refuses a share above what the claim's slices are worth and what is allowed.
func (b Bounds) checkShare(r Request, c *claim.Claim, worth int) error {
	most := max(b.MaxShare, worth)
	if r.Share <= most {
		return nil
	}
	return fmt.Errorf("share: this node allows claim %s at most %s of GPU %d, got %s; request more slices, or the operator can allow "+
		"more with gpu_compute_max_share", c.ID, percent.Format(most), c.GPU.Index, percent.Format(r.Share))
}

// Apply gives each governed claim of a container what the request states, within the bounds. Claims that a container has had
// before keep what they have: the operator may have changed it since. Errors begin with the request's source, the option. The run
// directory is the ledger's.
func (r Request) Apply(
	ctx context.Context, ledger *claim.Ledger, runDir string, b Bounds, option string, claims []*claim.Claim,
) error {
	if !r.Stated() {
		return nil
	}
	if err := b.Check(r); err != nil {
		return fmt.Errorf("%s: %w", option, err)
	}
	shared, err := layout.Read(runDir)
	if err != nil {
		return err
	}
	governed, not := false, claim.ErrNotGoverned
	for _, c := range claims {
		if err := c.CheckGoverned(); err != nil {
			not = err
			continue
		}
		governed = true
		if c.Container != nil {
			continue
		}
		if err := b.checkShare(r, c, worth(c, shared[c.GPU.UUID])); err != nil {
			return fmt.Errorf("%s: %w", option, err)
		}
		if c.Compute, err = r.apply(ctx, ledger, c.ID); err != nil {
			return fmt.Errorf("%s: %w", option, err)
		}
	}
	if !governed {
		return fmt.Errorf("%s: %w; or remove it", option, not)
	}
	return nil
}

func (r Request) apply(ctx context.Context, ledger *claim.Ledger, id string) (*claim.Compute, error) {
	to, err := ledger.ChangeCompute(ctx, id, r.Over)
	if err != nil {
		return nil, err
	}
	return &to, nil
}

// worth returns what a claim's slices are worth, in thousandths. The claim may have another share by an earlier start that has
// failed. That counts only where nothing else is known: the GPU is shared in another way by now.
func worth(c *claim.Claim, said layout.GPU) int {
	switch parts := len(c.Slices); {
	case c.Mode == claim.ModeTimeslice && said.Mode == claim.ModeTimeslice && said.Replicas > 0:
		return claim.ShareOf(parts, said.Replicas).Share
	case c.Mode != claim.ModeTimeslice && said.Slices > 0 && said.SliceBytes == c.SliceSize():
		return claim.ShareOf(parts, said.Slices).Share
	}
	return c.Compute.Share
}

// Describe returns a claim's part of its GPU's time, for people.
func Describe(c claim.Compute) string {
	text := "share " + percent.Format(c.Share)
	if c.Max < claim.WholeCompute {
		text += ", at most " + percent.Format(c.Max)
	}
	if c.Class != claim.ClassNormal {
		text += ", priority " + string(c.Class)
	}
	return text
}
