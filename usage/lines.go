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
	Node    string
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

// Query says what is reported: the hours from one time to another, of one node or of all.
type Query struct {
	From, To time.Time
	Node     string // empty: all
}

// The hours of a query: one by one, or summed up.
const (
	someHours = "FROM hour WHERE hour >= $1 AND hour < $2 AND ($3 = '' OR node IN (SELECT id FROM node WHERE name = $3))"
	eachHour  = "SELECT * " + someHours
	allHours  = `SELECT MIN(hour) AS hour, node, claim, created, gpu, mode, bytes, share, CAST(SUM(reserved_ms) AS BIGINT) AS reserved_ms,
       CAST(SUM(observed_ms) AS BIGINT) AS observed_ms, SUM(used_gib_ms) AS used_gib_ms ` + someHours + `
 GROUP BY node, claim, created, gpu, mode, bytes, share`
)

// selectLines selects lines of hours.
const selectLines = `
SELECT h.hour, n.name, c.id, c.created, c.owner, c.namespace, c.job, c.parent_job, c.task_group, c.task, c.allocation, c.container, c.verified,
       h.gpu, COALESCE(g.model, ''), COALESCE(g.idx, -1), h.mode, h.bytes, h.share, h.reserved_ms, h.observed_ms, h.used_gib_ms, c.peak_bytes
  FROM (%s) h
  JOIN node n ON n.id = h.node
  JOIN claim c ON c.node = h.node AND c.id = h.claim AND c.created = h.created
  LEFT JOIN gpu g ON g.node = h.node AND g.uuid = h.gpu
 ORDER BY h.hour, n.name, h.node, c.created, c.id, h.gpu, h.mode, h.bytes, h.share`

// Lines calls fn for the lines, in the order of the hours, nodes and claims.
func (s *Store) Lines(ctx context.Context, q Query, fn func(Line) error) error {
	return s.lines(ctx, eachHour, q, fn)
}

// Sums calls fn for the lines, summed up over the hours. Each has the first hour of its sum.
func (s *Store) Sums(ctx context.Context, q Query, fn func(Line) error) error {
	return s.lines(ctx, allHours, q, fn)
}

func (s *Store) lines(ctx context.Context, hours string, q Query, fn func(Line) error) error {
	rows, err := s.db.QueryContext(ctx, fmt.Sprintf(selectLines, hours),
		q.From.UnixMilli()/hourMillis, (q.To.UnixMilli()+hourMillis-1)/hourMillis, q.Node)
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
	err := rows.Scan(&hour, &l.Node, &l.ClaimID, &created, &l.Owner, &l.Namespace, &l.Job, &l.ParentJob, &l.Group, &l.Task, &l.Allocation,
		&l.ContainerName, &l.Verified, &l.GPU.UUID, &l.GPU.Model, &l.GPU.Index, &l.Mode, &l.Bytes, &l.Share, &l.ReservedMillis,
		&l.ObservedMillis, &l.UsedGiBMillis, &l.PeakBytes)
	l.Hour, l.Created = time.UnixMilli(hour*hourMillis).UTC(), time.UnixMilli(created).UTC()
	l.UnobservedMillis = l.ReservedMillis - l.ObservedMillis
	return l, err
}

// notCollected is how long before now the last collection of a node may be: an agent makes one each minute.
const notCollected = 10 * time.Minute

// Gaps returns the times of which something is not known, in order.
func (s *Store) Gaps(ctx context.Context, q Query) ([]Gap, error) {
	from, to := q.From.UnixMilli(), q.To.UnixMilli()
	now := min(to, time.Now().UnixMilli())
	rows, err := s.db.QueryContext(ctx, `
SELECT n.name, g.since, g.until, g.reason FROM gap g JOIN node n ON n.id = g.node
 WHERE g.until >= $1 AND g.since < $2 AND ($3 = '' OR n.name = $3)
 UNION ALL
SELECT name, MAX(seen), $4, $5 FROM node WHERE $3 = '' OR name = $3 GROUP BY name HAVING MAX(seen) < $6
 ORDER BY 2, 1, 4`, from, to, q.Node, now, "not collected yet; see whether the node and its agent run",
		now-notCollected.Milliseconds())
	if err != nil {
		return nil, s.unreadable(err)
	}
	defer rows.Close()
	gaps := []Gap{}
	for rows.Next() {
		var node, reason string
		var since, until int64
		if err := rows.Scan(&node, &since, &until, &reason); err != nil {
			return nil, s.unreadable(err)
		}
		gaps = append(gaps, newGap(node, since, until, reason))
	}
	return gaps, s.unreadable(rows.Err())
}

func newGap(node string, from, to int64, reason string) Gap {
	return Gap{node, time.UnixMilli(from).UTC(), time.UnixMilli(to).UTC(), reason}
}

// Nodes returns the names of the nodes.
func (s *Store) Nodes(ctx context.Context) ([]string, error) {
	rows, err := s.db.QueryContext(ctx, "SELECT DISTINCT name FROM node ORDER BY name")
	if err != nil {
		return nil, s.unreadable(err)
	}
	defer rows.Close()
	var names []string
	for rows.Next() {
		var name string
		if err := rows.Scan(&name); err != nil {
			return nil, s.unreadable(err)
		}
		names = append(names, name)
	}
	return names, s.unreadable(rows.Err())
}

// Accounted returns since when this node's usage is accounted, and up to when; both are zero before the first collection.
func (s *Store) Accounted(ctx context.Context) (begun, seen time.Time, err error) {
	number, err := s.node(s.place.StateDir)
	if err != nil {
		return begun, seen, s.unreadable(err)
	}
	var from, to int64
	err = s.db.QueryRowContext(ctx, "SELECT begun, seen FROM node WHERE id = $1", number).Scan(&from, &to)
	if errors.Is(err, sql.ErrNoRows) {
		return begun, seen, nil
	}
	if err != nil {
		return begun, seen, s.unreadable(err)
	}
	return time.UnixMilli(from).UTC(), time.UnixMilli(to).UTC(), nil
}

// Totals returns the totals of the claims in the ledger.
func (s *Store) Totals(ctx context.Context) (*Totals, error) {
	_, seen, err := s.Accounted(ctx)
	if err != nil {
		return nil, err
	}
	number, err := s.node(s.place.StateDir)
	if err != nil {
		return nil, s.unreadable(err)
	}
	rows, err := s.db.QueryContext(ctx, "SELECT id, total_ms, gib_ms, gpu_ms FROM claim WHERE node = $1 AND NOT ended", number)
	if err != nil {
		return nil, s.unreadable(err)
	}
	defer rows.Close()
	totals := &Totals{Seen: seen, Claims: map[string]Total{}, UnusedGiBHours: map[string]float64{}}
	for rows.Next() {
		var id string
		var t Total
		if err := rows.Scan(&id, &t.Millis, &t.GiBMillis, &t.GPUMillis); err != nil {
			return nil, s.unreadable(err)
		}
		totals.Claims[id] = t
	}
	if err := rows.Err(); err != nil {
		return nil, s.unreadable(err)
	}
	return totals, s.unreadable(s.addUnused(ctx, number, totals))
}

// addUnused adds what the claims in the ledger did not use in the last day.
func (s *Store) addUnused(ctx context.Context, node int64, totals *Totals) error {
	rows, err := s.db.QueryContext(ctx, `
SELECT c.id, SUM(h.observed_ms * (h.bytes / 1073741824.0) - h.used_gib_ms)
  FROM hour h JOIN claim c ON c.node = h.node AND c.id = h.claim AND c.created = h.created
 WHERE h.node = $1 AND h.hour >= $2 AND h.observed_ms > 0 AND NOT c.ended GROUP BY c.id`, node, totals.Seen.UnixMilli()/hourMillis-24)
	if err != nil {
		return err
	}
	defer rows.Close()
	for rows.Next() {
		var id string
		var gibMillis float64
		if err := rows.Scan(&id, &gibMillis); err != nil {
			return err
		}
		totals.UnusedGiBHours[id] = max(0, gibMillis/float64(hourMillis))
	}
	return rows.Err()
}

func (s *Store) unreadable(err error) error {
	if err == nil {
		return nil
	}
	return fmt.Errorf("read the usage database %s: %w", s.name, s.explain(err))
}
