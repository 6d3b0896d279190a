package claim

import (
	"context"
	"errors"
	"fmt"
	"os"
	"os/exec"
	"path/filepath"
	"strings"
	"testing"
	"time"

	"github.com/shoenig/test/must"

	"github.com/tranche-gpu/tranche/claim/region"
	"github.com/tranche-gpu/tranche/internal/needs"
	"github.com/tranche-gpu/tranche/internal/proc"
)

// gpuWith is a GPU with so many slices; the first is that of the other tests.
func gpuWith(index, slices int) Candidate {
	gpu := testGPU
	if index > 0 {
		gpu.UUID = fmt.Sprintf("GPU-%08d-2222-3333-4444-555555555555", index)
		gpu.Index = index
	}
	return Candidate{GPU: gpu, Slices: slices}
}

func fitRequest(limitBytes uint64, candidates ...Candidate) FitRequest {
	return FitRequest{Candidates: candidates, SliceBytes: 1 << 30, LimitBytes: limitBytes, Owner: OwnerExternal}
}

func reserveFit(t *testing.T, l *Ledger, limitBytes uint64, candidates ...Candidate) *Claim {
	t.Helper()
	c, err := l.ReserveFit(t.Context(), fitRequest(limitBytes, candidates...))
	must.NoError(t, err)
	return c
}

// endedContainer binds a claim to a container whose process is gone then.
func endedContainer(t *testing.T, l *Ledger, id string) Container {
	t.Helper()
	init := startProcess(t)
	c := container("c-"+id, init)
	must.NoError(t, l.Bind(t.Context(), id, c))
	endProcess(init)
	return c
}

// later has the ledger's clock go ahead.
func later(l *Ledger, d time.Duration) {
	now := l.now
	l.now = func() time.Time { return now().Add(d) }
}

func TestReserveFit(t *testing.T) {
	l := newLedger(t)
	c := reserveFit(t, l, 5<<29, gpuWith(0, 140))
	must.Eq(t, testGPU, c.GPU)
	must.Eq(t, slicesOf(0, 2), c.Slices, must.Sprint("2.5 GiB take 3 slices"))
	must.Eq(t, 5<<29, c.LimitBytes, must.Sprint("the limit is what was asked for"))
	must.Eq(t, 1<<30, c.SliceBytes)
	must.Eq(t, OwnerExternal, c.Owner)
	must.Nil(t, c.Container)
	must.Eq(t, []*Claim{c}, list(t, l))
	h, err := region.ReadHeader(l.regionPath(c.ID))
	must.NoError(t, err)
	must.Eq(t, region.Header{ClaimID: c.ID, GPUUUID: testGPU.UUID, LimitBytes: 5 << 29, ContextBytes: 300 << 20}, h)

	must.Eq(t, slicesOf(3, 4), reserveFit(t, l, 2<<30, gpuWith(0, 140)).Slices)
	must.Eq(t, slicesOf(5, 5), reserveFit(t, l, 2<<20, gpuWith(0, 140)).Slices)
}

func TestReserveFit_ChoosesTheGPU(t *testing.T) {
	for name, tc := range map[string]struct {
		slices []int // of GPU 0, GPU 1 …
		wanted uint64
		want   int
	}{
		"the fullest":                {[]int{9, 4, 6}, 3, 1},
		"one that it fills":          {[]int{9, 4, 3}, 3, 2},
		"not one that is too full":   {[]int{9, 2, 6}, 3, 2},
		"the first of several alike": {[]int{9, 4, 4}, 3, 1},
	} {
		t.Run(name, func(t *testing.T) {
			l := newLedger(t)
			var candidates []Candidate
			for i, n := range tc.slices {
				candidates = append([]Candidate{gpuWith(i, n)}, candidates...) // in another order than their index
			}
			must.Eq(t, tc.want, reserveFit(t, l, tc.wanted<<30, candidates...).GPU.Index)
		})
	}
}

// What Nomad has reserved is Nomad's as long as a container has it or may be on its way.
func TestReserveFit_LeavesNomadAlone(t *testing.T) {
	l := newLedger(t)
	reserved, _ := reserve(t, l, 0, 0)
	running, _ := reserve(t, l, 1, 2)
	must.NoError(t, l.Bind(t.Context(), running.ID, container("c1", startProcess(t))))

	must.Eq(t, slicesOf(3, 5), reserveFit(t, l, 3<<30, gpuWith(0, 6)).Slices)
	_, err := l.ReserveFit(t.Context(), fitRequest(1<<30, gpuWith(0, 6)))
	must.True(t, errors.As(err, new(*NoRoomError)))
	later(l, StartTimeout-time.Minute)
	_, err = l.ReserveFit(t.Context(), fitRequest(1<<30, gpuWith(0, 1)))
	must.True(t, errors.As(err, new(*NoRoomError)))

	later(l, 2*time.Minute) // no container came
	must.Eq(t, StateDormant, l.State(reserved, l.now()))
	must.Eq(t, slicesOf(0, 0), reserveFit(t, l, 1<<30, gpuWith(0, 1)).Slices)
}

func TestReserveFit_NoRoom(t *testing.T) {
	l := newLedger(t)
	reserve(t, l, 0, 2)
	_, err := l.ReserveFit(t.Context(), fitRequest(8<<30, gpuWith(1, 6), gpuWith(0, 4)))
	must.EqError(t, err, "reserving 8 slices: no GPU has 8GiB free in slices of 1GiB: GPU 0 has 1 of 4 slices free, "+
		"GPU 1 has 6 of 6 slices free; the largest has 6GiB: ask for less")
	_, err = l.ReserveFit(t.Context(), fitRequest(3<<30, gpuWith(0, 4)))
	must.ErrorContains(t, err, "has 1 of 4 slices free; at most 1GiB fits now, so ask for that, or wait until a container ends")
	must.Len(t, 1, list(t, l))

	_, err = l.ReserveFit(t.Context(), fitRequest(1<<30, gpuWith(0, 3)))
	must.ErrorContains(t, err, "has 0 of 3 slices free; wait until a container ends")
	_, err = l.ReserveFit(t.Context(), fitRequest(1<<63, gpuWith(0, 3)))
	must.ErrorContains(t, err, "no GPU has")

	var many []Candidate
	for i := range 16 {
		many = append(many, gpuWith(i, 4))
	}
	_, err = l.ReserveFit(t.Context(), fitRequest(8<<30, many...))
	must.ErrorContains(t, err, "GPU 7 has 4 of 4 slices free and 8 more; the largest has 4GiB: ask for less")
	must.Less(t, 400, len(err.Error()))
}

func TestReserveFit_SlicesOfAnotherSize(t *testing.T) {
	l := newLedger(t)
	nomads, _ := reserve(t, l, 0, 2)
	req := fitRequest(1<<30, gpuWith(0, 70))
	req.SliceBytes = 2 << 30
	_, err := l.ReserveFit(t.Context(), req)
	var size *SliceSizeError
	must.True(t, errors.As(err, &size))
	must.ErrorContains(t, err, "claim "+nomads.ID+" has slices of 1GiB on GPU "+testGPU.UUID+", and slice_memory is 2GiB here")
	req.Candidates[0] = gpuWith(1, 70)
	_, err = l.ReserveFit(t.Context(), req)
	must.NoError(t, err, must.Sprint("on a GPU without such slices"))

	// The limit of such a claim says nothing of the size of its slices.
	odd := reserveFit(t, l, 5<<29, gpuWith(2, 70))
	must.Eq(t, 1<<30, odd.SliceSize())
	reserveFit(t, l, 1<<30, gpuWith(2, 70))
}

func TestReserveFit_BrokenRecord(t *testing.T) {
	l := newLedger(t)
	c, _ := reserve(t, l, 0, 1)
	path := filepath.Join(l.claims, c.ID+".json")
	text, err := os.ReadFile(path)
	must.NoError(t, err)
	must.NoError(t, os.WriteFile(path, text[:len(text)-20], 0o600))
	must.Eq(t, slicesOf(2, 2), reserveFit(t, l, 1<<30, gpuWith(0, 6)).Slices)
}

func TestReserveFitRefuses(t *testing.T) {
	for want, change := range map[string]func(*FitRequest){
		"names no GPU":              func(r *FitRequest) { r.Candidates = nil },
		"a GPU without a UUID":      func(r *FitRequest) { r.Candidates[0].GPU.UUID = "" },
		"states no size of a slice": func(r *FitRequest) { r.SliceBytes = 0 },
		"has no limit":              func(r *FitRequest) { r.LimitBytes = 0 },
	} {
		l := newLedger(t)
		r := fitRequest(1<<30, gpuWith(0, 6))
		change(&r)
		_, err := l.ReserveFit(t.Context(), r)
		must.ErrorContains(t, err, want)
		must.SliceEmpty(t, list(t, l))
	}
}

// Many processes ask at once: as many get a claim as there is room for, and no slice is given out twice.
func TestReserveFit_Crowd(t *testing.T) {
	const each, gpus, perGPU = 9, 2, 140
	crowd := 60
	if needs.Long() {
		crowd = 200
	}
	l := newLedger(t)
	gate, open, err := os.Pipe()
	must.NoError(t, err)
	var outcomes []func() string
	for range crowd {
		outcomes = append(outcomes, startAsker(t, l, gate))
	}
	must.NoError(t, gate.Close())
	must.NoError(t, open.Close())
	claims := map[string]bool{}
	refused := 0
	for _, outcome := range outcomes {
		if id := outcome(); id == "no room" {
			refused++
		} else {
			claims[id] = true
		}
	}
	const room = gpus * (perGPU / each)
	must.MapLen(t, room, claims)
	must.Eq(t, crowd-room, refused)
	checkWhole(t, l)
	made := list(t, l)
	must.Len(t, room, made)
	for _, c := range made {
		must.True(t, claims[c.ID])
		must.Len(t, each, c.Slices)
	}
}

// startAsker starts a process that asks when its standard input ends, and returns what waits for its answer.
func startAsker(t *testing.T, l *Ledger, gate *os.File) func() string {
	t.Helper()
	cmd := exec.Command("/proc/self/exe")
	cmd.Env = append(os.Environ(), "TRANCHE_TEST_ROLE=asker",
		"TRANCHE_TEST_STATE="+filepath.Dir(l.claims), "TRANCHE_TEST_RUN="+filepath.Dir(l.regions))
	var stdout, stderr strings.Builder
	cmd.Stdin, cmd.Stdout, cmd.Stderr = gate, &stdout, &stderr
	must.NoError(t, cmd.Start())
	t.Cleanup(func() { endProcess(cmd) })
	return func() string {
		must.NoError(t, cmd.Wait(), must.Func(stderr.String))
		return strings.TrimSpace(stdout.String())
	}
}

func TestExternal_NeverBound(t *testing.T) {
	l := newLedger(t)
	c := reserveFit(t, l, 1<<30, gpuWith(0, 1))
	_, err := l.Sweep(t.Context())
	must.NoError(t, err)
	must.Len(t, 1, list(t, l), must.Sprint("its container is being started"))
	_, _, err = l.Reserve(t.Context(), request(0, 0))
	var held *HeldError
	must.True(t, errors.As(err, &held))
	must.ErrorContains(t, err, "held by claim "+c.ID+", which a container that is being started still uses")
	must.True(t, errors.As(l.Drop(t.Context(), c.ID), &held))

	later(l, BindWithin+time.Second)
	nomads, _ := reserve(t, l, 0, 0)
	must.Eq(t, []string{nomads.ID}, ids(list(t, l)), must.Sprint("no container came"))

	l = newLedger(t)
	c = reserveFit(t, l, 1<<30, gpuWith(0, 1))
	later(l, BindWithin+time.Second)
	_, err = l.Sweep(t.Context())
	must.NoError(t, err)
	must.SliceEmpty(t, list(t, l))
	must.DirNotExists(t, l.regionPath(c.ID))
}

// A container that could not be built never comes. Who was to start it is gone by then, also where nobody has waited for
// that process yet.
func TestExternal_StarterGone(t *testing.T) {
	for name, notice := range map[string]func(*Ledger) error{
		"a sweep sees it": func(l *Ledger) error {
			_, err := l.Sweep(context.Background())
			return err
		},
		"the next one asks": func(l *Ledger) error {
			next, err := l.ReserveFit(context.Background(), fitRequest(1<<30, gpuWith(0, 1)))
			return errors.Join(err, l.Cancel(context.Background(), next.ID))
		},
		"Nomad reserves": func(l *Ledger) error {
			next, _, err := l.Reserve(context.Background(), request(0, 0))
			return errors.Join(err, l.Drop(context.Background(), next.ID))
		},
		"a person releases it": func(l *Ledger) error {
			return l.Drop(context.Background(), list(t, l)[0].ID)
		},
	} {
		t.Run(name, func(t *testing.T) {
			l := newLedger(t)
			starts := startProcess(t)
			req := fitRequest(1<<30, gpuWith(0, 1))
			starter, err := proc.Find(starts.Process.Pid)
			must.NoError(t, err)
			req.Starter = &starter
			c, err := l.ReserveFit(t.Context(), req)
			must.NoError(t, err)
			_, err = l.Sweep(t.Context())
			must.NoError(t, err)
			must.Eq(t, []string{c.ID}, ids(list(t, l)))
			var held *HeldError
			must.True(t, errors.As(l.Drop(t.Context(), c.ID), &held))

			must.NoError(t, starts.Process.Kill())
			must.NoError(t, waitid(starts.Process.Pid))
			must.False(t, list(t, l)[0].Starting(l.now()))
			must.NoError(t, notice(l))
			must.SliceEmpty(t, list(t, l))
			must.DirNotExists(t, l.regionPath(c.ID))
		})
	}
}

func TestExternal_ContainerGone(t *testing.T) {
	for name, notice := range map[string]func(*Ledger, string, Container) error{
		"the hook says so": func(l *Ledger, id string, c Container) error {
			return l.Release(context.Background(), id, c.ID)
		},
		"a sweep sees it": func(l *Ledger, _ string, _ Container) error {
			_, err := l.Sweep(context.Background())
			return err
		},
		"the next one asks": func(l *Ledger, _ string, _ Container) error {
			next, err := l.ReserveFit(context.Background(), fitRequest(1<<30, gpuWith(0, 1)))
			return errors.Join(err, l.Cancel(context.Background(), next.ID))
		},
		"Nomad reserves": func(l *Ledger, _ string, _ Container) error {
			next, _, err := l.Reserve(context.Background(), request(0, 0))
			return errors.Join(err, l.Drop(context.Background(), next.ID))
		},
	} {
		t.Run(name, func(t *testing.T) {
			l := newLedger(t)
			c := reserveFit(t, l, 1<<30, gpuWith(0, 1))
			was := endedContainer(t, l, c.ID)
			must.NoError(t, notice(l, c.ID, was))
			must.SliceEmpty(t, list(t, l), must.Sprint("nobody comes back for it"))
			must.DirNotExists(t, l.regionPath(c.ID))
		})
	}
}

// Processes that outlive the container's first one hold memory, which is nobody else's before they end.
func TestExternal_ProcessesLinger(t *testing.T) {
	l := newLedger(t)
	c := reserveFit(t, l, 1<<30, gpuWith(0, 1))
	lingering := holdSlot(t, l.regionPath(c.ID), 3)
	was := endedContainer(t, l, c.ID)
	must.NoError(t, l.Release(t.Context(), c.ID, was.ID))
	_, err := l.Sweep(t.Context())
	must.NoError(t, err)
	must.Len(t, 1, list(t, l))
	_, err = l.ReserveFit(t.Context(), fitRequest(1<<30, gpuWith(0, 1)))
	var none *NoRoomError
	must.True(t, errors.As(err, &none))
	_, _, err = l.Reserve(t.Context(), request(0, 0))
	var held *HeldError
	must.True(t, errors.As(err, &held))

	must.NoError(t, lingering.Close())
	_, err = l.Sweep(t.Context())
	must.NoError(t, err)
	must.SliceEmpty(t, list(t, l))
}

func TestCancel(t *testing.T) {
	l := newLedger(t)
	made := reserveFit(t, l, 1<<30, gpuWith(0, 2))
	bound := reserveFit(t, l, 1<<30, gpuWith(0, 2))
	must.NoError(t, l.Bind(t.Context(), bound.ID, container("c1", startProcess(t))))
	nomads, _ := reserve(t, l, 4, 4)
	for _, id := range []string{made.ID, bound.ID, nomads.ID, "0badcafe"} {
		must.NoError(t, l.Cancel(t.Context(), id))
	}
	must.Eq(t, []string{bound.ID, nomads.ID}, ids(list(t, l)))
	must.DirNotExists(t, l.regionPath(made.ID))
}

// A claim that is dropped while it is in use leaves its limit to those who run.
func TestDropInUse(t *testing.T) {
	l := newLedger(t)
	c, _ := reserve(t, l, 0, 0)
	must.NoError(t, l.Bind(t.Context(), c.ID, container("c1", startProcess(t))))
	user := holdSlot(t, l.regionPath(c.ID), 0)
	must.NoError(t, l.DropInUse(t.Context(), c.ID))
	must.SliceEmpty(t, list(t, l))
	must.DirExists(t, l.regionPath(c.ID))
	must.ErrorIs(t, l.DropInUse(t.Context(), c.ID), ErrUnknownClaim)

	must.NoError(t, user.Close())
	_, err := l.Sweep(t.Context())
	must.NoError(t, err)
	must.DirNotExists(t, l.regionPath(c.ID))
}

// Nomad's slices may have been cut otherwise than those of a claim that was made outside Nomad.
func TestReserve_OverSlicesOfAnotherSize(t *testing.T) {
	l := newLedger(t)
	reserveFit(t, l, 3<<30, gpuWith(0, 140))
	ours := reserveFit(t, l, 1<<30, gpuWith(0, 140)) // the fourth GiB
	must.NoError(t, l.Bind(t.Context(), ours.ID, container("c1", startProcess(t))))
	req := request(1, 1)
	req.SliceBytes, req.LimitBytes = 2<<30, 2<<30
	_, _, err := l.Reserve(t.Context(), req)
	var held *HeldError
	must.True(t, errors.As(err, &held))
	req.Slices = slicesOf(3, 3) // the same name for the seventh and eighth
	_, _, err = l.Reserve(t.Context(), req)
	must.NoError(t, err)
}

func TestParseSliceName(t *testing.T) {
	for _, number := range []int{0, 7, 139, 2246} {
		uuid, n, ok := ParseSliceName(SliceName(testGPU.UUID, number))
		must.True(t, ok)
		must.Eq(t, testGPU.UUID, uuid)
		must.Eq(t, number, n)
	}
	must.Eq(t, testGPU.UUID+"/slice-007", SliceName(testGPU.UUID, 7))
	for _, name := range []string{"", "GPU-1", "GPU-1/slice-", "GPU-1/slice-7", "GPU-1/slice-0007", "GPU-1/slice--01", "GPU-1/slice-+01"} {
		_, _, ok := ParseSliceName(name)
		must.False(t, ok, must.Sprint(name))
	}
}

// Docker's and Podman's IDs are as long as a line.
func TestShortID(t *testing.T) {
	long := strings.Repeat("0123456789abcdef", 4)
	must.Eq(t, "0123456789ab", ShortID(long))
	for _, id := range []string{"web", strings.Repeat("x", 64), long[:63], "2a5c1b9e-0f43-7d6a-8b1c-9d0e1f2a3b4c-web-0badcafe"} {
		must.Eq(t, id, ShortID(id))
	}
	err := &BoundError{Claim: &Claim{ID: "c1", Container: &Container{ID: long, Runtime: "runc", InitPID: 7}}, Container: Container{ID: long}}
	must.StrContains(t, err.Error(), "container 0123456789ab: container 0123456789ab (runc, process 7)")
}
