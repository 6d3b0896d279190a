package device

import (
	"context"
	"errors"
	"fmt"
	"slices"
	"strconv"
	"strings"

	"google.golang.org/grpc/codes"
	"google.golang.org/grpc/status"

	"tranche.dev/tranche/claim"
	"tranche.dev/tranche/claim/memsize"
)

// reserve makes a claim on the slices.
func (m *sliceMode) reserve(ctx context.Context, ids []string) (token claim.Token, err error) {
	g, err := m.resolve(ctx, ids)
	if err != nil {
		return token, err
	}
	if g.problem != "" {
		return token, fmt.Errorf("the GPU %s cannot be used: %s", g, g.problem)
	}
	contextBytes, err := m.costs.Cost(ctx, g.costKey())
	if err != nil {
		return token, err
	}
	limitBytes := uint64(len(ids)) * m.sliceBytes
	if limitBytes < contextBytes {
		return token, fmt.Errorf("%d slices of %s make a limit of %s, but a CUDA context on the GPU %s takes %s before the "+
			"first allocation: ask for at least %d slices",
			len(ids), memsize.Format(m.sliceBytes), memsize.Format(limitBytes), g, memsize.Format(contextBytes),
			(contextBytes+m.sliceBytes-1)/m.sliceBytes)
	}
	m.sweep(ctx)
	_, token, err = m.ledger.Reserve(ctx, claim.Request{
		GPU:        claim.GPU{UUID: g.UUID, Index: g.Index, Name: g.Name, ContextBytes: contextBytes},
		Slices:     slices.Sorted(slices.Values(ids)),
		SliceBytes: m.sliceBytes,
		LimitBytes: limitBytes,
		Owner:      claim.OwnerNomad,
	})
	return token, err
}

// resolve finds the one GPU that all the slices are of. Nomad may ask before
// the first fingerprint: an agent that restarted knows the slices from before.
func (m *sliceMode) resolve(ctx context.Context, ids []string) (*gpu, error) {
	if len(ids) == 0 {
		return nil, errors.New("the reservation names no slices")
	}
	if twice := duplicates(ids); len(twice) > 0 {
		return nil, fmt.Errorf("the reservation names slices more than once: %s", strings.Join(twice, ", "))
	}
	unknown := m.unknown(ids)
	if len(unknown) > 0 {
		if err := m.scan(ctx); err != nil {
			return nil, fmt.Errorf("cannot tell whose slices these are: %s: %w", strings.Join(unknown, ", "), err)
		}
		unknown = m.unknown(ids)
	}
	if len(unknown) > 0 {
		return nil, fmt.Errorf("not slices of this node's GPUs: %s; the GPUs are: %s. If a GPU, slice_memory or "+
			"ignored_gpu_ids was changed, stop the job and run it again", strings.Join(unknown, ", "), m.inventory.names())
	}
	uuids := gpusOf(ids)
	if len(uuids) > 1 {
		return nil, fmt.Errorf("the reservation names slices of %d GPUs: %s (GPUs %s); a claim is on one GPU, so ask for "+
			"each GPU in a device block of its own", len(uuids), strings.Join(ids, ", "), strings.Join(uuids, ", "))
	}
	g, _ := m.inventory.find(uuids[0])
	return &g, nil
}

// unknown returns those IDs that are no slices of this node's GPUs.
func (m *sliceMode) unknown(ids []string) []string {
	var unknown []string
	for _, id := range ids {
		uuid, number, ok := claim.ParseSliceName(id)
		g, known := m.inventory.find(uuid)
		if !ok || !known || number >= g.slices {
			unknown = append(unknown, strconv.Quote(id))
		}
	}
	return unknown
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

// gpusOf returns the UUIDs of the slices' GPUs, each once.
func gpusOf(ids []string) []string {
	seen := make(map[string]bool)
	var uuids []string
	for _, id := range ids {
		uuid, _, _ := claim.ParseSliceName(id)
		if !seen[uuid] {
			seen[uuid] = true
			uuids = append(uuids, uuid)
		}
	}
	return uuids
}

// reserveError carries an error across gRPC. Nomad drops everything but the
// text on the way to the task, so that what can be done has to be said in it.
type reserveError struct{ err error }

func (e reserveError) Error() string { return e.text() }
func (e reserveError) Unwrap() error { return e.err }

func (e reserveError) text() string {
	if held := (*claim.HeldError)(nil); errors.As(e.err, &held) {
		return e.err.Error() + "; nothing was changed, and the reservation can be retried"
	}
	return e.err.Error()
}

// GRPCStatus is what gRPC asks an error for.
func (e reserveError) GRPCStatus() *status.Status {
	code := codes.FailedPrecondition
	if held := (*claim.HeldError)(nil); errors.As(e.err, &held) {
		code = codes.Aborted
	}
	return status.New(code, e.text())
}
