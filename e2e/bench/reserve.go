package main

import (
	"context"
	"fmt"
	"os"
	"strconv"
	"time"

	"golang.org/x/sync/errgroup"

	"github.com/tranche-gpu/tranche/claim"
	"github.com/tranche-gpu/tranche/internal/size"
)

// reserveClaims are how many other claims the ledger holds while reservations are measured, and reserveThreads how many
// reservations are made at the same time.
var (
	reserveClaims  = []int{0, 100, 1000}
	reserveThreads = []int{1, 8}
)

// reservations measures calls of Reserve, and what processor time they take of the plugin on average, with what the plugin
// then looks at for the fingerprint's sake.
func (n *deviceNode) reservations(ctx context.Context, counts deviceCounts) ([]result, error) {
	var results []result
	for _, claims := range reserveClaims {
		rows, err := n.reserveBeside(ctx, claims, counts.reserves)
		if err != nil {
			return nil, fmt.Errorf("reservations beside %d claims: %w", claims, err)
		}
		results = append(results, rows...)
	}
	return results, nil
}

// reserveBeside measures calls of Reserve while the ledger holds so many other claims, each bound to a living container.
func (n *deviceNode) reserveBeside(ctx context.Context, claims, count int) ([]result, error) {
	fmt.Printf("==> %d reservations each by %v threads beside %d claims\n", count, reserveThreads, claims)
	p, uuids, err := n.startFilled(ctx, claims)
	if err != nil {
		return nil, err
	}
	defer p.stop()
	// As on a node at work: what is reserved is also told of, if it means anything to Nomad.
	fingerprint, err := p.Fingerprint(ctx)
	if err != nil {
		return nil, err
	}
	if first := <-fingerprint; first == nil || first.Error != nil {
		return nil, fmt.Errorf("the plugin's fingerprint: %+v", first)
	}
	go func() {
		for range fingerprint { // until the plugin is stopped
		}
	}()
	var results []result
	for _, threads := range reserveThreads {
		var took []float64
		cpu, err := p.cpuOf(func() (err error) {
			took, err = p.reserveAtOnce(uuids, threads, count)
			return err
		})
		if err != nil {
			return nil, err
		}
		r := result{benchmark: "reserve", variant: "claims-" + strconv.Itoa(claims), threads: threads, unit: "ms"}
		r.median, r.p99 = medianOf(took)
		each := milliseconds(cpu) / float64(len(took))
		results = append(results, r, result{"reserve-cpu", r.variant, threads, each, each, "ms"})
	}
	return results, p.mustHold(ctx, claims+max(reserveThreads[0], reserveThreads[1]))
}

// age lets the claims grow as old as most are on a node at work. A ledger reads those anew that were changed within the last
// seconds; no event tells that these have passed.
func age(ctx context.Context) error {
	select {
	case <-time.After(4 * time.Second):
		return nil
	case <-ctx.Done():
		return ctx.Err()
	}
}

// uuids are the node's GPUs.
func (n *deviceNode) uuids(ctx context.Context) ([]string, error) {
	record, err := n.sim.Record(ctx)
	if err != nil {
		return nil, err
	}
	var uuids []string
	for _, gpu := range record.GPUs {
		uuids = append(uuids, gpu.UUID)
	}
	if len(uuids) != deviceGPUs {
		return nil, fmt.Errorf("the simulated node has %d GPUs, and %d were to be measured", len(uuids), deviceGPUs)
	}
	return uuids, nil
}

// fill makes claims of one slice each, on all GPUs in turn, and binds them to this process, which stands for the
// containers' first ones.
func fill(ctx context.Context, ledger *claim.Ledger, uuids []string, count int) error {
	if count == 0 {
		return nil
	}
	sliceBytes, err := size.ParseGPU(deviceSliceMemory)
	if err != nil {
		return err
	}
	var requests []claim.Request
	for i := range count {
		uuid, number := uuids[i%len(uuids)], i/len(uuids)
		requests = append(requests, claim.Request{
			GPU:    claim.GPU{UUID: uuid, Index: i % len(uuids), Name: "NVIDIA H200", ContextBytes: 300 << 20},
			Slices: []string{claim.SliceName(uuid, number)}, SliceBytes: sliceBytes, LimitBytes: sliceBytes, Owner: claim.OwnerNomad,
		})
	}
	made, _, err := ledger.ReserveAll(ctx, requests)
	if err != nil {
		return fmt.Errorf("fill the ledger: %w", err)
	}
	for i, c := range made {
		container := claim.Container{Runtime: "bench", ID: "bench-" + strconv.Itoa(i), InitPID: os.Getpid()}
		if err := ledger.Bind(ctx, c.ID, container); err != nil {
			return fmt.Errorf("fill the ledger: %w", err)
		}
	}
	return nil
}

// reserveAtOnce has threads reserve one slice each, again and again, each its own: the last of its GPU, which fill leaves
// free. So each reservation supersedes the one before, as on a node where tasks come and go. It returns the milliseconds of
// each call.
func (p *devicePlugin) reserveAtOnce(uuids []string, threads, count int) ([]float64, error) {
	took := make([][]float64, threads)
	var group errgroup.Group
	for thread := range threads {
		slice := []string{claim.SliceName(uuids[thread], deviceSlices-1)}
		group.Go(func() error {
			for range (count + threads - 1) / threads {
				began := time.Now()
				if _, err := p.Reserve(slice); err != nil {
					return err
				}
				took[thread] = append(took[thread], milliseconds(time.Since(began)))
			}
			return nil
		})
	}
	err := group.Wait()
	var all []float64
	for _, samples := range took {
		all = append(all, samples...)
	}
	return all, err
}

// mustHold checks that the ledger holds as many claims as it should.
func (p *devicePlugin) mustHold(ctx context.Context, want int) error {
	claims, problems, err := p.ledger.List(ctx)
	if err == nil && (len(claims) != want || len(problems) > 0) {
		err = fmt.Errorf("the ledger holds %d claims and not %d; problems: %v", len(claims), want, problems)
	}
	return err
}
