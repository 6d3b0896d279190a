package governor

import (
	"context"
	"errors"
	"maps"
	"slices"
	"sync"
	"time"

	"github.com/tranche-gpu/tranche/claim"
	"github.com/tranche-gpu/tranche/claim/layout"
	"github.com/tranche-gpu/tranche/device/processes"
	"github.com/tranche-gpu/tranche/governor/status"
)

// observes is how often the processes on the GPUs are listed. One that has not joined is named when it is seen twice: a program
// joins when it begins to use the driver.
const observes = 1500 * time.Millisecond

// bypassEnds is for how long processes of a claim have to be seen outside of its turns until its task is ended for that. One that
// could not join at once has tried again by then.
const bypassEnds = 10 * time.Second

// observer finds the processes of governed claims that use a GPU and have not joined.
type observer struct {
	options Options
	// changed is called when other processes are named than before, or something else follows.
	changed func()
	// charge is called for a GPU on which processes are outside of turns, if their claims are to be charged: with the part of its
	// time that those of each claim had since they were seen before.
	charge func(gpuUUID string, parts map[string]float64)

	mu sync.Mutex
	// claims and joined are those of the last snapshot.
	claims []*claim.Claim
	joined map[user]bool
	// found are the processes that have not joined, by claim, in is the container of each such claim, and follows what follows.
	found   map[string][]status.Process
	in      map[string]string
	follows map[string]layout.Bypass

	// asked is when the utilization of each GPU was queried last.
	asked map[string]time.Time
	// failed is the last error of each kind, which is logged once.
	failed map[string]string
}

// user is a process on a GPU.
type user struct {
	gpuUUID string
	pid     int
}

// know tells the observer which claims there are, and which processes have joined.
func (o *observer) know(claims []*claim.Claim, joined map[user]bool) {
	o.mu.Lock()
	defer o.mu.Unlock()
	o.claims, o.joined = claims, joined
}

// name adds the processes that have not joined to a status.
func (o *observer) name(s *status.Status) {
	o.mu.Lock()
	defer o.mu.Unlock()
	for id, found := range o.found {
		if c, ok := s.Claims[id]; ok {
			c.NotJoined, c.NotJoinedIn, c.Bypass = found, o.in[id], o.follows[id]
			s.Claims[id] = c
		}
	}
}

func (o *observer) run(ctx context.Context) {
	if o.options.Processes == nil {
		return
	}
	ticker := time.NewTicker(observes)
	defer ticker.Stop()
	var before sighting
	for {
		select {
		case <-ctx.Done():
			return
		case <-ticker.C:
			before = o.observe(ctx, before)
		}
	}
}

// sighting is the processes that are outside of turns at one moment.
type sighting map[user]bypassing

// bypassing is a process that has not joined its claim, and since when it is seen.
type bypassing struct {
	claim string
	since time.Time
}

// observe names the processes that have not joined now nor before, and returns those that have not now.
func (o *observer) observe(ctx context.Context, before sighting) sighting {
	o.mu.Lock()
	claims, joined := o.claims, o.joined
	o.mu.Unlock()
	byGPU := make(map[string][]*claim.Claim)
	for _, c := range claims {
		if c.Container != nil && claim.Alive(*c.Container) {
			byGPU[c.GPU.UUID] = append(byGPU[c.GPU.UUID], c)
		}
	}
	now, outside := time.Now(), make(sighting)
	found, in := make(map[string][]status.Process), make(map[string]string)
	for uuid, of := range byGPU {
		pids, err := o.options.Processes(ctx, uuid)
		if o.fails("processes", err) {
			o.options.Logger.Warn("cannot list the processes of a GPU: who computes outside of its turns is not named", "gpu", uuid, "error", err)
		}
		containers := processes.Of(of)
		for _, pid := range pids {
			by := user{uuid, pid}
			if joined[by] {
				continue
			}
			owners := containers.Claims(pid)
			if len(owners) == 0 {
				continue
			}
			c := owners[0] // its programs compute in the turns of one claim
			outside[by] = bypassing{c.ID, now}
			was := before[by]
			if slices.ContainsFunc(owners, func(o *claim.Claim) bool { return o.ID == was.claim }) {
				outside[by] = bypassing{c.ID, was.since}
				found[c.ID] = append(found[c.ID], status.Process{PID: pid, Name: nameOf(pid)})
				in[c.ID] = c.ContainerKey()
			}
		}
	}
	follows := o.follow(ctx, before, outside)
	o.mu.Lock()
	o.log(found)
	changed := !maps.EqualFunc(o.found, found, slices.Equal) || !maps.Equal(o.follows, follows)
	o.found, o.in, o.follows = found, in, follows
	o.mu.Unlock()
	if changed {
		o.changed()
	}
	return outside
}

// follow has claims charged that are to be, and returns what follows for the claims whose processes have not joined now nor before.
// Nothing does unless the driver reports that such a process has used the GPU meanwhile.
func (o *observer) follow(ctx context.Context, before, outside sighting) map[string]layout.Bypass {
	follows := make(map[string]layout.Bypass)
	for uuid, then := range o.consequences(outside) {
		busy := o.utilization(ctx, uuid)
		parts := make(map[string]float64)
		for by, p := range outside {
			if by.gpuUUID != uuid || !before[by].since.Equal(p.since) {
				continue
			}
			parts[p.claim] += busy[by.pid]
			longEnough := then != layout.BypassEnds || time.Since(p.since) >= bypassEnds
			if o.follows[p.claim] == then || busy[by.pid] > 0 && longEnough {
				follows[p.claim] = then
			}
		}
		if then == layout.BypassCharged {
			o.charge(uuid, parts)
		}
	}
	return follows
}

// consequences returns what follows on the GPUs on which processes are outside of turns; those on which nothing does are left out.
func (o *observer) consequences(outside sighting) map[string]layout.Bypass {
	if len(outside) == 0 {
		return nil
	}
	shared, err := layout.Read(o.options.RunDir)
	if o.fails("layout", err) {
		o.options.Logger.Warn("programs that compute outside of their turns are only named", "error", err)
	}
	then := make(map[string]layout.Bypass)
	for by := range outside {
		if b := shared[by.gpuUUID].Bypass; b == layout.BypassCharged || b == layout.BypassEnds {
			then[by.gpuUUID] = b
		}
	}
	return then
}

// utilization returns the part of a GPU's time that each process had since this was called last.
func (o *observer) utilization(ctx context.Context, uuid string) map[int]float64 {
	now := time.Now()
	since := o.asked[uuid]
	if now.Sub(since) > 2*observes {
		since = now.Add(-observes)
	}
	busy, err := o.options.Utilization(ctx, uuid, since)
	if err == nil && busy == nil {
		err = errors.New("the driver does not report the utilization of processes, as for MIG instances")
	}
	if o.fails("utilization", err) {
		o.options.Logger.Warn("programs that compute outside of their turns are only named", "gpu", uuid, "error", err)
	}
	if o.asked == nil {
		o.asked = make(map[string]time.Time)
	}
	o.asked[uuid] = now
	return busy
}

// fails reports whether there is an error that was not the last one of its kind.
func (o *observer) fails(kind string, err error) bool {
	if err == nil || o.failed[kind] == err.Error() {
		return false
	}
	if o.failed == nil {
		o.failed = make(map[string]string)
	}
	o.failed[kind] = err.Error()
	return true
}

// log names each process once, those of a claim in one line.
func (o *observer) log(found map[string][]status.Process) {
	for _, id := range slices.Sorted(maps.Keys(found)) {
		var names []string
		for _, p := range found[id] {
			if !slices.Contains(o.found[id], p) {
				names = append(names, describe(p.PID, p.Name))
			}
		}
		if len(names) > 0 {
			o.options.Logger.Warn("processes of a governed claim use the GPU outside of its turns: they have to load libcuda.so.1 by "+
				"that name", "claim", id, "processes", claim.ListNames(names))
		}
	}
}
