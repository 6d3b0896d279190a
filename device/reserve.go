package device

import (
	"context"
	"errors"
	"fmt"
	"strconv"
	"strings"

	ndevice "github.com/hashicorp/nomad/plugins/device"
	"google.golang.org/grpc/codes"
	"google.golang.org/grpc/status"

	"github.com/tranche-gpu/tranche/claim"
)

// reserve makes claims on devices.
func (n *node) reserve(ctx context.Context, ids []string) (*ndevice.ContainerReservation, error) {
	devices, err := n.resolve(ctx, ids)
	if err != nil {
		return nil, err
	}
	for _, d := range devices {
		if d.gpu.problem != "" {
			return nil, fmt.Errorf("the GPU %s cannot be used: %s", &d.gpu, d.gpu.problem)
		}
		if err := n.mps.leaving(&d.gpu); err != nil {
			return nil, err
		}
	}
	how := devices[0].gpu.mode
	tokens, err := n.modes[how].reserve(ctx, devices)
	if err != nil {
		return nil, err
	}
	visible := ids
	if devices[0].gpu.onDemand() {
		if visible, err = n.instancesOf(ctx, tokens); err != nil {
			return nil, err
		}
	}
	return reservation(how, visible, tokens), nil
}

// reservation is the answer to Nomad.
func reservation(how claim.Mode, visible []string, tokens []claim.Token) *ndevice.ContainerReservation {
	envs := map[string]string{
		// A container that misses our runtime gets no GPU rather than one without a limit.
		claim.VisibleDevices: claim.NoDevices,
	}
	if how == claim.ModeExclusive || how == claim.ModeMIG {
		// There is no limit to miss, and NVIDIA's runtime, which nomad-device-nvidia's jobs use, goes by this.
		envs[claim.VisibleDevices] = strings.Join(visible, ",")
	}
	for _, token := range tokens {
		envs[token.EnvName()] = token.Reveal()
	}
	return &ndevice.ContainerReservation{Envs: envs}
}

// claim has the ledger make claims, all or none. The ledger sees for itself which
// older claims' containers live.
func (n *node) claim(ctx context.Context, requests ...claim.Request) ([]claim.Token, error) {
	_, tokens, err := n.ledger.ReserveAll(ctx, requests)
	return tokens, err
}

// resolve finds the devices with these IDs, which are of GPUs that are shared in
// the same way. Nomad may ask before the first fingerprint: an agent that
// restarted knows the devices from before.
func (n *node) resolve(ctx context.Context, ids []string) ([]device, error) {
	if len(ids) == 0 {
		return nil, errors.New("the reservation names no devices")
	}
	if twice := duplicates(ids); len(twice) > 0 {
		return nil, fmt.Errorf("the reservation names devices more than once: %s", list(twice))
	}
	devices, unknown := n.find(ids)
	if len(unknown) > 0 {
		if err := n.scan(ctx); err != nil {
			return nil, fmt.Errorf("cannot tell whose devices these are: %s: %w", list(unknown), err)
		}
		devices, unknown = n.find(ids)
	}
	if len(unknown) > 0 {
		return nil, fmt.Errorf("not devices of this node's GPUs: %s; the GPUs are: %s. If a GPU, its mode, slice_memory or "+
			"ignored_gpu_ids was changed, stop the job and run it again", list(unknown), n.inventory.names())
	}
	for _, d := range devices {
		if d.gpu.mode != devices[0].gpu.mode {
			return nil, fmt.Errorf("the reservation names devices of GPUs that are shared in different ways: %s is in mode "+
				"%q, %s in mode %q", devices[0].id, devices[0].gpu.mode, d.id, d.gpu.mode)
		}
	}
	return devices, nil
}

// find finds devices by their IDs, and returns those IDs that are of none.
func (n *node) find(ids []string) (devices []device, unknown []string) {
	for _, id := range ids {
		g, known := n.inventory.owner(id)
		if !known || !n.modes[g.mode].has(&g, id) {
			unknown = append(unknown, strconv.Quote(id))
			continue
		}
		devices = append(devices, device{id: id, gpu: g})
	}
	return devices, unknown
}

func ids(devices []device) []string {
	var ids []string
	for _, d := range devices {
		ids = append(ids, d.id)
	}
	return ids
}

func list(texts []string) string { return claim.ListNames(texts) }

func duplicates(ids []string) []string {
	count := make(map[string]int)
	var twice []string
	for _, id := range ids {
		count[id]++
		if count[id] == 2 {
			twice = append(twice, strconv.Quote(id))
		}
	}
	return twice
}

// reserveError carries an error across gRPC. Nomad drops everything but the
// text on the way to the task, so that what can be done has to be said in it.
type reserveError struct{ err error }

func (e reserveError) Error() string { return e.text() }
func (e reserveError) Unwrap() error { return e.err }

func (e reserveError) text() string {
	if e.passes() {
		return e.err.Error() + "; nothing was changed, and the reservation can be retried"
	}
	return e.err.Error()
}

// passes tells whether the same reservation may succeed later.
func (e reserveError) passes() bool {
	var passing interface{ Retriable() bool }
	return errors.As(e.err, &passing) && passing.Retriable()
}

// GRPCStatus is what gRPC asks an error for.
func (e reserveError) GRPCStatus() *status.Status {
	code := codes.FailedPrecondition
	if e.passes() {
		code = codes.Aborted
	}
	return status.New(code, e.text())
}
