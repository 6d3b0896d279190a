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
	"github.com/tranche-gpu/tranche/device/share"
	"github.com/tranche-gpu/tranche/device/share/mps"
)

// reservations makes claims on the devices that Nomad reserves.
type reservations struct {
	scanner   *scanner
	inventory *inventory
	modes     map[claim.Mode]share.Mode
	daemons   *mps.Daemons
}

// reserve makes claims on devices, all or none.
func (r *reservations) reserve(ctx context.Context, ids []string) (*ndevice.ContainerReservation, error) {
	devices, err := r.resolve(ctx, ids)
	if err != nil {
		return nil, err
	}
	for _, d := range devices {
		if d.GPU.Problem != "" {
			return nil, fmt.Errorf("the GPU %s cannot be used: %s", &d.GPU, d.GPU.Problem)
		}
		if err := r.daemons.Leaving(&d.GPU); err != nil {
			return nil, err
		}
	}
	reserved, err := r.modes[devices[0].GPU.Mode].Reserve(ctx, devices)
	if err != nil {
		return nil, err
	}
	envs := map[string]string{
		// A container that misses our runtime gets no GPU rather than one without a limit.
		claim.VisibleDevices: claim.NoDevices,
	}
	if len(reserved.Visible) > 0 {
		// There is no limit to miss, and jobs for nomad-device-nvidia use NVIDIA's runtime, which reads this.
		envs[claim.VisibleDevices] = strings.Join(reserved.Visible, ",")
	}
	for _, token := range reserved.Tokens {
		envs[token.EnvName()] = token.Reveal()
	}
	return &ndevice.ContainerReservation{Envs: envs}, nil
}

// resolve returns the devices with these IDs, whose GPUs have to be in the same mode. Nomad may reserve devices before the
// first fingerprint, because a restarted agent knows them from before.
func (r *reservations) resolve(ctx context.Context, ids []string) ([]share.Device, error) {
	if len(ids) == 0 {
		return nil, errors.New("the reservation names no devices")
	}
	if twice := duplicates(ids); len(twice) > 0 {
		return nil, fmt.Errorf("the reservation names devices more than once: %s", claim.ListNames(twice))
	}
	devices, unknown := r.find(ids)
	if len(unknown) > 0 {
		if err := r.scanner.scan(ctx); err != nil {
			return nil, fmt.Errorf("find the GPUs of the devices %s: %w", claim.ListNames(unknown), err)
		}
		devices, unknown = r.find(ids)
	}
	if len(unknown) > 0 {
		return nil, fmt.Errorf("not devices of this node's GPUs: %s; the GPUs are: %s. If a GPU, its mode, slice_memory or "+
			"ignored_gpu_ids was changed, stop the job and run it again", claim.ListNames(unknown), r.inventory.names())
	}
	for _, d := range devices {
		if d.GPU.Mode != devices[0].GPU.Mode {
			return nil, fmt.Errorf("the reservation names devices of GPUs that are shared in different ways: %s is in mode "+
				"%q, %s in mode %q", devices[0].ID, devices[0].GPU.Mode, d.ID, d.GPU.Mode)
		}
	}
	return devices, nil
}

// find returns the devices with these IDs, and the IDs that name no device.
func (r *reservations) find(ids []string) (devices []share.Device, unknown []string) {
	for _, id := range ids {
		g, known := r.inventory.owner(id)
		if !known || !r.modes[g.Mode].Has(&g, id) {
			unknown = append(unknown, strconv.Quote(id))
			continue
		}
		devices = append(devices, share.Device{ID: id, GPU: g})
	}
	return devices, unknown
}

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

// reserveError carries an error across gRPC. Only its text reaches the task, so the text says whether a retry may help.
type reserveError struct{ err error }

func (e reserveError) Error() string { return e.text() }
func (e reserveError) Unwrap() error { return e.err }

func (e reserveError) text() string {
	if e.retriable() {
		return e.err.Error() + "; nothing was changed, and the reservation can be retried"
	}
	return e.err.Error()
}

// retriable reports whether the same reservation may succeed later by itself.
func (e reserveError) retriable() bool {
	var err interface{ Retriable() bool }
	var access *claim.AccessError
	return errors.As(e.err, &err) && err.Retriable() && (!errors.As(e.err, &access) || !access.Lasts())
}

// GRPCStatus returns the status by which gRPC sends the error.
func (e reserveError) GRPCStatus() *status.Status {
	code := codes.FailedPrecondition
	if e.retriable() {
		code = codes.Aborted
	}
	return status.New(code, e.text())
}
