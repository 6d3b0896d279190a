package usage

import (
	"cmp"
	"encoding/json"
	"fmt"
	"maps"
	"math"
	"slices"
	"strings"
	"time"

	"github.com/tranche-gpu/tranche/claim"
	"github.com/tranche-gpu/tranche/claim/journal"
)

// GPU is what has to be known of a GPU to say which part of it a claim reserves.
type GPU struct {
	// MemoryBytes is all of its memory; 0 if it is not known.
	MemoryBytes uint64
	// Replicas is how many claims may share it in mode timeslice; 0 if it is not known.
	Replicas int
	// WholeBytes is all memory of the GPU that a MIG instance is of; 0 for a GPU.
	WholeBytes uint64
}

// migPrefix begins the UUIDs of MIG instances.
const migPrefix = "MIG-"

// ofWhole returns which part of a GPU a part of this one is: a MIG instance is the part of its GPU that its memory is.
func (g GPU) ofWhole(uuid string, share int64) int64 {
	switch {
	case share == unknownShare || !strings.HasPrefix(uuid, migPrefix):
		return share
	case g.WholeBytes == 0 || g.MemoryBytes == 0:
		return unknownShare
	}
	return int64(math.Round(float64(share) * min(float64(g.MemoryBytes)/float64(g.WholeBytes), 1)))
}

// hourMillis is the length of the rows' hours.
const hourMillis = int64(time.Hour / time.Millisecond)

// wholeShare is all of a GPU, and unknownShare an unknown part of it.
const (
	wholeShare   = 1_000_000_000
	unknownShare = -1
)

// claimKey distinguishes claims that had one ID.
type claimKey struct {
	id      string
	created int64
}

// account is what is known of one claim.
type account struct {
	claimKey
	known bool // in the database
	owner string
	// until is up to when the claim's time is accounted. It goes back only to a cut, where the machine's clock was set back.
	until int64
	// boot is the boot in which until lies. down is when that boot was last seen if another has begun since, otherwise 0.
	boot string
	down int64
	// billed is the time that this collection has billed in the present boot.
	billed int64
	// reserved reports whether the claim was last known to be reserved.
	reserved bool
	// ended reports that the claim is gone, final that nothing that is said of it later counts.
	ended, final bool
	workload     claim.Workload
	peakBytes    uint64
	total        Total
}

// Total is what a claim has had reserved since it was made.
type Total struct {
	// Millis is the time, GiBMillis the memory times the time, GPUMillis the part of the GPU times the time, as far as it is known.
	Millis               int64
	GiBMillis, GPUMillis float64
}

func (t *Total) add(millis int64, bytes uint64, share int64) {
	t.Millis += millis
	t.GiBMillis += float64(millis) * float64(bytes) / (1 << 30)
	t.GPUMillis += float64(millis) * float64(max(share, 0)) / wholeShare
}

// hourKey identifies a row. All that a price depends on is part of it, so that the row has whole milliseconds only.
type hourKey struct {
	hour  int64 // since 1970
	claim claimKey
	gpu   string
	mode  string
	bytes uint64 // reserved memory
	share int64  // reserved part of the GPU, in billionths
}

// hourSum is what is added to a row.
type hourSum struct {
	reserved, observed int64   // milliseconds
	used               float64 // GiB times milliseconds, while observed
}

// Gap is a time of which something is not known on a node.
type Gap struct {
	Node   string    `json:"node"`
	From   time.Time `json:"from"`
	To     time.Time `json:"to"`
	Reason string    `json:"reason"`
}

type gap struct {
	from, to int64
	reason   string
}

// device is a GPU that claims were on.
type device struct {
	uuid, model string
	index       int
}

// books turn events and cuts into rows. They know no database and no clock.
type books struct {
	gpus    map[string]GPU
	samples *Samples
	// find returns an account from before; nil if there is none. No claim has one that was made after before.
	find   func(claimKey) (*account, error)
	before int64

	// begun is when accounting began on this node, seen the last time that is accounted, boot the boot in which it lies.
	begun, seen int64
	boot        string
	// bounds is the present boot; zero is not known, so that nothing is bounded.
	bounds bounds

	accounts map[claimKey]*account
	hours    map[hourKey]hourSum
	devices  map[string]device
	gaps     []gap
}

// account returns the account of a claim. Of a claim that was made before accounting began, only what came after it counts.
func (b *books) account(k claimKey, owner string) (*account, error) {
	if a, ok := b.accounts[k]; ok {
		return a, nil
	}
	var a *account
	var err error
	if k.created <= b.before {
		if a, err = b.find(k); err != nil {
			return nil, err
		}
	}
	if a == nil {
		a = &account{claimKey: k, owner: owner, until: max(k.created, b.begun), reserved: true}
	}
	b.accounts[k] = a
	return a, nil
}

// event accounts the time before an event.
func (b *books) event(e journal.Event) error {
	if b.begun == 0 && e.Kind == journal.Open {
		b.begun = max(e.Created, e.At-slowOpen) // which may be long ago for a claim that had yielded
	}
	b.enter(e.At, e.Boot)
	a, err := b.account(claimKey{e.Claim, e.Created}, e.Owner)
	if err != nil || a.final && e.Kind != journal.Open {
		return err
	}
	b.note(a, e.Workload)
	switch {
	case e.Kind == journal.Undo: // nobody had it
	case e.Kind == journal.Open && !a.known && a.boot == "":
		a.boot = e.Boot // it is reserved since it was made
	default:
		b.settle(a, e.Was, e.Terms, e.At, e.FreeSince, e.Boot)
	}
	switch e.Kind {
	case journal.Open, journal.Bind, journal.Resize:
		a.reserved, a.ended, a.final = true, false, false
	case journal.Release:
		a.reserved, a.ended = false, false
	case journal.Remove, journal.Undo:
		a.reserved, a.ended = false, true
	case journal.Supersede:
		a.reserved, a.ended, a.final = false, true, true
	}
	return nil
}

// cut accounts the time up to a cut: it has what events do not say, since they were lost or are yet to come.
func (b *books) cut(c claim.Cut) error {
	at := journal.Milliseconds(c.At)
	b.enter(at, c.Boot)
	there := map[claimKey]bool{}
	for _, held := range c.Claims {
		k := claimKey{held.ID, journal.Milliseconds(held.Created)}
		a, err := b.account(k, held.Owner)
		if err != nil {
			return err
		}
		there[k] = true
		if a.final {
			continue
		}
		state := held.Reservation(c.Boot)
		if state == journal.Dormant && a.reserved { // its release is missing in the journal
			b.settle(a, journal.Reserved, held.Terms(), journal.Milliseconds(held.Released), 0, c.Boot)
		}
		b.settle(a, state, held.Terms(), at, c.FreeSince[k.id], c.Boot)
		a.reserved, a.ended = state != journal.Dormant, false
	}
	for k, a := range b.accounts {
		if !a.ended && !there[k] && !c.Unreadable[k.id] {
			b.vanish(a, at)
		}
		if a.boot == c.Boot {
			a.until = min(a.until, at) // the machine's clock may have been set back
		}
	}
	b.seen = at
	return nil
}

// vanish ends the account of a claim that the ledger no longer has, without an event that says so: its making failed, or its
// record was removed by something else. Then it counts until it was last seen.
func (b *books) vanish(a *account, at int64) {
	if a.reserved && a.until > a.created {
		b.gaps = append(b.gaps, gap{a.until, at, fmt.Sprintf("claim %s was removed from the ledger, and the journal does not say when", a.id)})
	}
	a.reserved, a.ended = false, true
}

// slowOpen is more than lies between a claim's creation and its event, in milliseconds.
const slowOpen = int64(time.Minute / time.Millisecond)

const restarted = "the node was restarted; what was reserved then counts up to the last change or collection before"

// enter moves the books to a time. Where another boot has begun, each claim's time ends with what was last seen of the former.
func (b *books) enter(at int64, boot string) {
	if b.begun == 0 {
		b.begun = at
	}
	if b.boot != "" && boot != b.boot {
		reserved := false
		for _, a := range b.accounts {
			reserved = reserved || a.reserved && !a.ended
			if a.down == 0 {
				a.down = max(b.seen, a.until)
			}
		}
		if reserved {
			b.gaps = append(b.gaps, gap{b.seen, max(at, b.seen), restarted})
		}
	}
	b.boot, b.seen = boot, max(b.seen, at)
}

// settle accounts the time of a claim up to a time, given the state that it had until then, and since when it has yielded to
// others in that state.
func (b *books) settle(a *account, was journal.State, terms journal.Terms, at, freeSince int64, boot string) {
	to := at
	if freeSince > 0 {
		to = min(at, freeSince)
	}
	switch {
	case a.down > 0:
		to = min(to, a.down)
	case a.boot != "" && a.boot != boot:
		to = a.until // of a claim that was taken to be gone in an earlier boot
	case was == journal.Reserved && boot == b.bounds.boot:
		to = min(to, a.until+b.bounds.most(a)-a.billed)
		a.billed += max(0, to-a.until)
	}
	if was == journal.Reserved || was == journal.Stale && a.down > 0 {
		b.bill(a, terms, a.until, to)
	}
	a.until, a.boot, a.down = max(a.until, at), boot, 0
}

// bounds is how much time a collection may bill in the present boot, by a clock that nobody sets: the machine's may be set.
type bounds struct {
	boot string
	// collected is when the last collection was, by the machine's clock.
	collected int64
	// sinceCollected is how long ago that was, and sinceBoot how long ago the machine booted, in milliseconds.
	sinceCollected, sinceBoot int64
}

// most returns how long a claim can have been reserved in this boot since it was last accounted.
func (b *bounds) most(a *account) int64 {
	if a.until < b.collected { // the last collection did not account it
		return b.sinceBoot
	}
	return b.sinceCollected
}

// bill adds a time to the rows of its hours.
func (b *books) bill(a *account, terms journal.Terms, from, to int64) {
	if from >= to {
		return
	}
	bytes, share := b.reserves(terms)
	a.total.add(to-from, bytes, share)
	b.devices[terms.GPU] = device{terms.GPU, terms.Model, terms.Index}
	for from < to {
		hour := from / hourMillis
		end := min(to, (hour+1)*hourMillis)
		k := hourKey{hour, a.claimKey, terms.GPU, terms.Mode, bytes, share}
		sum := b.hours[k]
		sum.reserved += end - from
		observed, used := b.samples.between(a.claimKey, from, end)
		sum.observed += observed
		sum.used += used
		b.hours[k] = sum
		from = end
	}
}

// reserves returns the memory and the part of a GPU that a claim has by its terms: the share of compute if it has one, in mode
// timeslice an equal part for each claim that may share the GPU, otherwise the part of the slices or of the memory. Of a MIG
// instance that several share, it is a part of the instance's part.
func (b *books) reserves(t journal.Terms) (bytes uint64, share int64) {
	gpu := b.gpus[t.GPU]
	bytes, share = t.Bytes(), unknownShare
	switch mode := claim.Mode(t.Mode); {
	case mode == claim.ModeExclusive:
		share = wholeShare
	case mode == claim.ModeTimeslice && gpu.Replicas > 0:
		bytes, share = bytes/uint64(gpu.Replicas), wholeShare/int64(gpu.Replicas)
	case mode == claim.ModeTimeslice:
		bytes = 0
	case mode == claim.ModeMIG && gpu.MemoryBytes > 0:
		share = part(bytes, gpu.MemoryBytes)
	case t.SliceBytes > 0 && gpu.MemoryBytes >= t.SliceBytes:
		share = part(uint64(t.Slices), gpu.MemoryBytes/t.SliceBytes)
	}
	if t.Share > 0 {
		share = int64(t.Share) * (wholeShare / claim.WholeCompute)
	}
	return bytes, gpu.ofWhole(t.GPU, share)
}

func part(of, whole uint64) int64 {
	return int64(math.Round(min(float64(of)/float64(whole), 1) * wholeShare))
}

// note records what the ledger knew of a claim's job or container.
func (b *books) note(a *account, workload json.RawMessage) {
	var w claim.Workload
	if len(workload) > 0 && json.Unmarshal(workload, &w) == nil {
		a.learn(w)
	}
}

// learn keeps the names that are known best.
func (a *account) learn(w claim.Workload) {
	if !w.IsZero() && (w.Verified || !a.workload.Verified) {
		a.workload = w
	}
}

// sortedAccounts returns the accounts in the order of their keys, so that what is written has the same order every time.
func (b *books) sortedAccounts() []*account {
	return slices.SortedFunc(maps.Values(b.accounts), func(x, y *account) int {
		return cmp.Or(cmp.Compare(x.created, y.created), cmp.Compare(x.id, y.id))
	})
}
