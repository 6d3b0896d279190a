// Package bill sums up the usage of nodes and writes it: as a table for people, as CSV and JSON for programs, and in the
// columns of FOCUS for programs that handle bills. Sums and costs are exact, and rounded only when they are written.
package bill

import (
	"cmp"
	"context"
	"fmt"
	"maps"
	"math/big"
	"slices"

	"github.com/tranche-gpu/tranche/usage"
)

// By is what a report has a row for.
type By string

// What there may be a row for.
const (
	ByJob       By = "job"
	ByNamespace By = "namespace"
	ByGPU       By = "gpu"
	ByNode      By = "node"
)

// All are all that there may be a row for.
var All = []By{ByJob, ByNamespace, ByGPU, ByNode}

// ParseBy parses the name of a By.
func ParseBy(text string) (By, error) {
	if by := By(text); slices.Contains(All, by) {
		return by, nil
	}
	return "", fmt.Errorf("must be job, namespace, gpu or node, got %q", text)
}

// Row is the usage of one job, namespace, GPU or node.
type Row struct {
	Node                      string
	Namespace, Job, Container string
	// Verified reports that Nomad said the names.
	Verified bool
	GPU      usage.GPUName

	reserved  map[terms]int64 // milliseconds
	observed  int64           // milliseconds
	used      float64         // GiB times milliseconds
	available float64         // GiB times milliseconds that were reserved while observed
	PeakBytes uint64
}

// terms are what a price depends on.
type terms struct {
	bytes uint64
	share int64
}

// key distinguishes the rows.
type key struct {
	namespace, job, container string
	verified                  bool
	node, gpu                 string
}

// Report is the usage of a time.
type Report struct {
	By     By
	Query  usage.Query
	Prices Prices
	Rows   []*Row
	// Total is the sum of the rows.
	Total Row
	Gaps  []usage.Gap
}

// Make sums up usage.
func Make(ctx context.Context, s *usage.Store, by By, q usage.Query, prices Prices) (*Report, error) {
	rows := map[key]*Row{}
	r := &Report{By: by, Query: q, Prices: prices, Total: Row{reserved: map[terms]int64{}}}
	err := s.Sums(ctx, q, func(l usage.Line) error {
		k, row := by.row(l)
		if known, ok := rows[k]; ok {
			row = known
		}
		rows[k] = row
		row.add(l)
		r.Total.add(l)
		return nil
	})
	if err != nil {
		return nil, err
	}
	r.Rows = slices.SortedFunc(maps.Values(rows), compareRows)
	r.Gaps, err = s.Gaps(ctx, q)
	return r, err
}

// row returns the row that a line belongs to, and its key. The instances of a periodic or parameterized job are one job.
func (by By) row(l usage.Line) (key, *Row) {
	row := &Row{reserved: map[terms]int64{}}
	var k key
	switch by {
	case ByGPU:
		row.GPU = l.GPU
		k.gpu = l.GPU.UUID
		fallthrough
	case ByNode:
		row.Node = l.Node
		k.node = l.Node
	case ByJob:
		row.Job = cmp.Or(l.ParentJob, l.Job)
		if !l.OfNomad() {
			row.Container = l.ContainerName
		}
		fallthrough
	case ByNamespace:
		row.Namespace, row.Verified = l.Namespace, l.Verified || !l.OfNomad()
		k = key{row.Namespace, row.Job, row.Container, row.Verified, "", ""}
	}
	return k, row
}

func compareRows(x, y *Row) int {
	return cmp.Or(cmp.Compare(x.Node, y.Node), cmp.Compare(x.GPU.Index, y.GPU.Index), cmp.Compare(x.GPU.UUID, y.GPU.UUID), cmp.Compare(x.Namespace, y.Namespace),
		cmp.Compare(x.Job, y.Job), cmp.Compare(x.Container, y.Container), compareBool(y.Verified, x.Verified))
}

func compareBool(x, y bool) int {
	switch {
	case x == y:
		return 0
	case y:
		return -1
	}
	return 1
}

func (r *Row) add(l usage.Line) {
	r.reserved[terms{l.Bytes, l.Share}] += l.ReservedMillis
	r.observed += l.ObservedMillis
	r.used += l.UsedGiBMillis
	r.available += float64(l.ObservedMillis) * float64(l.Bytes) / gib
	r.PeakBytes = max(r.PeakBytes, l.PeakBytes)
}

const (
	gib         = 1 << 30
	hourSeconds = 3600
	hourMillis  = hourSeconds * 1000
)

// ReservedMillis is the time for which claims had something reserved, summed up over the claims.
func (r *Row) ReservedMillis() (sum int64) {
	for _, millis := range r.reserved {
		sum += millis
	}
	return sum
}

// UnobservedMillis is the part of that time in which nobody counted what was used.
func (r *Row) UnobservedMillis() int64 { return r.ReservedMillis() - r.observed }

// GiBHours is the reserved memory times the hours.
func (r *Row) GiBHours() *big.Rat {
	sum := new(big.Rat)
	for t, millis := range r.reserved {
		sum.Add(sum, gibHours(t.bytes, millis))
	}
	return sum
}

// GPUHours is the reserved part of GPUs times the hours; nil if it is not known.
func (r *Row) GPUHours() *big.Rat {
	sum := new(big.Rat)
	for t, millis := range r.reserved {
		if t.share < 0 {
			return nil
		}
		sum.Add(sum, gpuHours(t.share, millis))
	}
	return sum
}

// Cost is the price of the reserved time; nil if it is not known.
func (r *Row) Cost(p Prices) *big.Rat {
	sum := new(big.Rat)
	if p.GiBHour != nil {
		sum.Add(sum, new(big.Rat).Mul(p.GiBHour, r.GiBHours()))
	}
	if p.GPUHour != nil {
		hours := r.GPUHours()
		if hours == nil {
			return nil
		}
		sum.Add(sum, hours.Mul(p.GPUHour, hours))
	}
	return sum
}

// Used is the part of the reserved memory that was used while it was observed.
func (r *Row) Used() (part float64, known bool) {
	if r.observed == 0 || r.available == 0 {
		return 0, false
	}
	return r.used / r.available, true
}

// UnusedGiBHours is the reserved memory that was not used times the hours, while it was observed.
func (r *Row) UnusedGiBHours() (hours float64, known bool) {
	if r.observed == 0 {
		return 0, false
	}
	return max(0, r.available-r.used) / hourMillis, true
}

// SortByUnused sorts the rows by the memory that was reserved and not used, the most first.
func (r *Report) SortByUnused() {
	slices.SortStableFunc(r.Rows, func(x, y *Row) int {
		of, _ := x.UnusedGiBHours()
		other, _ := y.UnusedGiBHours()
		return cmp.Compare(other, of)
	})
}

func gibHours(bytes uint64, millis int64) *big.Rat {
	return ratio(new(big.Int).SetUint64(bytes), millis, gib)
}

func gpuHours(share, millis int64) *big.Rat {
	return ratio(big.NewInt(share), millis, usage.WholeShare)
}

// ratio returns an amount, in parts of a unit, times the hours.
func ratio(amount *big.Int, millis, unit int64) *big.Rat {
	return new(big.Rat).SetFrac(amount.Mul(amount, big.NewInt(millis)), new(big.Int).Mul(big.NewInt(unit), big.NewInt(hourMillis)))
}
