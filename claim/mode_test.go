package claim

import (
	"bytes"
	"encoding/json"
	"fmt"
	"maps"
	"os"
	"path/filepath"
	"slices"
	"strings"
	"testing"
	"time"

	"github.com/shoenig/test/must"
)

const migUUID = "MIG-11111111-2222-5333-8444-555555555555"

// cardOf is another GPU than the tests' for every index but 0.
func cardOf(index int) GPU { return gpuWith(index, 0).GPU }

// inMode is a request for a GPU in a mode, with names of its own where the mode has no slices.
func inMode(mode Mode, gpu GPU, names ...string) Request {
	req := Request{GPU: gpu, Slices: names, LimitBytes: 4 << 30, Owner: OwnerNomad, Mode: mode}
	if mode == ModeMPS {
		req.MPS = &MPS{Percentage: 25}
	}
	return req
}

// onInstance is a request for a MIG instance in a place on a GPU.
func onInstance(gpu GPU, uuid string, start, size int, names ...string) Request {
	req := inMode(ModeMIG, GPU{UUID: uuid, Index: gpu.Index, Name: gpu.Name + " MIG 1g.18gb", ContextBytes: 300 << 20}, names...)
	req.MIG = &MIG{GPUUUID: gpu.UUID, GPUIndex: gpu.Index, Profile: "1g.18gb", GPUInstance: 7 + start, Start: start, Size: size}
	return req
}

// kinds are requests of every mode for the first GPU and its first slice, share or place.
func kinds() map[string]Request {
	two := inMode(ModeSlice, testGPU, slicesOf(0, 0)...)
	two.SliceBytes = 2 << 30
	one := inMode(ModeSlice, testGPU, slicesOf(1, 1)...)
	one.SliceBytes = 1 << 30
	mpsTwo := inMode(ModeMPS, testGPU, slicesOf(0, 0)...)
	mpsTwo.SliceBytes = 2 << 30
	mpsOne := inMode(ModeMPS, testGPU, slicesOf(1, 1)...)
	mpsOne.SliceBytes = 1 << 30
	return map[string]Request{
		"slice of the instance": inMode(ModeSlice, GPU{UUID: migUUID}, SliceName(migUUID, 0)),
		"slice 0":               inMode(ModeSlice, testGPU, slicesOf(0, 0)...), "slice 1": inMode("", testGPU, slicesOf(1, 1)...),
		"2GiB slice 0": two, "1GiB slice 1": one,
		"exclusive":                 inMode(ModeExclusive, testGPU, testGPU.UUID),
		"exclusive by another name": inMode(ModeExclusive, testGPU, "all of it"),
		"share 0":                   inMode(ModeTimeslice, testGPU, testGPU.UUID+"/share-00"),
		"share 1":                   inMode(ModeTimeslice, testGPU, testGPU.UUID+"/share-01"),
		"mps 0":                     inMode(ModeMPS, testGPU, slicesOf(0, 0)...), "mps 1": inMode(ModeMPS, testGPU, slicesOf(1, 1)...),
		"2GiB mps 0": mpsTwo, "1GiB mps 1": mpsOne,
		"instance 0:2":             onInstance(testGPU, migUUID, 0, 2, migUUID),
		"instance 2:2":             onInstance(testGPU, "MIG-2", 2, 2, "MIG-2"),
		"instance 1:2":             onInstance(testGPU, "MIG-3", 1, 2, "MIG-3"),
		"instance 4:4 for slice 0": onInstance(testGPU, "MIG-4", 4, 4, slicesOf(0, 0)...),
		"instance to come 4:1":     onInstance(testGPU, "", 4, 1, slicesOf(4, 4)...),
		"same UUID elsewhere":      onInstance(testGPU, migUUID, 6, 1, migUUID),
	}
}

// beside are the pairs that can be on one GPU at once; all others conflict, each with itself, too.
var beside = [][2]string{
	{"slice 0", "slice 1"}, {"slice 0", "1GiB slice 1"},
	{"slice of the instance", "slice 0"}, {"slice of the instance", "slice 1"}, {"slice of the instance", "2GiB slice 0"},
	{"slice of the instance", "1GiB slice 1"}, {"slice of the instance", "exclusive"}, // nobody knows whose instance it is
	{"slice of the instance", "exclusive by another name"}, {"slice of the instance", "share 0"},
	{"slice of the instance", "share 1"}, {"slice of the instance", "mps 0"}, {"slice of the instance", "mps 1"},
	{"slice of the instance", "2GiB mps 0"}, {"slice of the instance", "1GiB mps 1"},
	{"slice of the instance", "instance 2:2"}, {"slice of the instance", "instance 1:2"},
	{"slice of the instance", "instance 4:4 for slice 0"}, {"slice of the instance", "instance to come 4:1"},
	{"share 0", "share 1"},
	{"mps 0", "mps 1"}, {"mps 0", "1GiB mps 1"},
	{"slice 1", "2GiB slice 0"}, {"mps 1", "2GiB mps 0"}, // by name: sizes compare only where both are stated
	{"instance 0:2", "instance 2:2"}, {"instance 0:2", "instance 4:4 for slice 0"}, {"instance 0:2", "instance to come 4:1"},
	{"instance 2:2", "instance 4:4 for slice 0"}, {"instance 2:2", "instance to come 4:1"},
	{"instance 1:2", "instance 4:4 for slice 0"}, {"instance 1:2", "instance to come 4:1"},
	{"same UUID elsewhere", "instance 2:2"}, {"same UUID elsewhere", "instance 1:2"}, {"same UUID elsewhere", "instance to come 4:1"},
}

// Every pair of modes, either first: whoever can be beside the other is, and else the later one supersedes or, where the
// earlier one's container lives, is refused.
func TestModes_EveryPair(t *testing.T) {
	all := kinds()
	names := slices.Sorted(maps.Keys(all))
	for _, first := range names {
		for _, second := range names {
			both := slices.Contains(beside, [2]string{first, second}) || slices.Contains(beside, [2]string{second, first})
			t.Run(first+" then "+second, func(t *testing.T) { checkPair(t, all[first], all[second], both) })
		}
	}
}

func checkPair(t *testing.T, first, second Request, both bool) {
	for _, living := range []bool{false, true} {
		l := newLedger(t)
		older, _, err := l.Reserve(t.Context(), first)
		must.NoError(t, err)
		if living && older.Making() {
			must.NoError(t, l.CompleteMIG(t.Context(), older.ID, GPU{UUID: "MIG-made"}, 9, 0))
		}
		if living {
			must.NoError(t, l.Bind(t.Context(), older.ID, Container{Runtime: "runc", ID: "c1", InitPID: os.Getpid()}))
		}
		held := living || older.Making()
		newer, _, err := l.Reserve(t.Context(), second)
		switch {
		case both:
			must.NoError(t, err)
			must.SliceContainsAll(t, ids(list(t, l)), []string{older.ID, newer.ID})
		case held:
			var e *HeldError
			must.True(t, asError(err, &e), must.Sprintf("%v", err))
			must.Eq(t, older.ID, e.Claim.ID)
			must.SliceNotEmpty(t, e.Slices)
			must.StrContains(t, err.Error(), older.ID)
			must.Eq(t, []string{older.ID}, ids(list(t, l)))
		default:
			must.NoError(t, err)
			must.Eq(t, []string{newer.ID}, ids(list(t, l)))
		}
		// On another GPU there is never a conflict.
		_, _, err = l.Reserve(t.Context(), inMode(ModeExclusive, cardOf(1), cardOf(1).UUID))
		must.NoError(t, err)
	}
}

// Records of ModeSlice are those that programs without modes write and read, byte for byte.
func TestModes_SliceRecordsAreAsBefore(t *testing.T) {
	text, err := os.ReadFile("testdata/slice-record.json") // written before there were modes
	must.NoError(t, err)
	r, err := decodeRecord("f146f51a", text)
	must.NoError(t, err)
	must.Eq(t, ModeSlice, r.Mode)
	must.True(t, r.Limited())
	must.Eq(t, testGPU.UUID, r.PhysicalGPU())
	again, err := encodeRecord(r)
	must.NoError(t, err)
	must.Eq(t, string(text), string(again))

	for name, mode := range map[string]Mode{"stated": ModeSlice, "not stated": ""} {
		l := newLedger(t)
		made, token, err := l.Reserve(t.Context(), inMode(mode, testGPU, slicesOf(0, 1)...))
		must.NoError(t, err, must.Sprint(name))
		must.Eq(t, ModeSlice, made.Mode)
		found, err := l.Lookup(t.Context(), token)
		must.NoError(t, err)
		must.Eq(t, made, found)
		checkKnownBefore(t, l, made.ID)
	}
}

// checkKnownBefore reads a record as programs without modes do, which refuse fields that they do not know.
func checkKnownBefore(t *testing.T, l *Ledger, id string) {
	t.Helper()
	text, err := os.ReadFile(filepath.Join(l.claims, id+".json"))
	must.NoError(t, err)
	d := json.NewDecoder(bytes.NewReader(text))
	d.DisallowUnknownFields()
	must.NoError(t, d.Decode(&struct {
		Format             int             `json:"tranche_claim"`
		ID                 string          `json:"id"`
		GPU                GPU             `json:"gpu"`
		Slices             []string        `json:"slices"`
		SliceBytes         uint64          `json:"slice_bytes"`
		LimitBytes         uint64          `json:"limit_bytes"`
		GPUHostMemoryBytes uint64          `json:"gpu_host_memory_bytes"`
		Owner              string          `json:"owner"`
		Created            time.Time       `json:"created"`
		Container          json.RawMessage `json:"container"`
		Released           time.Time       `json:"released"`
		TokenSHA256        string          `json:"token_sha256"`
		Supersedes         []string        `json:"supersedes"`
	}{}))
}

func TestModes_KeptInTheLedger(t *testing.T) {
	for name, req := range kinds() {
		t.Run(name, func(t *testing.T) {
			l := newLedger(t)
			made, token, err := l.Reserve(t.Context(), req)
			must.NoError(t, err)
			found, err := l.Lookup(t.Context(), token)
			must.NoError(t, err)
			must.Eq(t, made, found)
			must.Eq(t, req.Mode.orSlice(), found.Mode)
			must.Eq(t, req.MPS, found.MPS)
			must.Eq(t, req.MIG, found.MIG)
			if name != "slice of the instance" {
				must.Eq(t, testGPU.UUID, found.PhysicalGPU())
			}
			must.Eq(t, found.Mode != ModeExclusive && found.Mode != ModeTimeslice, found.Limited())
			_, err = os.Stat(l.regionPath(made.ID))
			must.Eq(t, found.Limited() && !found.Making(), err == nil, must.Sprint("a region"))
		})
	}
}

func TestModes_UnlimitedInstance(t *testing.T) {
	l := newLedger(t)
	req := onInstance(testGPU, migUUID, 0, 2, migUUID)
	req.Unlimited = true
	made, _, err := l.Reserve(t.Context(), req)
	must.NoError(t, err)
	must.False(t, made.Limited())
	_, err = l.Usage(t.Context(), made.ID)
	must.ErrorIs(t, err, ErrNotCounted)
	must.NoError(t, l.Bind(t.Context(), made.ID, container("c1", startProcess(t))))
	_, err = l.Usage(t.Context(), made.ID)
	must.ErrorIs(t, err, ErrNotCounted)

	// Beside a claim with a limit it gets a region, with all memory as its limit.
	other, _, err := l.Reserve(t.Context(), onInstance(testGPU, "MIG-2", 4, 2, "MIG-2"))
	must.NoError(t, err)
	must.NoError(t, prepare(l, other.ID, "c2", 0))
	u, err := l.Usage(t.Context(), other.ID)
	must.NoError(t, err)
	must.Eq(t, other.LimitBytes, u.LimitBytes)
}

func TestModes_Refused(t *testing.T) {
	instance := func(change func(*Request)) Request {
		req := onInstance(testGPU, migUUID, 0, 2, migUUID)
		change(&req)
		return req
	}
	for name, tc := range map[string]struct {
		req  Request
		want string
	}{
		"an unknown mode":              {inMode("half", testGPU, "s"), `"half" is no mode`},
		"mig without an instance":      {instance(func(r *Request) { r.MIG = nil }), "MIG instance"},
		"an instance in another mode":  {instance(func(r *Request) { r.Mode = ModeExclusive }), "MIG instance"},
		"an instance of no GPU":        {instance(func(r *Request) { r.MIG.GPUUUID = "" }), "MIG instance has no GPU"},
		"an instance without a place":  {instance(func(r *Request) { r.MIG.Size = 0 }), "has no place"},
		"an instance before all slots": {instance(func(r *Request) { r.MIG.Start = -1 }), "has no place"},
		"mps without a share": {
			Request{GPU: testGPU, Slices: []string{"s"}, LimitBytes: 1, Mode: ModeMPS}, "share of MPS",
		},
		"a share in another mode": {
			Request{GPU: testGPU, Slices: []string{"s"}, LimitBytes: 1, MPS: &MPS{Percentage: 10}}, "share of MPS",
		},
		"no share at all": {
			Request{GPU: testGPU, Slices: []string{"s"}, LimitBytes: 1, Mode: ModeMPS, MPS: &MPS{}}, "percent, got 0",
		},
		"more than all": {
			Request{GPU: testGPU, Slices: []string{"s"}, LimitBytes: 1, Mode: ModeMPS, MPS: &MPS{Percentage: 101}}, "percent, got 101",
		},
		"slices without a limit": {
			Request{GPU: testGPU, Slices: []string{"s"}, LimitBytes: 1, Unlimited: true}, "has a limit for each claim",
		},
		"no limit for the driver": {
			Request{GPU: testGPU, Slices: []string{"s"}, LimitBytes: 1, Unlimited: true, Mode: ModeExclusive, Enforcement: EnforcementDriver},
			"requires a limit in mode slice or mps",
		},
		"no GPU": {inMode(ModeExclusive, GPU{}, "s"), "names no GPU"},
	} {
		t.Run(name, func(t *testing.T) {
			l := newLedger(t)
			_, _, err := l.Reserve(t.Context(), tc.req)
			must.ErrorContains(t, err, tc.want)
			must.SliceEmpty(t, list(t, l))
		})
	}
}

// A record of a mode that this program does not know is not taken for another's.
func TestModes_OfALaterVersion(t *testing.T) {
	l := newLedger(t)
	made, _, err := l.Reserve(t.Context(), inMode(ModeExclusive, testGPU, testGPU.UUID))
	must.NoError(t, err)
	path := filepath.Join(l.claims, made.ID+".json")
	text, err := os.ReadFile(path)
	must.NoError(t, err)
	must.NoError(t, os.WriteFile(path, replace(text, `"exclusive"`, `"quantum"`), 0o600))
	claims, problems, err := l.List(t.Context())
	must.NoError(t, err)
	must.SliceEmpty(t, claims)
	must.Len(t, 1, problems)
	must.StrContains(t, problems[0].Reason, `"quantum" is no mode`)
	must.Eq(t, []string{testGPU.UUID}, problems[0].MayHold)
	must.Eq(t, testGPU.UUID, problems[0].GPUUUID)
}

func TestModes_HeldSaysWhichMode(t *testing.T) {
	l := newLedger(t)
	made, _ := reserve(t, l, 0, 1)
	must.NoError(t, l.Bind(t.Context(), made.ID, container("c1", startProcess(t))))
	_, _, err := l.Reserve(t.Context(), inMode(ModeExclusive, testGPU, testGPU.UUID))
	must.ErrorContains(t, err, fmt.Sprintf("GPU %s is still in mode slice by claim %s, which container c1", testGPU.UUID, made.ID))
	must.ErrorContains(t, err, "it can be reserved in mode exclusive when that has ended")
}

// The record of a living container is spoiled. Who wants the whole GPU, or a part of one that the container has whole, must
// not get it.
func TestModes_BrokenRecordOfTheLiving(t *testing.T) {
	migOfCard := onInstance(testGPU, "MIG-2", 2, 2, "MIG-2")
	for name, tc := range map[string]struct {
		first, second Request
		cut           int // how many bytes of the record are left; 0 for all but the last ten
		want          bool
	}{
		"a slice, then the GPU":            {inMode(ModeSlice, testGPU, slicesOf(4, 5)...), inMode(ModeExclusive, testGPU, testGPU.UUID), 0, true},
		"a slice that is cut off":          {inMode(ModeSlice, testGPU, slicesOf(4, 5)...), inMode(ModeExclusive, testGPU, testGPU.UUID), 120, true},
		"an instance, then the GPU":        {migOfCard, inMode(ModeExclusive, testGPU, testGPU.UUID), 0, true},
		"a slice, then another GPU":        {inMode(ModeSlice, testGPU, slicesOf(4, 5)...), inMode(ModeExclusive, cardOf(1), cardOf(1).UUID), 0, false},
		"a slice, then another":            {inMode(ModeSlice, testGPU, slicesOf(4, 5)...), inMode(ModeSlice, testGPU, slicesOf(6, 7)...), 0, false},
		"all of it, by name, then a slice": {inMode(ModeMPS, testGPU, testGPU.UUID), inMode(ModeSlice, testGPU, slicesOf(6, 7)...), 0, true},
	} {
		t.Run(name, func(t *testing.T) {
			l := newLedger(t)
			bad, _, err := l.Reserve(t.Context(), tc.first)
			must.NoError(t, err)
			path := filepath.Join(l.claims, bad.ID+".json")
			text, err := os.ReadFile(path)
			must.NoError(t, err)
			if tc.cut == 0 {
				tc.cut = len(text) - 10
			}
			must.NoError(t, os.WriteFile(path, text[:tc.cut], 0o600))
			user := holdSlot(t, l.regionPath(bad.ID), 0)

			_, _, err = l.Reserve(t.Context(), tc.second)
			var held *HeldError
			must.Eq(t, tc.want, asError(err, &held), must.Sprintf("%v", err))
			if tc.want {
				must.Eq(t, bad.ID, held.Claim.ID)
				must.SliceNotEmpty(t, held.Slices)
			}
			must.NoError(t, user.Close())
			_, _, err = l.Reserve(t.Context(), tc.second)
			must.NoError(t, err)
		})
	}
}

// Who asks for slices gets none of a GPU that is in another mode, whatever the claims there are about.
func TestModes_ReserveFitLeavesOtherModesAlone(t *testing.T) {
	for name, req := range kinds() {
		if req.Mode.IsZero() {
			continue // whose slice is one of the GPU's, or of an instance of it
		}
		t.Run(name, func(t *testing.T) {
			l := newLedger(t)
			other, _, err := l.Reserve(t.Context(), req)
			must.NoError(t, err)
			_, err = l.ReserveFit(t.Context(), fitRequest(1<<30, gpuWith(0, 140)))
			must.ErrorContains(t, err, "GPU 0 is still in mode "+string(other.Mode))
			must.Eq(t, cardOf(1).UUID, reserveFit(t, l, 1<<30, gpuWith(0, 140), gpuWith(1, 140)).GPU.UUID)
		})
	}
}

// An instance that Nomad has given whole has no slices for others.
func TestModes_ReserveFitLeavesInstancesAlone(t *testing.T) {
	l := newLedger(t)
	_, _, err := l.Reserve(t.Context(), onInstance(testGPU, migUUID, 0, 2, migUUID))
	must.NoError(t, err)
	_, err = l.ReserveFit(t.Context(), fitRequest(1<<30, Candidate{GPU: GPU{UUID: migUUID}, Slices: 19}))
	must.ErrorContains(t, err, "is still in mode mig")
}

func TestReserveFit_OtherSizesOnOtherGPUs(t *testing.T) {
	l := newLedger(t)
	small, large := gpuWith(0, 6), gpuWith(1, 4)
	large.SliceBytes = 4 << 30
	c := reserveFit(t, l, 5<<30, small, large)
	must.Eq(t, small.GPU, c.GPU, must.Sprint("it has less free memory, though more slices"))
	c = reserveFit(t, l, 5<<30, small, large)
	must.Eq(t, large.GPU, c.GPU)
	must.Len(t, 2, c.Slices)
	must.Eq(t, 4<<30, c.SliceBytes)
	_, err := l.ReserveFit(t.Context(), fitRequest(20<<30, small, large))
	must.ErrorContains(t, err, "has 1 of 6 slices free, GPU 1 has 2 of 4 slices free of 4GiB; the largest has 16GiB: ask for less")
	_, err = l.ReserveFit(t.Context(), fitRequest(10<<30, small, large))
	must.ErrorContains(t, err, "at most 8GiB fits now")
}

func TestParseMode(t *testing.T) {
	for text, want := range map[string]Mode{
		"": ModeSlice, "slice": ModeSlice, "exclusive": ModeExclusive, "timeslice": ModeTimeslice, "mps": ModeMPS, "mig": ModeMIG,
	} {
		mode, err := ParseMode(text)
		must.NoError(t, err)
		must.Eq(t, want, mode)
	}
	_, err := ParseMode("MIG")
	must.True(t, err != nil && strings.Contains(err.Error(), `"MIG" is no mode`))
}
