// Package doctor examines a node from end to end: what Tranche needs, whether it is there, and how to mend what is not.
//
// It only looks. Each check is one small function that says what it looked at and what it found; doctor.go runs them.
package doctor

import (
	"context"
	"fmt"
	"path/filepath"

	"github.com/tranche-gpu/tranche/device/nvml"
	"github.com/tranche-gpu/tranche/runtime"
)

// State says how bad a finding is.
type State string

// A warning is something that works now and may not later, or not for everybody; with a fault containers do not get
// their fraction.
const (
	OK      State = "ok"
	Warning State = "warning"
	Fault   State = "fault"
)

// Result is what one check has found.
type Result struct {
	Group  string `json:"group"`
	Check  string `json:"check"`
	State  State  `json:"state"`
	Looked string `json:"looked_at"`
	Found  string `json:"found"`
	// Remedy says how to mend it; empty where all is well.
	Remedy string `json:"remedy,omitempty"`
}

// Node is what is examined.
type Node struct {
	// Version is this program's, which what is installed is compared with.
	Version string
	// Program is the command tranche itself, which the governor should run.
	Program string
	// Root is in front of every path that is not in the configuration: "/" but in tests.
	Root string
	// Config is that of tranche-runtime, from ConfigFile; ConfigErr says why it cannot be read.
	Config     runtime.Config
	ConfigFile string
	ConfigErr  error
	// AgentErr says what of the file the agent, and tranche usage, do not accept.
	AgentErr error
	// RuntimePath is where tranche-runtime is expected, as long as no engine names another.
	RuntimePath string
	// ReadGPUs asks NVML.
	ReadGPUs func(context.Context) (*nvml.Node, error)
	// ProbeLimits returns why the driver cannot limit memory on a GPU; nil if it can.
	ProbeLimits func(ctx context.Context, uuid string) error

	gpus    *nvml.Node
	gpusErr error
}

// path is a file of the host.
func (n *Node) path(name string) string { return filepath.Join(n.Root, name) }

// finding is what a check says; the rest of the result is known before.
type finding struct {
	state                 State
	looked, found, remedy string
}

func ok(looked, format string, args ...any) finding {
	return finding{OK, looked, fmt.Sprintf(format, args...), ""}
}

func warning(looked, found, remedy string) finding { return finding{Warning, looked, found, remedy} }
func fault(looked, found, remedy string) finding   { return finding{Fault, looked, found, remedy} }

type check struct {
	group, name string
	run         func(context.Context, *Node) finding
}

// checks are all of them, in the order in which one thing rests on another.
func checks() []check {
	var all []check
	for _, group := range [][]check{
		kernelChecks, cgroupChecks, driverChecks, cdiChecks, runtimeChecks, shadowChecks, versionChecks, engineChecks, nomadChecks, governorChecks, ledgerChecks,
	} {
		all = append(all, group...)
	}
	return all
}

// Examine runs every check.
func (n *Node) Examine(ctx context.Context) []Result {
	n.gpus, n.gpusErr = n.ReadGPUs(ctx)
	if n.gpus == nil {
		n.gpus = &nvml.Node{}
	}
	var results []Result
	for _, c := range checks() {
		f := c.run(ctx, n)
		results = append(results, Result{
			Group: c.group, Check: c.name, State: f.state, Looked: f.looked, Found: f.found, Remedy: f.remedy,
		})
	}
	return results
}
