package usage

import (
	"context"
	"database/sql"
	"errors"
	"fmt"
	"time"

	"github.com/tranche-gpu/tranche/claim"
)

// Line is what one claim had reserved of one GPU in one hour, by one size and share.
type Line struct {
	Hour    time.Time
	ClaimID string
	Created time.Time
	Owner   string
	claim.Workload
	GPU   GPUName
	Mode  claim.Mode
	Bytes uint64
	// Share is the part of the GPU in billionths; negative if it is not known.
	Share            int64
	ReservedMillis   int64
	ObservedMillis   int64
	UsedGiBMillis    float64 // GiB that were used times the milliseconds in which they were, while observed
	PeakBytes        uint64  // the most that the claim was seen to use in its whole life
	UnobservedMillis int64   // the rest of the reserved time
}

// GPUName names a GPU.
type GPUName struct {
	UUID, Model string
	Index       int
}

// WholeShare is a Line's share that is all of a GPU.
const WholeShare = wholeShare

const selectLines = `
SELECT h.hour, c.id, c.created, c.owner, c.namespace, c.job, c.parent_job, c.task_group, c.task, c.allocation, c.container, c.verified,
       h.gpu, COALESCE(g.model, ''), COALESCE(g.idx, -1), h.mode, h.bytes, h.share, h.reserved_ms, h.observed_ms, h.used_gib_ms, c.peak_bytes
  FROM hour h JOIN claim c ON c.key = h.claim LEFT JOIN gpu g ON g.uuid = h.gpu
 WHERE h.hour >= ? AND h.hour < ?
 ORDER BY h.hour, c.key, h.gpu, h.mode, h.bytes, h.share`

// Lines calls fn for the lines of the hours from one time to another, in the order of the hours and claims.
func (s *Store) Lines(ctx context.Context, from, to time.Time, fn func(Line) error) error {
	rows, err := s.db.QueryContext(ctx, selectLines, from.UnixMilli()/hourMillis, (to.UnixMilli()+hourMillis-1)/hourMillis)
	if err != nil {
		return s.unreadable(err)
	}
	defer rows.Close()
	for rows.Next() {
		l, err := scanLine(rows)
		if err != nil {
			return s.unreadable(err)
		}
		if err := fn(l); err != nil {
			return err
		}
	}
	return s.unreadable(rows.Err())
}

func scanLine(rows *sql.Rows) (Line, error) {
	var l Line
	var hour, created int64
	err := rows.Scan(&hour, &l.ClaimID, &created, &l.Owner, &l.Namespace, &l.Job, &l.ParentJob, &l.Group, &l.Task, &l.Allocation,
		&l.ContainerName, &l.Verified, &l.GPU.UUID, &l.GPU.Model, &l.GPU.Index, &l.Mode, &l.Bytes, &l.Share, &l.ReservedMillis,
		&l.ObservedMillis, &l.UsedGiBMillis, &l.PeakBytes)
	l.Hour, l.Created = time.UnixMilli(hour*hourMillis).UTC(), time.UnixMilli(created).UTC()
	l.UnobservedMillis = l.ReservedMillis - l.ObservedMillis
	return l, err
}

// Gaps returns the times of which something is not known, in order.
func (s *Store) Gaps(ctx context.Context, from, to time.Time) ([]Gap, error) {
	rows, err := s.db.QueryContext(ctx, "SELECT since, until, reason FROM gap WHERE until >= ? AND since < ? ORDER BY since, reason",
		from.UnixMilli(), to.UnixMilli())
	if err != nil {
		return nil, s.unreadable(err)
	}
	defer rows.Close()
	gaps := []Gap{}
	for rows.Next() {
		var since, until int64
		var reason string
		if err := rows.Scan(&since, &until, &reason); err != nil {
			return nil, s.unreadable(err)
		}
		gaps = append(gaps, newGap(since, until, reason))
	}
	return gaps, s.unreadable(rows.Err())
}

func newGap(from, to int64, reason string) Gap {
	return Gap{time.UnixMilli(from).UTC(), time.UnixMilli(to).UTC(), reason}
}

// Accounted returns since when this node's usage is accounted, and up to when; both are zero before the first collection.
func (s *Store) Accounted(ctx context.Context) (begun, seen time.Time, err error) {
	var from, to int64
	err = s.db.QueryRowContext(ctx, "SELECT begun, seen FROM watermark").Scan(&from, &to)
	if errors.Is(err, sql.ErrNoRows) {
		return begun, seen, nil
	}
	if err != nil {
		return begun, seen, s.unreadable(err)
	}
	return time.UnixMilli(from).UTC(), time.UnixMilli(to).UTC(), nil
}

// totals returns the totals of the claims in the ledger.
func (s *Store) totals(ctx context.Context) (*Totals, error) {
	_, seen, err := s.Accounted(ctx)
	if err != nil {
		return nil, err
	}
	rows, err := s.db.QueryContext(ctx, "SELECT id, total_ms, gib_ms, gpu_ms FROM claim WHERE ended = 0")
	if err != nil {
		return nil, s.unreadable(err)
	}
	defer rows.Close()
	totals := &Totals{Seen: seen, Claims: map[string]Total{}}
	for rows.Next() {
		var id string
		var t Total
		if err := rows.Scan(&id, &t.Millis, &t.GiBMillis, &t.GPUMillis); err != nil {
			return nil, s.unreadable(err)
		}
		totals.Claims[id] = t
	}
	return totals, s.unreadable(rows.Err())
}

func (s *Store) unreadable(err error) error {
	if err == nil {
		return nil
	}
	return fmt.Errorf("read the usage database %s: %w", s.path, explain(err))
}
