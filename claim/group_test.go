package claim

import (
	"bufio"
	"context"
	"fmt"
	"os"
	"path/filepath"
	"slices"
	"strings"
	"testing"
	"time"

	"github.com/shoenig/test/must"
)

// groupSize is how many GPUs the tests reserve together.
const groupSize = 3

// wholeGPUs are requests for GPUs, each for all of one.
func wholeGPUs(from, to int) []Request {
	var reqs []Request
	for i := from; i <= to; i++ {
		reqs = append(reqs, inMode(ModeExclusive, cardOf(i), cardOf(i).UUID))
	}
	return reqs
}

func reserveAll(t *testing.T, l *Ledger, from, to int) ([]*Claim, []Token) {
	t.Helper()
	made, tokens, err := l.ReserveAll(t.Context(), wholeGPUs(from, to))
	must.NoError(t, err)
	return made, tokens
}

func TestReserveAll(t *testing.T) {
	l := newLedger(t)
	older, _ := reserve(t, l, 0, 3)
	made, tokens := reserveAll(t, l, 0, 2)
	must.Len(t, groupSize, made)
	must.Len(t, groupSize, tokens)
	env := map[string]string{}
	for i, token := range tokens {
		must.Eq(t, cardOf(i).UUID, made[i].GPU.UUID)
		env[token.EnvName()] = token.Reveal()
	}
	found, err := l.FromEnv(t.Context(), env)
	must.NoError(t, err)
	must.Eq(t, made, found)
	must.SliceNotContains(t, ids(list(t, l)), older.ID)
	must.FileNotExists(t, filepath.Join(l.claims, groupName))

	// Two groups that have a GPU in common, and then the claims one by one.
	newer, _ := reserveAll(t, l, 2, 4)
	must.Eq(t, append(ids(made[:2]), ids(newer)...), ids(list(t, l)))
	must.NoError(t, l.Drop(t.Context(), newer[1].ID))
	must.Eq(t, append(ids(made[:2]), newer[0].ID, newer[2].ID), ids(list(t, l)), must.Sprint("each claim is on its own by now"))
}

func TestReserveAll_NoneWhereOneIsHeld(t *testing.T) {
	l := newLedger(t)
	dormant, _ := reserve(t, l, 0, 3)
	held, _, err := l.Reserve(t.Context(), wholeGPUs(2, 2)[0])
	must.NoError(t, err)
	must.NoError(t, l.Bind(t.Context(), held.ID, container("c1", startProcess(t))))
	before := contents(t, l)
	_, _, err = l.ReserveAll(t.Context(), wholeGPUs(0, 2))
	var e *HeldError
	must.True(t, asError(err, &e))
	must.Eq(t, held.ID, e.Claim.ID)
	must.Eq(t, before, contents(t, l))
	must.DirExists(t, l.regionPath(dormant.ID))
}

func TestReserveAll_Refused(t *testing.T) {
	l := newLedger(t)
	for want, reqs := range map[string][]Request{
		"there is no request": nil,
		"names no slices":     {wholeGPUs(0, 0)[0], {GPU: testGPU, LimitBytes: 1}},
		"conflict":            {wholeGPUs(0, 0)[0], request(0, 1)},
	} {
		_, _, err := l.ReserveAll(t.Context(), reqs)
		must.ErrorContains(t, err, want)
	}
	must.SliceEmpty(t, list(t, l))
}

// Every point at which a process can die: what is there then is as before, and the next group is made as ever.
func TestReserveAll_DiedAtEveryPoint(t *testing.T) {
	for _, point := range []string{"the names cut off", "no record", "one record", "all records", "a record cut off"} {
		t.Run(point, func(t *testing.T) {
			l := newLedger(t)
			older, olderToken := reserve(t, l, 0, 3)
			before := contents(t, l)
			made, tokens := reserveAll(t, l, 0, 2)
			diedAt(t, l, point, before, made)

			_, err := l.Lookup(t.Context(), olderToken)
			must.NoError(t, err, must.Sprint("what they would have superseded is gone"))
			for _, token := range tokens {
				_, err = l.Lookup(t.Context(), token)
				must.ErrorIs(t, err, ErrUnknownToken)
			}
			must.Eq(t, []string{older.ID}, ids(list(t, l)))
			must.Eq(t, before, contents(t, l))
			reserveAll(t, l, 0, 2)
			must.Len(t, groupSize, list(t, l))
		})
	}
}

// diedAt puts the ledger into the state that a process leaves which dies at this point of making the claims.
func diedAt(t *testing.T, l *Ledger, point string, before map[string]string, made []*Claim) {
	t.Helper()
	for path, text := range before { // what they superseded is removed only when all is done
		must.NoError(t, os.WriteFile(path, []byte(text), 0o600))
	}
	group := strings.Join(ids(made), "\n") + "\n"
	there := made
	switch point {
	case "the names cut off":
		group, there = group[:12], nil
	case "no record":
		there = nil
	case "one record":
		there = made[:1]
	}
	must.NoError(t, os.WriteFile(filepath.Join(l.claims, groupName), []byte(group), 0o600))
	for _, c := range made {
		path := filepath.Join(l.claims, c.ID+".json")
		if !slices.Contains(there, c) {
			must.NoError(t, os.Remove(path))
		} else if point == "a record cut off" {
			must.NoError(t, os.Truncate(path, 50))
		}
	}
}

// Whenever the process that makes claims together is killed, all of them are there or none: those of an earlier round or
// of a later one, and never of two.
func TestReserveAll_KilledInTheMidst(t *testing.T) {
	l := newLedger(t)
	first, _ := reserveAll(t, l, 1, groupSize)
	must.Len(t, groupSize, first)
	const wanted, most = 5, 2000 // processes that died in the midst, and at all
	midst := 0
	for round := 0; midst < wanted; round++ {
		must.Less(t, most, round, must.Sprint("hardly a process was killed in the midst, so that this tests nothing"))
		cmd, out, stderr := startRole(t, l, "group reserver")
		_, err := out.ReadString('\n')
		must.NoError(t, err, must.Sprint(stderr))
		time.Sleep(time.Duration(round%60*61) * time.Microsecond) // another moment of its work each time
		endProcess(cmd)
		if _, err := os.Lstat(filepath.Join(l.claims, groupName)); err == nil {
			midst++
		}
		checkWhole(t, l)
		claims := list(t, l)
		must.Len(t, groupSize, claims)
		for _, c := range claims {
			must.Eq(t, claims[0].GPU.Name, c.GPU.Name, must.Sprint("claims of two rounds"))
		}
		must.FileNotExists(t, filepath.Join(l.claims, groupName))
	}
}

// reserveGroups makes claims on the same GPUs together, over and over; their GPUs' names tell the rounds apart.
func reserveGroups(l *Ledger) {
	report := bufio.NewWriterSize(os.Stdout, 0)
	for round := 0; ; round++ {
		reqs := wholeGPUs(1, groupSize)
		for i := range reqs {
			reqs[i].GPU.Name = fmt.Sprintf("round %d of %d", round, os.Getpid())
		}
		if _, _, err := l.ReserveAll(context.Background(), reqs); err != nil {
			fail(err)
		}
		fmt.Fprintln(report, round)
		_ = report.Flush()
	}
}

// Claims are made together by many processes at once, beside others that make one at a time.
func TestReserveAll_ManyProcesses(t *testing.T) {
	l := newLedger(t)
	living := livingClaim(t, l)
	for range 3 {
		_, out, stderr := startRole(t, l, "group reserver")
		_, err := out.ReadString('\n')
		must.NoError(t, err, must.Sprint(stderr))
	}
	for range 40 {
		checkWhole(t, l)
		names := map[string]int{}
		for _, c := range list(t, l) {
			if c.Mode == ModeExclusive {
				names[c.GPU.Name]++
			}
		}
		must.MapLen(t, 1, names)
		for name, count := range names {
			must.Eq(t, groupSize, count, must.Sprint(name))
		}
	}
	checkLiving(t, l, living)
}

func TestReserveAll_FullDisk(t *testing.T) {
	disk := smallDisk(t, "512k")
	l := ledgerAt(t, disk, t.TempDir())
	older, _, err := l.Reserve(t.Context(), wholeGPUs(9, 9)[0]) // which stays, as nobody wants its GPU
	must.NoError(t, err)
	makeRoom := fillUp(t, disk)
	makeRoom()
	// Room for some of the records, not for all.
	for free := 1; ; free++ {
		must.NoError(t, os.WriteFile(filepath.Join(disk, "rest"), make([]byte, free*4096), 0o600))
		full := fillUp(t, disk)
		must.NoError(t, os.Remove(filepath.Join(disk, "rest")))
		before := contents(t, l)
		made, _, err := l.ReserveAll(t.Context(), wholeGPUs(0, groupSize-1))
		full()
		if err == nil {
			must.Greater(t, 2, free, must.Sprint("there was room for all from the start"))
			must.Len(t, groupSize, made)
			return
		}
		checkFull(t, err, l.claims)
		must.Eq(t, before, contents(t, l))
		must.Eq(t, []string{older.ID}, ids(list(t, l)))
	}
}
