// Package idle is the file in which `tranche agent` publishes which claims have been idle for longer than the operator allows. The
// task driver reads it: the agent cannot reach the tasks.
package idle

import (
	"fmt"
	"path/filepath"
	"time"

	"github.com/tranche-gpu/tranche/claim"
	"github.com/tranche-gpu/tranche/claim/rundir"
)

// FileName is the file's name in the run directory.
const FileName = "idle.json"

// format is the version of the file's format.
const format = 1

// State is what becomes of a claim that has been idle for too long.
type State string

// The states.
const (
	Observed State = "observed" // nothing: the policy only observes
	Warned   State = "warned"
	Held     State = "held" // its group is due to be stopped, and is not, for the reason in the condition's note
	Stopped  State = "stopped"
)

// Condition is that a claim has been idle for too long.
type Condition struct {
	State State `json:"state"`
	// Container is the container that has the claim, as ContainerKey returns it: another one has not been idle.
	Container string `json:"container"`
	// Since is since when all claims of the allocation have been idle.
	Since time.Time `json:"since"`
	// StopAt is from when on the claim's group is stopped; nil if the policy does not stop it.
	StopAt *time.Time `json:"stop_at,omitempty"`
	// Note says why the group is not stopped.
	Note string `json:"note,omitempty"`
}

// String says what a person is to know of the condition, without the name of the claim.
func (c Condition) String() string {
	text := "idle since " + c.Since.UTC().Format(time.DateTime) + " UTC"
	switch {
	case c.State == Held:
		text += ", and not stopped: " + c.Note
	case c.State == Stopped:
		text += ": its group is stopped"
	case c.StopAt != nil:
		text += ": its group is stopped at " + c.StopAt.UTC().Format(time.DateTime) + " UTC unless it uses the GPU"
	}
	return text
}

// Report is what the agent has to say of a node.
type Report struct {
	// Claims are those that have been idle for too long, by ID.
	Claims map[string]Condition `json:"claims"`
	// Stops are when groups were stopped in the last hour.
	Stops []time.Time `json:"stops,omitempty"`
}

// Of returns the condition of a claim, if there is one of its present container.
func (r *Report) Of(c *claim.Claim) (Condition, bool) {
	condition, found := r.Claims[c.ID]
	return condition, found && condition.Container == c.ContainerKey()
}

type file struct {
	Format int `json:"tranche_idle"`
	Report
}

// Write publishes a report in place of the one before.
func Write(runDir string, r Report) error {
	if r.Claims == nil {
		r.Claims = map[string]Condition{}
	}
	if err := rundir.Write(runDir, FileName, file{Format: format, Report: r}); err != nil {
		return fmt.Errorf("write which claims are idle to %s: %w", filepath.Join(runDir, FileName), err)
	}
	return nil
}

// Read returns what was published last. Where nothing was, no claim is idle for too long.
func Read(runDir string) (Report, error) {
	var f file
	found, err := rundir.Read(runDir, FileName, &f)
	if found && err == nil {
		err = rundir.CheckFormat(f.Format, format)
	}
	if err != nil {
		return Report{}, fmt.Errorf("read which claims are idle from %s: %w; restart tranche-agent, which writes it anew, or remove it "+
			"where there is no agent", filepath.Join(runDir, FileName), err)
	}
	return f.Report, nil
}
