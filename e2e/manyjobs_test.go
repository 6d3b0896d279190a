//go:build e2e

package e2e

import (
	"context"
	"fmt"
	"math/rand/v2"
	"os"
	"path/filepath"
	"slices"
	"strconv"
	"testing"
	"time"

	"github.com/hashicorp/nomad/api"
	"github.com/shoenig/test/must"
	"golang.org/x/sys/unix"

	"github.com/tranche-gpu/tranche/claim"
	"github.com/tranche-gpu/tranche/e2e/node"
	"github.com/tranche-gpu/tranche/internal/needs"
)

// TestManyJobs has jobs come and go at random over eight GPUs, forty at a time, 150 of them in `make test` and a thousand in
// `make test-long`: some end by themselves, some are stopped, killed, or restarted where they are. Whenever Nomad tells of a change, no slice is in two allocations or in two
// claims, the ledger and Nomad agree on who has what, and no container has had more of its GPU than its limit.
// TRANCHE_E2E_SEED runs one again, as far as the machine lets it.
func TestManyJobs(t *testing.T) {
	seed := uint64(time.Now().UnixNano())
	if given, err := strconv.ParseUint(os.Getenv("TRANCHE_E2E_SEED"), 10, 64); err == nil {
		seed = given
	}
	t.Logf("TRANCHE_E2E_SEED=%d", seed)
	n := startNode(t, func(c *node.Config) {
		c.Topology = filepath.Join(build, "../e2e/simgpu/topologies/h200x8.conf")
	})
	ctx, cancel := context.WithTimeout(context.Background(), 25*time.Minute)
	defer cancel()
	c := &crowd{t: t, n: n, ctx: ctx, random: rand.New(rand.NewPCG(seed, 0)), left: jobsToCome(), jobs: map[string]*crowdJob{}}
	c.run()
	t.Logf("%d steps, %d containers that had what Nomad says, %d that were held to their limit; %v", c.steps, c.agreed, c.judged, c.fates)
	must.Positive(t, c.agreed)
	must.Positive(t, c.judged)
	for f := range fates {
		must.Positive(t, c.fates[f], must.Sprintf("no job had the fate %d", f))
	}
	endsClean(t, n)
	info, err := n.WaitNode(ctx, func(*api.Node) bool { return true })
	must.NoError(t, err)
	must.Len(t, 8*139, healthySlices(info))
}

// jobsToCome is how many jobs there are. TRANCHE_E2E_JOBS says otherwise.
func jobsToCome() int {
	if given, err := strconv.Atoi(os.Getenv("TRANCHE_E2E_JOBS")); err == nil {
		return given
	}
	if needs.Long() {
		return 1000
	}
	return 150
}

// fate is how a job ends.
type fate int

const (
	endsItself fate = iota
	isStopped
	isKilled
	isRestarted // and stopped afterwards
	fates
)

// crowdJob is a job of the crowd, and what Nomad has told of its allocation.
type crowdJob struct {
	name    string
	fate    fate
	ordered bool // its end is on its way
	// wants is how many restarts Nomad will tell of.
	wants uint64
	alloc *api.Allocation
}

// running tells whether Nomad says that the task runs.
func (j *crowdJob) running() bool {
	return j.alloc != nil && j.alloc.ClientStatus == api.AllocClientStatusRunning && j.alloc.TaskStates["t"] != nil &&
		j.alloc.TaskStates["t"].State == "running"
}

// settled tells whether the task runs until it is told otherwise.
func (j *crowdJob) settled() bool {
	return j.running() && !j.ordered && j.fate != endsItself && j.alloc.TaskStates["t"].Restarts == j.wants
}

// ended tells whether Nomad says that the allocation has ended.
func (j *crowdJob) ended() bool { return j.alloc != nil && j.alloc.ClientTerminalStatus() }

// devices are the slices that the job's allocation has.
func (j *crowdJob) devices() []string { return devicesOf(j.alloc) }

func devicesOf(alloc *api.Allocation) []string {
	if alloc == nil || alloc.AllocatedResources == nil {
		return nil
	}
	var ids []string
	for _, device := range alloc.AllocatedResources.Tasks["t"].Devices {
		ids = append(ids, device.DeviceIDs...)
	}
	return slices.Sorted(slices.Values(ids))
}

// crowd is the jobs that are there at the moment.
type crowd struct {
	t      *testing.T
	n      *node.Node
	ctx    context.Context
	random *rand.Rand
	// left is how many jobs are still to come.
	left int
	jobs map[string]*crowdJob

	steps, agreed, judged int
	fates                 [fates]int
}

const atOnce = 40

// run has jobs come and go until all have gone.
func (c *crowd) run() {
	changes, err := c.n.Agent.API.EventStream().Stream(c.ctx, map[api.Topic][]string{api.TopicAllocation: {"*"}}, 0, nil)
	must.NoError(c.t, err)
	c.fillUp()
	for len(c.jobs) > 0 {
		select {
		case change, ok := <-changes:
			must.True(c.t, ok, must.Sprint("Nomad's stream of events has ended"))
			c.takeIn(change)
		case <-c.ctx.Done():
			c.t.Fatalf("%d jobs are there and %d to come: %v", len(c.jobs), c.left, c.ctx.Err())
		}
		for more := true; more; { // what is there already
			select {
			case change := <-changes:
				c.takeIn(change)
			default:
				more = false
			}
		}
		c.check()
		c.goOn()
		c.fillUp()
	}
}

// takeIn notes what Nomad tells of allocations.
func (c *crowd) takeIn(change *api.Events) {
	must.NoError(c.t, change.Err)
	for _, event := range change.Events {
		alloc, err := event.Allocation()
		must.NoError(c.t, err)
		if alloc == nil || c.jobs[alloc.JobID] == nil {
			continue
		}
		job := c.jobs[alloc.JobID]
		must.True(c.t, job.alloc == nil || job.alloc.ID == alloc.ID, must.Sprintf("%s was placed twice", job.name))
		job.alloc = alloc
	}
}

// fillUp starts jobs until as many are there as may be.
func (c *crowd) fillUp() {
	for ; c.left > 0 && len(c.jobs) < atOnce; c.left-- {
		job := &crowdJob{name: fmt.Sprintf("job-%d", c.left), fate: fate(c.random.IntN(int(fates)))}
		count := 1 + c.random.IntN(20)
		if c.random.IntN(8) == 0 {
			count = 60 + c.random.IntN(80) // so that some have to wait
		}
		command := []string{"gpu-probe", "take", strconv.Itoa(count*1024 - 512)}
		switch {
		case job.fate == endsItself:
			command = append([]string{"timeout", fmt.Sprintf("0.%d", 1+c.random.IntN(9))}, command...)
		case c.random.IntN(3) == 0:
			command = []string{"gpu-probe", "fill"}
		}
		parsed, err := c.n.ParseJob(task{
			job: job.name, jobType: "batch", command: command[0], args: command[1:], devices: []string{anyGPU(count)}, memoryMiB: 32,
		}.hcl())
		must.NoError(c.t, err)
		_, _, err = c.n.Agent.API.Jobs().Register(parsed, nil)
		must.NoError(c.t, err)
		c.jobs[job.name] = job
		c.fates[job.fate]++
	}
}

// goOn forgets jobs that have ended, and ends others: now and then one, and one if nothing would happen by itself.
func (c *crowd) goOn() {
	var settled []*crowdJob
	moving := false
	for _, name := range c.names() {
		switch job := c.jobs[name]; {
		case job.ended():
			delete(c.jobs, name)
		case job.settled():
			settled = append(settled, job)
		case job.alloc != nil:
			moving = true
		}
	}
	c.random.Shuffle(len(settled), func(i, j int) { settled[i], settled[j] = settled[j], settled[i] })
	for _, job := range settled {
		if !moving || len(settled) > atOnce/2 || c.random.IntN(4) == 0 {
			c.order(job)
			moving = true
		}
	}
}

// names are those of the jobs, in an order that does not change.
func (c *crowd) names() (names []string) {
	for name := range c.jobs {
		names = append(names, name)
	}
	slices.Sort(names)
	return names
}

// order has a job go on to its end.
func (c *crowd) order(job *crowdJob) {
	api := c.n.Agent.API
	switch {
	case job.fate == isKilled:
		claims, err := c.n.Claims(c.ctx, job.alloc.ID, "t")
		must.NoError(c.t, err)
		must.NoError(c.t, unix.Kill(claims[0].Container.InitPID, unix.SIGKILL), must.Sprintf("%s has ended by itself", job.name))
	case job.fate == isRestarted && job.wants == 0:
		must.NoError(c.t, api.Allocations().Restart(job.alloc, "t", nil))
		job.wants = 1
		return
	default:
		_, _, err := api.Jobs().Deregister(job.name, false, nil)
		must.NoError(c.t, err)
	}
	job.ordered = true
}

// check compares Nomad, the ledger and the simulator. Each is asked at a moment of its own, so that Nomad is asked twice, and
// only what holds at both moments counts.
func (c *crowd) check() {
	c.steps++
	began := time.Now()
	before := c.allocations(notEnded)
	claims, err := c.n.AllClaims(c.ctx)
	must.NoError(c.t, err)
	living := slices.DeleteFunc(claims, func(k *claim.Claim) bool { return k.Container == nil || !claim.Alive(*k.Container) })
	record, err := c.n.Sim.Record(c.ctx)
	must.NoError(c.t, err)
	after := c.allocations(notEnded)

	c.checkDisjoint(after, living)
	byFirst := map[string]*claim.Claim{}
	for _, k := range living {
		byFirst[k.Slices[0]] = k
	}
	for _, job := range c.jobs {
		was, is := before[job.name], after[job.name]
		if !job.settled() || was == nil || is == nil || starts(was) != starts(is) || starts(was) != starts(job.alloc) {
			continue
		}
		k := byFirst[job.devices()[0]]
		must.NotNil(c.t, k, must.Sprintf("%s runs, and no living claim has its slices", job.name))
		must.Eq(c.t, job.devices(), k.Slices)
		c.agreed++
	}
	for _, k := range living {
		c.checkOwner(k, began, before, after)
		c.judge(k, record)
	}
	for _, gpu := range record.GPUs {
		must.LessEq(c.t, gpu.MemoryBytes, gpu.UsedBytes)
	}
}

// notEnded is Nomad's filter for allocations that have devices.
const notEnded = `ClientStatus != "complete" and ClientStatus != "failed" and ClientStatus != "lost"`

// allocations are those that Nomad has, by their jobs.
func (c *crowd) allocations(filter string) map[string]*api.Allocation {
	list, _, err := c.n.Agent.API.Allocations().List(&api.QueryOptions{
		Filter: filter, Params: map[string]string{"resources": "true"},
	})
	must.NoError(c.t, err)
	all := map[string]*api.Allocation{}
	for _, stub := range list {
		all[stub.JobID] = &api.Allocation{
			ID: stub.ID, ClientStatus: stub.ClientStatus, TaskStates: stub.TaskStates, AllocatedResources: stub.AllocatedResources,
			CreateTime: stub.CreateTime,
		}
	}
	return all
}

// starts tells one start of a task from another; empty if it does not run.
func starts(alloc *api.Allocation) string {
	state := alloc.TaskStates["t"]
	if alloc.ClientStatus != api.AllocClientStatusRunning || state == nil || state.State != "running" {
		return ""
	}
	return fmt.Sprint(state.Restarts, state.StartedAt)
}

// checkDisjoint checks that no slice is in two allocations that have not ended, nor in two living claims.
func (c *crowd) checkDisjoint(allocs map[string]*api.Allocation, living []*claim.Claim) {
	has, holds := map[string]string{}, map[string]string{}
	for name, alloc := range allocs {
		for _, id := range devicesOf(alloc) {
			must.MapNotContainsKey(c.t, has, id, must.Sprintf("%s and %s both have %s", name, has[id], id))
			has[id] = name
		}
	}
	for _, k := range living {
		for _, id := range k.Slices {
			must.MapNotContainsKey(c.t, holds, id, must.Sprintf("claims %s and %s both hold %s", k.ID, holds[id], id))
			holds[id] = k.ID
		}
	}
}

// checkOwner checks that a living claim is of an allocation that had not ended when the check began: one that was there then,
// or has come since.
func (c *crowd) checkOwner(k *claim.Claim, began time.Time, before, after map[string]*api.Allocation) {
	has := func(alloc *api.Allocation) bool { return slices.Equal(devicesOf(alloc), k.Slices) }
	for _, all := range []map[string]*api.Allocation{before, after} {
		for _, alloc := range all {
			if has(alloc) {
				return
			}
		}
	}
	for _, alloc := range c.allocations("") { // it may have come and gone
		if has(alloc) && alloc.CreateTime >= began.UnixNano() {
			return
		}
	}
	c.t.Fatalf("claim %s lives, and no allocation of Nomad's has its %d slices: %s", k.ID, len(k.Slices), k.Slices[0])
}

// judge checks by the simulator's record that a claim's container never had more of its GPU than the limit, and nothing of
// others.
func (c *crowd) judge(k *claim.Claim, record *node.Record) {
	must.Eq(c.t, uint64(len(k.Slices))*gib, k.LimitBytes)
	group, err := node.GroupOf(k.Container.InitPID)
	if err != nil {
		return // it has ended meanwhile
	}
	for uuid, held := range record.Group(group) {
		must.Eq(c.t, k.GPU.UUID, uuid)
		must.LessEq(c.t, k.LimitBytes, held.PeakBytes)
		c.judged++
	}
}
