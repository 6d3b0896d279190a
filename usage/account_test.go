package usage

import (
	"encoding/json"
	"testing"
	"time"

	"github.com/shoenig/test/must"

	"github.com/tranche-gpu/tranche/claim"
	"github.com/tranche-gpu/tranche/claim/journal"
)

const gib = 1 << 30

// t0 is the begin of an hour.
const t0 = 500_000 * hourMillis

func newBooks() *books {
	return &books{
		gpus:     map[string]GPU{"GPU-1": {MemoryBytes: 140 * gib, Replicas: 4}},
		find:     func(claimKey) (*account, error) { return nil, nil },
		accounts: map[claimKey]*account{}, hours: map[hourKey]hourSum{}, devices: map[string]device{},
	}
}

var fourSlices = journal.Terms{GPU: "GPU-1", Mode: "slice", Slices: 4, SliceBytes: gib}

// at returns an event of claim "a", which was made at t0, so many milliseconds after that.
func at(millis int64, kind journal.Kind, was journal.State) journal.Event {
	return journal.Event{Kind: kind, At: t0 + millis, Boot: "b1", Claim: "a", Created: t0, Was: was, Terms: fourSlices}
}

func freeSince(millis int64, e journal.Event) journal.Event {
	e.FreeSince = t0 + millis
	return e
}

// reservedMillis returns what a claim had in all.
func (b *books) reservedMillis(id string) (sum int64) {
	for k, hour := range b.hours {
		if k.claim.id == id {
			sum += hour.reserved
		}
	}
	return sum
}

func ledgerClaim(millis int64) *claim.Claim {
	return &claim.Claim{ID: "a", Created: time.UnixMilli(t0 + millis), GPU: claim.GPU{UUID: "GPU-1"}, Slices: make([]string, 4), LimitBytes: 4 * gib}
}

func cutAt(millis int64, claims ...*claim.Claim) claim.Cut {
	return claim.Cut{At: time.UnixMilli(t0 + millis), Boot: "b1", Claims: claims}
}

func TestBooks_Events(t *testing.T) {
	const (
		open, bind, release, resize = journal.Open, journal.Bind, journal.Release, journal.Resize
		remove, supersede, undo     = journal.Remove, journal.Supersede, journal.Undo
		absent, reserved, dormant   = journal.Absent, journal.Reserved, journal.Dormant
	)
	for name, tc := range map[string]struct {
		events []journal.Event
		want   int64
	}{
		"from its making to its release": {
			[]journal.Event{at(0, open, absent), at(100, bind, reserved), at(5000, release, reserved), at(9000, remove, dormant)}, 5000,
		},
		"restarted in place, without the time between": {
			[]journal.Event{at(0, open, absent), at(1000, release, reserved), at(3000, bind, dormant), at(4000, release, reserved)}, 2000,
		},
		"a release that failed": {
			[]journal.Event{at(0, open, absent), at(1000, release, reserved), at(3000, release, reserved), at(4000, remove, dormant)}, 3000,
		},
		"a restart in place that failed": {
			[]journal.Event{at(0, open, absent), at(1000, release, reserved), at(2000, bind, dormant), at(3000, bind, dormant), at(3500, remove, reserved)}, 1500,
		},
		"a removal that failed": {
			[]journal.Event{at(0, open, absent), at(1000, remove, reserved), at(1500, bind, reserved), at(3000, remove, reserved)}, 3000,
		},
		"superseded for good": {
			[]journal.Event{at(0, open, absent), at(1000, supersede, reserved), at(2000, supersede, reserved)}, 1000,
		},
		"back after it had yielded": {
			[]journal.Event{
				at(0, open, absent), at(1000, release, reserved), at(2000, supersede, dormant), at(5000, open, absent),
				at(5500, bind, dormant), at(6000, remove, reserved),
			}, 1500,
		},
		"yielded since no container came, and back": {
			[]journal.Event{
				at(0, open, absent), freeSince(1000, at(3000, supersede, reserved)), at(5000, open, absent), at(5500, bind, reserved),
				at(6000, remove, reserved),
			}, 2000,
		},
		"never given to anybody":       {[]journal.Event{at(0, open, absent), at(1000, undo, reserved)}, 0},
		"made on the second try":       {[]journal.Event{at(0, open, absent), at(0, open, absent), at(1000, remove, reserved)}, 1000},
		"an event again":               {[]journal.Event{at(0, open, absent), at(900, release, reserved), at(900, release, reserved)}, 900},
		"a clock that was turned back": {[]journal.Event{at(0, open, absent), at(900, bind, reserved), at(400, resize, reserved), at(1000, remove, reserved)}, 1000},
		"an opening that is missing":   {[]journal.Event{at(0, open, absent), {Kind: release, At: t0 + 700, Boot: "b1", Claim: "x", Created: t0 + 100, Was: reserved, Terms: fourSlices}}, 0},
	} {
		t.Run(name, func(t *testing.T) {
			b := newBooks()
			for _, e := range tc.events {
				must.NoError(t, b.event(e))
			}
			must.Eq(t, tc.want, b.reservedMillis("a"))
			if name == "an opening that is missing" {
				must.Eq(t, 600, b.reservedMillis("x"))
			}
		})
	}
}

// A machine's clock that is set, for a while or for good, changes no sum.
func TestBooks_ClockSet(t *testing.T) {
	const year, minute = int64(365 * 24 * time.Hour / time.Millisecond), int64(time.Minute / time.Millisecond)
	for name, steps := range map[string][]int64{
		"forward and back": {0, year, year, 0, 0}, "forward": {0, year, year, year, year}, "back": {0, -year, -year, -year, -year},
		"back and forward": {0, -minute * 10, -minute * 10, 0, 0},
	} {
		t.Run(name, func(t *testing.T) {
			b := newBooks()
			must.NoError(t, b.event(at(0, journal.Open, journal.Absent)))
			held, later := ledgerClaim(0), ledgerClaim(0)
			later.ID = "later"
			for i, step := range steps {
				since := int64(i+1) * minute
				b.bounds = bounds{boot: "b1", collected: b.seen, sinceCollected: minute, sinceBoot: year + since}
				b.before = b.seen
				for _, a := range b.accounts {
					a.billed = 0
				}
				claims := []*claim.Claim{held}
				if i == 2 { // made while the clock is wrong
					later.Created = time.UnixMilli(t0 + since - minute + step)
				}
				if i >= 2 {
					claims = append(claims, later)
				}
				must.NoError(t, b.cut(cutAt(since+step, claims...)))
			}
			must.Between(t, 4*minute, b.reservedMillis("a"), 5*minute, must.Sprint("a collection may miss what was before a step back"))
			must.Between(t, 2*minute, b.reservedMillis("later"), 3*minute)
		})
	}
}

// The sums do not depend on when cuts were made in between.
func TestBooks_Cuts(t *testing.T) {
	held := ledgerClaim(0)
	dormant := ledgerClaim(0)
	dormant.Released = time.UnixMilli(t0 + 5000)
	events := []journal.Event{at(0, journal.Open, journal.Absent), at(5000, journal.Release, journal.Reserved), at(8000, journal.Remove, journal.Dormant)}
	for cuts := range 8 {
		b := newBooks()
		must.NoError(t, b.event(events[0]))
		if cuts&1 > 0 {
			must.NoError(t, b.cut(cutAt(3000, held)))
			must.Eq(t, 3000, b.reservedMillis("a"))
		}
		must.NoError(t, b.event(events[1]))
		if cuts&2 > 0 {
			must.NoError(t, b.cut(cutAt(6000, dormant)))
		}
		must.NoError(t, b.event(events[2]))
		if cuts&4 > 0 {
			must.NoError(t, b.cut(cutAt(9000)))
		}
		must.Eq(t, 5000, b.reservedMillis("a"), must.Sprint(cuts))
		must.SliceEmpty(t, b.gaps)
	}
}

// What the journal does not say, the ledger does.
func TestBooks_EventsThatAreMissing(t *testing.T) {
	b := newBooks()
	must.NoError(t, b.cut(cutAt(0)))
	must.NoError(t, b.cut(cutAt(4000, ledgerClaim(1000))))
	must.Eq(t, 3000, b.reservedMillis("a"), must.Sprint("made and bound"))
	dormant := ledgerClaim(1000)
	dormant.Released = time.UnixMilli(t0 + 5000)
	must.NoError(t, b.cut(cutAt(8000, dormant)))
	must.Eq(t, 4000, b.reservedMillis("a"), must.Sprint("released"))
	must.NoError(t, b.cut(cutAt(9000, ledgerClaim(1000))))
	must.Eq(t, 5000, b.reservedMillis("a"), must.Sprint("bound again, some time since the last cut"))
	must.SliceEmpty(t, b.gaps)
	must.NoError(t, b.cut(cutAt(9500)))
	must.Eq(t, 5000, b.reservedMillis("a"), must.Sprint("gone"))
	must.Len(t, 1, b.gaps)
	must.Eq(t, []int64{t0 + 9000, t0 + 9500}, []int64{b.gaps[0].from, b.gaps[0].to})
}

// A record that cannot be read is neither gone nor counted until it is known again.
func TestBooks_UnreadableRecord(t *testing.T) {
	b := newBooks()
	must.NoError(t, b.event(at(0, journal.Open, journal.Absent)))
	c := cutAt(1000)
	c.Unreadable = map[string]bool{"a": true}
	must.NoError(t, b.cut(c))
	must.SliceEmpty(t, b.gaps)
	must.NoError(t, b.cut(cutAt(2000, ledgerClaim(0))))
	must.Eq(t, 2000, b.reservedMillis("a"))
}

// While a node is off, nothing counts: not until its container is back, whatever notices first that the former one is gone.
func TestBooks_Restart(t *testing.T) {
	stale := ledgerClaim(0)
	stale.Container = &claim.Container{BootID: "b1"}
	for name, after := range map[string]func(*books) error{
		"an event first": func(b *books) error {
			e := at(7_000_000, journal.Release, journal.Stale)
			e.Boot = "b2"
			return b.event(e)
		},
		"a cut first": func(b *books) error {
			c := cutAt(7_000_000, stale)
			c.Boot = "b2"
			e := at(7_000_500, journal.Release, journal.Stale)
			e.Boot = "b2"
			if err := b.cut(c); err != nil {
				return err
			}
			return b.event(e)
		},
	} {
		t.Run(name, func(t *testing.T) {
			b := newBooks()
			must.NoError(t, b.event(at(0, journal.Open, journal.Absent)))
			must.NoError(t, b.cut(cutAt(60_000, ledgerClaim(0))))
			must.NoError(t, b.event(at(70_000, journal.Bind, journal.Reserved)))
			must.NoError(t, after(b))
			must.Eq(t, 70_000, b.reservedMillis("a"))
			must.Eq(t, []gap{{t0 + 70_000, t0 + 7_000_000, restarted}}, b.gaps)
			for i, kind := range []journal.Kind{journal.Bind, journal.Release} {
				e := at(8_000_000+int64(i)*1000, kind, []journal.State{journal.Dormant, journal.Reserved}[i])
				e.Boot = "b2"
				must.NoError(t, b.event(e))
			}
			must.Eq(t, 71_000, b.reservedMillis("a"))
		})
	}
}

// Time before accounting began does not count, and each hour gets its own.
func TestBooks_HoursAndBegin(t *testing.T) {
	b := newBooks()
	b.begun = t0 + hourMillis/2
	must.NoError(t, b.event(at(3*hourMillis+7, journal.Release, journal.Reserved)))
	got := map[int64]int64{}
	for k, sum := range b.hours {
		must.Eq(t, 4*gib, k.bytes)
		must.Eq(t, part(4, 140), k.share)
		got[k.hour-500_000] = sum.reserved
	}
	must.Eq(t, map[int64]int64{0: hourMillis / 2, 1: hourMillis, 2: hourMillis, 3: 7}, got)
}

func TestBooks_Reserves(t *testing.T) {
	b := newBooks()
	b.gpus["MIG-1"] = GPU{MemoryBytes: 35 * gib, Replicas: 2, WholeBytes: 140 * gib}
	b.gpus["MIG-2"] = GPU{MemoryBytes: 35 * gib}
	on := func(instance string, t journal.Terms) journal.Terms { t.GPU = instance; return t }
	terms := func(mode string, slices int, sliceBytes uint64, share int) journal.Terms {
		return journal.Terms{GPU: "GPU-1", Mode: mode, Slices: slices, SliceBytes: sliceBytes, Share: share}
	}
	for name, tc := range map[string]struct {
		terms journal.Terms
		bytes uint64
		share int64
	}{
		"slices":           {terms("slice", 35, gib, 0), 35 * gib, wholeShare / 4},
		"all slices":       {terms("slice", 46, 3*gib, 0), 138 * gib, wholeShare},
		"share of compute": {terms("slice", 35, gib, 500), 35 * gib, wholeShare / 2},
		"mps":              {terms("mps", 70, gib, 0), 70 * gib, wholeShare / 2},
		"exclusive":        {terms("exclusive", 1, 140*gib, 0), 140 * gib, wholeShare},
		"timeslice":        {terms("timeslice", 1, 140*gib, 0), 35 * gib, wholeShare / 4},
		"mig":              {terms("mig", 1, 70*gib, 0), 70 * gib, wholeShare / 2},

		"slices of an instance": {on("MIG-1", terms("slice", 7, gib, 0)), 7 * gib, wholeShare / 20},
		"share of an instance":  {on("MIG-1", terms("slice", 7, gib, 500)), 7 * gib, wholeShare / 8},
		"time of an instance":   {on("MIG-1", terms("timeslice", 1, 35*gib, 0)), 35 * gib / 2, wholeShare / 8},
		"instance of unknown":   {on("MIG-2", terms("slice", 7, gib, 0)), 7 * gib, unknownShare},
		"unknown instance":      {on("MIG-3", terms("slice", 7, gib, 500)), 7 * gib, unknownShare},

		"unknown GPU":      {journal.Terms{GPU: "GPU-2", Mode: "slice", Slices: 2, SliceBytes: gib}, 2 * gib, unknownShare},
		"unknown replicas": {journal.Terms{GPU: "GPU-2", Mode: "timeslice", Slices: 1, SliceBytes: gib}, 0, unknownShare},
	} {
		bytes, share := b.reserves(tc.terms)
		must.Eq(t, tc.bytes, bytes, must.Sprint(name))
		must.Eq(t, tc.share, share, must.Sprint(name))
	}
}

// What was observed is never more than what was reserved, and a gap between samples is not observed.
func TestBooks_Samples(t *testing.T) {
	b := newBooks()
	b.samples = NewSamples(10 * time.Second)
	held := ledgerClaim(0)
	for _, second := range []int64{5, 15, 25, 60, 70} { // 25 to 60: none
		b.samples.Add(held, time.UnixMilli(t0+second*1000), 2*gib, 3*gib)
	}
	must.NoError(t, b.event(at(0, journal.Open, journal.Absent)))
	must.NoError(t, b.cut(cutAt(20_000, held)))
	must.NoError(t, b.event(at(65_000, journal.Release, journal.Reserved)))
	var sum hourSum
	for _, hour := range b.hours {
		sum = hour
	}
	must.Eq(t, hourSum{reserved: 65_000, observed: 25_000, used: 50_000}, sum)
	b.samples.forget(t0+65_000, t0+65_000)
	must.Len(t, 1, b.samples.spans[claimKey{"a", t0}])
}

func TestBooks_Workload(t *testing.T) {
	b := newBooks()
	e := at(0, journal.Open, journal.Absent)
	for _, w := range []claim.Workload{{Job: "web", Verified: true}, {Job: "forged"}} {
		e.Workload, _ = json.Marshal(w)
		must.NoError(t, b.event(e))
	}
	must.Eq(t, "web", b.accounts[claimKey{"a", t0}].workload.Job)
}
