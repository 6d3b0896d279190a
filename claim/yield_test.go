package claim

import (
	"errors"
	"os"
	"strings"
	"testing"
	"time"

	"github.com/shoenig/test/must"
)

// dormantClaim makes a claim of Nomad's whose container has ended.
func dormantClaim(t *testing.T, l *Ledger, from, to int) (*Claim, Token) {
	t.Helper()
	c, token := reserve(t, l, from, to)
	endedContainer(t, l, c.ID)
	_, err := l.Sweep(t.Context())
	must.NoError(t, err)
	return c, token
}

func envOf(tokens ...Token) map[string]string {
	env := map[string]string{"PATH": "/bin"}
	for _, token := range tokens {
		env[token.EnvName()] = token.Reveal()
	}
	return env
}

func TestReserveFit_DormantClaimsYieldLast(t *testing.T) {
	l := newLedger(t)
	dormant, _ := dormantClaim(t, l, 0, 3)
	must.Eq(t, slicesOf(4, 5), reserveFit(t, l, 2<<30, gpuWith(0, 6)).Slices, must.Sprint("two slices have no claim"))
	must.SliceContains(t, ids(list(t, l)), dormant.ID)

	must.Eq(t, slicesOf(0, 0), reserveFit(t, l, 1<<30, gpuWith(0, 6)).Slices)
	must.SliceNotContains(t, ids(list(t, l)), dormant.ID)
	must.Eq(t, slicesOf(1, 3), reserveFit(t, l, 3<<30, gpuWith(0, 6)).Slices, must.Sprint("a claim yields as a whole"))
	checkWhole(t, l)
}

func TestReserveFit_YieldsWhereTheFewestSlicesAreDormant(t *testing.T) {
	l := newLedger(t)
	other := gpuWith(1, 4)
	first, _ := dormantClaim(t, l, 0, 3)
	req := request(0, 1)
	req.GPU, req.Slices = other.GPU, []string{SliceName(other.GPU.UUID, 0), SliceName(other.GPU.UUID, 1)}
	second, _, err := l.Reserve(t.Context(), req)
	must.NoError(t, err)
	endedContainer(t, l, second.ID)

	made := reserveFit(t, l, 3<<30, gpuWith(0, 4), other)
	must.Eq(t, 1, made.GPU.Index)
	must.SliceContainsAll(t, []string{first.ID, made.ID}, ids(list(t, l)))
}

func TestReserveFit_TheLongestDormantYieldsFirst(t *testing.T) {
	l := newLedger(t)
	later(l, time.Hour)
	young, _ := dormantClaim(t, l, 0, 1)
	later(l, -time.Hour)
	old, _ := dormantClaim(t, l, 2, 3)
	later(l, 2*time.Hour)
	must.Eq(t, slicesOf(2, 3), reserveFit(t, l, 2<<30, gpuWith(0, 4)).Slices)
	must.SliceContains(t, ids(list(t, l)), young.ID)
	must.SliceNotContains(t, ids(list(t, l)), old.ID)
}

// Claims from before a change of slice_memory or of the mode keep no one from the GPU once they are dormant.
func TestReserveFit_DormantClaimsOfAnotherKindYield(t *testing.T) {
	for name, change := range map[string]func(*Request){
		"size": func(r *Request) { r.SliceBytes = 2 << 30 },
		"mode": func(r *Request) { r.Mode, r.Slices = ModeExclusive, []string{testGPU.UUID} },
	} {
		t.Run(name, func(t *testing.T) {
			l := newLedger(t)
			req := request(0, 1)
			change(&req)
			before, _, err := l.Reserve(t.Context(), req)
			must.NoError(t, err)
			_, err = l.ReserveFit(t.Context(), fitRequest(1<<30, gpuWith(0, 6)))
			must.Error(t, err, must.Sprint("its container is still to come"))
			endedContainer(t, l, before.ID)
			made := reserveFit(t, l, 1<<30, gpuWith(0, 6))
			must.Eq(t, []string{made.ID}, ids(list(t, l)))
		})
	}
}

func TestReserveFit_ClaimWhoseProcessesLingerDoesNotYield(t *testing.T) {
	l := newLedger(t)
	c, _ := reserve(t, l, 0, 0)
	holdSlot(t, l.regionPath(c.ID), 3)
	endedContainer(t, l, c.ID)
	_, err := l.ReserveFit(t.Context(), fitRequest(1<<30, gpuWith(0, 1)))
	must.True(t, errors.As(err, new(*NoRoomError)))
}

func TestReclaim_GivesSlicesBackThatAreFree(t *testing.T) {
	l := newLedger(t)
	c, token := dormantClaim(t, l, 0, 3)
	must.NoError(t, l.NoteWorkload(t.Context(), c.ID, testWorkload))
	external := reserveFit(t, l, 2<<30, gpuWith(0, 4))
	_, err := l.FromEnv(t.Context(), envOf(token))
	must.ErrorIs(t, err, ErrUnknownToken)

	_, err = l.Reclaim(t.Context(), envOf(token), testWorkload)
	var yielded *YieldedError
	must.True(t, errors.As(err, &yielded))
	must.Eq(t, slicesOf(0, 1), yielded.Slices)
	must.ErrorContains(t, err, "of claim "+c.ID+" were given to claim "+external.ID+" (whose container is being started) while "+
		"the task was stopped; stop the job and run it again")
	must.Eq(t, []string{external.ID}, ids(list(t, l)))

	endedContainer(t, l, external.ID) // of which nobody has taken notice
	back, err := l.Reclaim(t.Context(), envOf(token), testWorkload)
	must.NoError(t, err)
	must.Eq(t, []string{c.ID}, ids(back))
	must.Eq(t, slicesOf(0, 3), back[0].Slices)
	must.Eq(t, []string{c.ID}, ids(list(t, l)))
	must.Eq(t, StateReserved, l.State(back[0], l.now()), must.Sprint("its container is on its way"))
	noted, _ := l.Workload(c.ID)
	must.Eq(t, testWorkload, noted)
	_, err = l.readYielded(c.ID)
	must.ErrorIs(t, err, os.ErrNotExist)
	must.NoError(t, prepare(l, c.ID, "c2", 0))
	must.NoError(t, l.Bind(t.Context(), c.ID, container("c2", startProcess(t))))
	checkWhole(t, l)
}

// The IDs in a directory are no secret: only the bearer of the token gets the slices back.
func TestReclaim_NeedsTheToken(t *testing.T) {
	l := newLedger(t)
	c, token := dormantClaim(t, l, 0, 0)
	external := reserveFit(t, l, 1<<30, gpuWith(0, 1))
	endedContainer(t, l, external.ID)
	_, err := l.Sweep(t.Context())
	must.NoError(t, err)
	r, err := l.readYielded(c.ID)
	must.NoError(t, err)
	must.False(t, r.hasToken(newToken()))
	must.True(t, r.hasToken(token))

	// A file under the ID whose token is another's is like none.
	end := map[bool]string{false: "0", true: "1"}[strings.HasSuffix(r.TokenSHA256, "0")]
	r.TokenSHA256 = r.TokenSHA256[:len(r.TokenSHA256)-1] + end
	text, err := encodeRecord(r)
	must.NoError(t, err)
	must.NoError(t, os.WriteFile(l.yieldedPath(c.ID), text, 0o600))
	_, err = l.Reclaim(t.Context(), envOf(token), testWorkload)
	must.ErrorIs(t, err, ErrUnknownToken)
	must.SliceEmpty(t, list(t, l))
}

func TestReclaim_NotesTheWorkload(t *testing.T) {
	l := newLedger(t)
	none, err := l.Reclaim(t.Context(), map[string]string{"PATH": "/bin"}, testWorkload)
	must.NoError(t, err)
	must.SliceEmpty(t, none)
	c, token := reserve(t, l, 0, 3)
	found, err := l.Reclaim(t.Context(), envOf(token), testWorkload)
	must.NoError(t, err)
	must.Eq(t, []string{c.ID}, ids(found))
	noted, _ := l.Workload(c.ID)
	must.Eq(t, testWorkload, noted)
}

func TestSweep_ForgetsYieldedClaimsWhenTheyExpire(t *testing.T) {
	l := newLedger(t)
	c, _ := dormantClaim(t, l, 0, 0)
	reserveFit(t, l, 1<<30, gpuWith(0, 1))
	sweep := func() error {
		_, err := l.Sweep(t.Context())
		must.NoError(t, err)
		_, err = l.readYielded(c.ID)
		return err
	}
	must.NoError(t, sweep())
	later(l, DormantFor-time.Minute)
	must.NoError(t, sweep())
	later(l, 2*time.Minute)
	must.ErrorIs(t, sweep(), os.ErrNotExist)
}

func TestGiveUp_FailedStartsAreDormant(t *testing.T) {
	l := newLedger(t)
	c, token := reserve(t, l, 0, 0)
	state := func() State { return l.State(list(t, l)[0], l.now()) }
	must.Eq(t, StateReserved, state())
	must.NoError(t, prepare(l, c.ID, "c1", 0))
	must.NoError(t, l.GiveUp(t.Context(), envOf(token)))
	must.Eq(t, StateDormant, state())
	must.DirNotExists(t, l.regionPath(c.ID))

	// A restart in place reserves it again, until that fails too.
	must.NoError(t, prepare(l, c.ID, "c2", 0))
	must.Eq(t, StateReserved, state())
	_, err := l.ReserveFit(t.Context(), fitRequest(1<<30, gpuWith(0, 1)))
	must.True(t, errors.As(err, new(*NoRoomError)))
	must.NoError(t, l.GiveUp(t.Context(), envOf(token)))
	must.Eq(t, StateDormant, state())

	// Also at once after the release, and if a claim has no region that is prepared.
	_, err = l.Reclaim(t.Context(), envOf(token), testWorkload)
	must.NoError(t, err)
	must.Eq(t, StateReserved, state())
	must.NoError(t, l.GiveUp(t.Context(), envOf(token)))
	must.Eq(t, StateDormant, state())

	// The release of an earlier version does not set the time of its record's file.
	must.NoError(t, l.Refresh(c.ID, list(t, l)[0].Released.Add(releaseTakes/2)))
	must.Eq(t, StateDormant, state())

	// Or the process that starts it dies, and refreshes it no longer.
	must.NoError(t, prepare(l, c.ID, "c3", 0))
	later(l, BindWithin+time.Minute)
	must.Eq(t, StateDormant, state())
	later(l, -BindWithin-time.Minute)

	// A container that lives keeps it.
	must.NoError(t, l.Bind(t.Context(), c.ID, container("c4", startProcess(t))))
	must.NoError(t, l.GiveUp(t.Context(), envOf(token)))
	must.Eq(t, StateRunning, state())
	must.True(t, list(t, l)[0].Released.IsZero())

	stranger := newToken()
	must.NoError(t, l.GiveUp(t.Context(), envOf(stranger)))
}

func TestState(t *testing.T) {
	l := newLedger(t)
	dormant, _ := dormantClaim(t, l, 0, 0)
	running, _ := reserve(t, l, 1, 1)
	must.NoError(t, l.Bind(t.Context(), running.ID, container("c1", startProcess(t))))
	reserved, _ := reserve(t, l, 2, 2)
	starting := reserveFit(t, l, 1<<30, gpuWith(0, 8))
	ended := reserveFit(t, l, 1<<30, gpuWith(0, 8))
	endedContainer(t, l, ended.ID)
	states := map[string]State{}
	for _, c := range list(t, l) {
		states[c.ID] = l.State(c, l.now())
	}
	want := map[string]State{
		dormant.ID: StateDormant, running.ID: StateRunning, reserved.ID: StateReserved, starting.ID: StateReserved,
	}
	if _, there := states[ended.ID]; there {
		want[ended.ID] = StateEnded
	}
	must.Eq(t, want, states)
}
