// Package status is the file in which the governor publishes what each claim has had of its GPU's time. Commands, statistics
// and the agent read it; nobody governs by it.
package status

import (
	"errors"
	"fmt"
	"os"
	"path/filepath"
	"time"

	"github.com/tranche-gpu/tranche/claim"
	"github.com/tranche-gpu/tranche/claim/layout"
	"github.com/tranche-gpu/tranche/claim/rundir"
)

// Dir is the governor's directory in the run directory, and FileName the status's file in it. A governor has locked LockFile while it
// runs, and writes its log to LogFile if a device plugin has started it.
const (
	Dir      = "governor"
	FileName = "status.json"
	LockFile = "lock"
	LogFile  = "log"
)

// format is the version of the file's format.
const format = 1

// StaleAfter is the age from which what is published says nothing about the present: no governor runs.
const StaleAfter = 10 * time.Second

// Status is what the governor knows of a node. Its fields are part of what `tranche status --json` prints.
type Status struct {
	// Written is when it was published; the governor does so at least every five seconds.
	Written time.Time `json:"written"`
	// GPUs has the governed GPUs by UUID, and Claims the governed claims by ID.
	GPUs   map[string]GPU   `json:"gpus"`
	Claims map[string]Claim `json:"claims"`
}

// GPU is one governed GPU.
type GPU struct {
	// SwitchNS is the measured cost of a switch between two claims.
	SwitchNS uint64 `json:"switch_ns"`
	// Joined are the IDs of the claims of which processes have joined.
	Joined []string `json:"joined"`
}

// Claim is one governed claim.
type Claim struct {
	GPUUUID string `json:"gpu_uuid"`
	// Compute is what the governor goes by: the ledger's, at most a second late.
	claim.Compute
	// GPUSeconds is the GPU time that the claim was charged since it was first seen, and RecentPart its part, 0 to 1, of the
	// last ten seconds.
	GPUSeconds float64 `json:"gpu_seconds"`
	RecentPart float64 `json:"recent_part"`
	// Alone is whether the claim is the only one whose programs use the GPU: it may use all of it, and nothing is counted.
	Alone bool `json:"alone,omitempty"`
	// WaitingSeconds is how long the claim wanted the GPU while it was not its turn.
	WaitingSeconds float64 `json:"waiting_seconds"`
	// Overruns counts turns that had not ended by their deadline.
	Overruns uint64 `json:"overruns"`
	// Joined are the claim's processes that compute in turns, and NotJoined those that use the GPU and do not.
	Joined    []Process `json:"joined"`
	NotJoined []Process `json:"not_joined,omitempty"`
	// NotJoinedIn is the container of NotJoined, as claim.ContainerKey returns it: the claim's next one is another.
	NotJoinedIn string `json:"not_joined_in,omitempty"`
	// Bypass is what follows from NotJoined, if it is known that these processes have taken time of the GPU: the option
	// compute_bypass of the device plugin. It is empty if they are only named.
	Bypass layout.Bypass `json:"bypass,omitempty"`
}

// Process is a process as the host knows it.
type Process struct {
	PID  int    `json:"pid"`
	Name string `json:"name"`
}

type file struct {
	Format int `json:"tranche_governor"`
	Status
}

func dir(runDir string) string { return filepath.Join(runDir, Dir) }

// MakeDir makes the governor's directory, or takes everybody but its owner the access that earlier versions have given: whoever can
// open the lock can hold it.
func MakeDir(runDir string) error {
	err := os.MkdirAll(runDir, 0o755)
	if err == nil {
		err = os.MkdirAll(dir(runDir), 0o700)
	}
	var info os.FileInfo
	if err == nil {
		info, err = os.Stat(dir(runDir))
	}
	if err == nil && info.Mode().Perm() != 0o700 {
		err = os.Chmod(dir(runDir), 0o700) //nolint:gosec // a directory
	}
	if err != nil {
		return fmt.Errorf("make the governor's directory: %w", err)
	}
	return nil
}

// Write publishes a status in place of the one before.
func Write(runDir string, s Status) error {
	if err := MakeDir(runDir); err != nil {
		return err
	}
	if err := rundir.Write(dir(runDir), FileName, file{Format: format, Status: s}); err != nil {
		return fmt.Errorf("write the governor's status to %s: %w", filepath.Join(dir(runDir), FileName), err)
	}
	return nil
}

// Read returns what was published last, and nil where nothing was. See Stale.
func Read(runDir string) (*Status, error) {
	var f file
	found, err := rundir.Read(dir(runDir), FileName, &f)
	if found && err == nil {
		err = rundir.CheckFormat(f.Format, format)
	}
	switch {
	case err != nil:
		return nil, fmt.Errorf("read the governor's status from %s: %w; restart the governor, which writes it anew",
			filepath.Join(dir(runDir), FileName), err)
	case !found:
		return nil, nil
	}
	return &f.Status, nil
}

// ErrNotRunning is in the error of Current if no governor runs.
var ErrNotRunning = errors.New("shares of GPU time do not hold: the device plugin's log says why")

// Current returns what a governor that runs has published: one that has published nothing for longer than StaleAfter does not run.
func Current(runDir string, now time.Time) (*Status, error) {
	published, err := Read(runDir)
	switch {
	case err != nil:
		return nil, err
	case published == nil:
		return nil, fmt.Errorf("no governor has run since this node was booted; %w", ErrNotRunning)
	case now.Sub(published.Written) > StaleAfter:
		return nil, fmt.Errorf("no governor has run since %s; %w", published.Written.Format(time.RFC3339), ErrNotRunning)
	}
	return published, nil
}
