package main

import (
	"context"
	"errors"
	"math"
	"os"
	"path/filepath"
	"strings"
	"testing"
	"time"

	"github.com/shoenig/test/must"
)

func reading1(counted, process uint64) reading {
	return reading{counted: counted, process: process, device: int64(process)}
}

// good is a filling with nothing wrong.
func good() *filling {
	return &filling{
		way: way{Name: "linear", Title: "cuMemAlloc", Smallest: granularity}, limit: 1 << 30, contextBytes: 300 * mib,
		piece: event{Taken: 50 * mib}, full: event{Taken: 724 * mib, Pieces: 20, Result: outOfMemory},
		atEmpty: reading1(300*mib, 300*mib), atOne: reading1(350*mib, 350*mib), atFull: reading1(1<<30, 1<<30),
		atEnd: reading1(300*mib, 300*mib),
	}
}

func TestFillingJudge(t *testing.T) {
	cases := []struct {
		name  string
		spoil func(*filling)
		want  string // in the failures; "" for none
	}{
		{"good", func(*filling) {}, ""},
		{"over the limit", func(f *filling) { f.atFull.process = 1<<30 + granularity }, "over the limit of 1 GiB"},
		{"never refused", func(f *filling) { f.full.Result = 0 }, "nothing was refused"},
		{"another error", func(f *filling) { f.full = event{Result: 1, Name: "CUDA_ERROR_INVALID_VALUE"} }, "INVALID_VALUE"},
		{"refused too early", func(f *filling) { f.atFull = reading1(900*mib, 900*mib) }, "124 MiB of the limit could not be used"},
		{"not possible again", func(f *filling) { f.again = event{Result: 2, Name: "CUDA_ERROR_OUT_OF_MEMORY"} }, "had again"},
		{"stays counted", func(f *filling) { f.atEnd.counted += 8 * mib }, "8 MiB stay counted"},
		{"the driver keeps it too", func(f *filling) { f.atEnd.counted += 8 * mib; f.atEnd.process += 8 * mib }, ""},
		{"counted for the dead", func(f *filling) { f.countedWhenDead = mib }, "1 MiB stay counted after the process"},
		{"the first refused", func(f *filling) { f.piece = event{Result: 2, Name: "OOM"} }, "first piece was refused"},
		{"freeing fails", func(f *filling) { f.freed = event{Result: 1, Name: "CUDA_ERROR_INVALID_VALUE"} }, "freeing"},
		{
			// NVML does not say what managed memory takes; the whole GPU's figure does.
			"managed over the limit",
			func(f *filling) { f.way.Name = "managed"; f.atFull.process = 300 * mib; f.atFull.device = 2 << 30 },
			"over the limit",
		},
		{
			"contexts that cost nothing",
			func(f *filling) { f.way = way{Name: "green-context"}; f.full.Result = 0; f.atFull = f.atOne },
			"",
		},
	}
	for _, tc := range cases {
		t.Run(tc.name, func(t *testing.T) {
			f := good()
			tc.spoil(f)
			failures, _ := f.judge()
			if tc.want == "" {
				must.SliceEmpty(t, failures)
			} else {
				must.StrContains(t, join(failures), tc.want)
			}
		})
	}
}

func TestJudgeShare(t *testing.T) {
	const context = 300 * mib
	at := func() map[string]reading {
		return map[string]reading{
			"empty": reading1(2*context, 2*context), "made": reading1(2*context+shareBytes, 2*context+shareBytes),
			"shared":   reading1(2*context+shareBytes, 2*context+shareBytes),
			"orphaned": reading1(context+shareBytes, context+shareBytes), "closed": reading1(context, context),
		}
	}
	failures, _ := judgeShare(4<<30, context, at())
	must.SliceEmpty(t, failures)

	twice := at()
	twice["shared"] = reading1(2*context+2*shareBytes, 2*context+shareBytes)
	failures, _ = judgeShare(4<<30, context, twice)
	must.StrContains(t, join(failures), "counted it once more")

	forgotten := at()
	forgotten["orphaned"] = reading1(context, context+shareBytes)
	failures, _ = judgeShare(4<<30, context, forgotten)
	must.StrContains(t, join(failures), "are not counted")

	// A driver that takes the memory away with its maker: nothing is left to count.
	taken := at()
	taken["orphaned"] = reading1(context, context)
	failures, _ = judgeShare(4<<30, context, taken)
	must.SliceEmpty(t, failures)

	kept := at()
	kept["closed"] = reading1(context+shareBytes, context)
	failures, _ = judgeShare(4<<30, context, kept)
	must.StrContains(t, join(failures), "stay counted")
}

func TestJudgeContextLimit(t *testing.T) {
	const limit = 4 << 30
	at := map[string]reading{"small": reading1(2<<30, 2<<30), "large": reading1(300*mib, 300*mib)}
	got := event{Taken: 1 << 30, Name: "CUDA_SUCCESS", Where: "cuLaunchKernel"}
	refused := event{Taken: 5 << 30, Result: outOfMemory, Where: "cuCtxSetLimit"}
	failures, figures := judgeContextLimit(limit, got, refused, at)
	must.SliceEmpty(t, failures)
	must.StrContains(t, figures, "5 GiB refused by cuCtxSetLimit")

	// A driver that takes the memory later, or never: no harm done as long as it stays within the limit.
	failures, _ = judgeContextLimit(limit, got, event{Taken: 5 << 30}, at)
	must.SliceEmpty(t, failures)
	over := map[string]reading{"small": at["small"], "large": reading1(300*mib, 5<<30)}
	failures, _ = judgeContextLimit(limit, got, event{Taken: 5 << 30}, over)
	must.StrContains(t, join(failures), "over the limit of 4 GiB")
	failures, _ = judgeContextLimit(limit, got, event{Result: 1, Name: "CUDA_ERROR_INVALID_VALUE"}, at)
	must.StrContains(t, join(failures), "not CUDA_ERROR_OUT_OF_MEMORY")
	failures, _ = judgeContextLimit(limit, event{Result: 2, Taken: 1 << 30}, refused, at)
	must.StrContains(t, join(failures), "1 GiB, which the limit of 4 GiB allows, were refused")
}

func TestJudgeProgram(t *testing.T) {
	const limit = 4 << 30
	type all = map[string]event
	good := func() (all, map[string]reading) {
		return all{
				"begun": {Total: limit, Device: limit, Free: limit - 300*mib},
				"full":  {Taken: 3 << 30, Type: "OutOfMemoryError", Message: "CUDA out of memory."},
			}, map[string]reading{
				"begun": reading1(300*mib, 300*mib), "full": reading1(4000*mib, 4000*mib),
			}
	}
	cases := []struct {
		name  string
		spoil func(all, map[string]reading)
		want  string
	}{
		{"good", func(all, map[string]reading) {}, ""},
		{"the whole GPU shows", func(e all, _ map[string]reading) { e["begun"] = event{Total: 80 << 30} }, "total of 80 GiB"},
		{"free is wrong", func(_ all, at map[string]reading) { at["begun"] = reading1(400*mib, 400*mib) }, "mem_get_info shows"},
		{"over the limit", func(_ all, at map[string]reading) { at["full"] = reading1(limit, limit+1) }, "over the limit"},
		{"no error", func(e all, _ map[string]reading) { e["full"] = event{Taken: 5 << 30} }, "there was no error"},
		{"another error", func(e all, _ map[string]reading) { e["full"] = event{Type: "RuntimeError"} }, "the error was RuntimeError"},
		{"unused", func(_ all, at map[string]reading) { at["full"] = reading1(3<<30, 3<<30) }, "could not be used"},
		{"does not recover", func(e all, _ map[string]reading) { e["again"] = event{Message: "lost"} }, "after the error"},
	}
	for _, tc := range cases {
		t.Run(tc.name, func(t *testing.T) {
			events, at := good()
			tc.spoil(events, at)
			failures, figures := judgeProgram(limit, events, at)
			if tc.want == "" {
				must.SliceEmpty(t, failures)
				must.StrContains(t, figures, `OutOfMemoryError: "CUDA out of memory."`)
			} else {
				must.StrContains(t, join(failures), tc.want)
			}
		})
	}
}

func TestJudgeLlama(t *testing.T) {
	const limit = 4 << 30
	good := func() *llamaRun {
		return &llamaRun{
			map[string]event{"begun": {Total: limit}, "loaded": {}, "generated": {Title: "1 2 3", Value: 100}},
			map[string]reading{"loaded": reading1(1<<30, 1<<30), "generated": reading1(1<<30, 1<<30)},
		}
	}
	failures, figures := judgeLlama(limit, good(), good())
	must.SliceEmpty(t, failures)
	must.StrContains(t, figures, "100 tokens a second")
	for want, spoil := range map[string]func(*llamaRun){
		"could not":      func(r *llamaRun) { r.events["loaded"] = event{Message: "could not load the model"} },
		"total of 8 GiB": func(r *llamaRun) { r.events["begun"] = event{Total: 8 << 30} },
		"over the limit": func(r *llamaRun) { r.at["generated"] = reading1(limit, limit+1) },
		"other tokens":   func(r *llamaRun) { r.events["generated"] = event{Title: "1 2 4"} },
	} {
		run := good()
		spoil(run)
		failures, _ := judgeLlama(limit, good(), run)
		must.StrContains(t, join(failures), want)
	}
}

func TestJudgeNVML(t *testing.T) {
	seen := func() *sample {
		s := &sample{Total: 1000, Used: 300, Free: 700, TotalV2: 1000, FreeV2: 700, UsedV2: 300}
		for _, list := range []*processesList{&s.V1, &s.V2, &s.V3} {
			list.List = append(list.List, struct {
				PID   int    `json:"pid"`
				Bytes uint64 `json:"bytes"`
			}{7, 300})
		}
		return s
	}
	must.SliceEmpty(t, judgeNVML(seen(), 1000, 300, 7))
	must.SliceNotEmpty(t, judgeNVML(seen(), 1000, 200, 7))
	must.SliceNotEmpty(t, judgeNVML(seen(), 2000, 300, 7))
	must.SliceLen(t, 3, judgeNVML(seen(), 1000, 300, 8))
	wrong := seen()
	wrong.TotalV2 = 2000
	must.SliceLen(t, 1, judgeNVML(wrong, 1000, 300, 7))
	unsupported := seen()
	unsupported.V1 = processesList{Result: 3}
	must.SliceEmpty(t, judgeNVML(unsupported, 1000, 300, 7))
}

func TestJudgeTurns(t *testing.T) {
	share := shareOfTime{want: 30, had: 31.9, lost: 2, window: 10 * time.Second}
	must.NoError(t, share.judge(2))
	share.had = 27.9
	must.ErrorContains(t, share.judge(2), "27.9 % of the kernels at a share of 30 %, within 10s")
	share.had = math.NaN() // no kernel ended
	must.Error(t, share.judge(2))

	b := bounds{median: 1.1, p99: 1.2}
	r := requests{alone: took{100, 10, 11}, beside: took{100, 10.5, 13}}
	must.NoError(t, r.judge(b))
	r.beside.p99 = 13.3
	must.ErrorContains(t, r.judge(b), "1.21 times as long at the 99th percentile, more than 1.2 times")
	r.beside = took{100, 11.1, 13}
	must.Error(t, r.judge(b))
	must.Eq(t, "nothing", gateRow{driverNS: 90, ours: 91, same: true}.String())
	must.Eq(t, "-1.5 ns", gateRow{driverNS: 90, ours: 88.5}.String())
}

func TestParseSMI(t *testing.T) {
	const text = "GPU-1, 81559, 0\nGPU-2, 4096, 556\n"
	total, used, err := parseSMI(text, "GPU-2")
	must.NoError(t, err)
	must.Eq(t, 4096, total)
	must.Eq(t, 556, used)
	_, _, err = parseSMI("GPU-2, [N/A], [N/A]", "GPU-2")
	must.Error(t, err)
	_, _, err = parseSMI(text, "MIG-3")
	var no *impossibleError
	must.True(t, errors.As(err, &no))
}

// script is a probe in the shell.
func script(t *testing.T, text string) *child {
	t.Helper()
	path := filepath.Join(t.TempDir(), "script")
	must.NoError(t, os.WriteFile(path, []byte("#!/bin/sh\n"+text), 0o755))
	p, err := (&checker{}).start(os.Environ(), path)
	must.NoError(t, err)
	t.Cleanup(p.kill)
	return p
}

func TestChild(t *testing.T) {
	const patience = 10 * time.Second
	p := script(t, `
echo '{"step":"one","taken":5}'
read line
echo "{\"step\":\"$line\"}"
echo chatter
echo 'it is broken' >&2
exit 7`)
	e, err := p.expect(t.Context(), patience, "one")
	must.NoError(t, err)
	must.Eq(t, 5, e.Taken)
	e, err = p.ask(t.Context(), patience, "two")
	must.NoError(t, err)
	must.Eq(t, "two", e.Step)
	_, err = p.next(t.Context(), patience)
	must.ErrorContains(t, err, "exit status 7")
	must.ErrorContains(t, err, "it is broken")
}

// A probe that hangs holds up nobody, and does not outlive the check.
func TestChild_hangs(t *testing.T) {
	p := script(t, "trap '' TERM\nsleep 100\n")
	_, err := p.next(t.Context(), 50*time.Millisecond)
	must.ErrorContains(t, err, "said nothing for 50ms")
	began := time.Now()
	p.kill()
	must.Less(t, time.Minute, time.Since(began))
	must.True(t, p.waitEnded())

	p = script(t, "sleep 100\n")
	ctx, cancel := context.WithCancel(t.Context())
	cancel()
	_, err = p.next(ctx, time.Minute)
	must.Error(t, err)
}

func TestChild_impossible(t *testing.T) {
	p := script(t, `echo '{"step":"impossible","why":"no such thing"}'`)
	_, err := p.next(t.Context(), 10*time.Second)
	c := &checker{report: newReport(), out: os.Stderr}
	c.broken("a check", err)
	must.Eq(t, notPossible, c.report.outcomes[0].verdict)
	must.Eq(t, "no such thing", c.report.outcomes[0].detail)
}

func TestOutput_tooLong(t *testing.T) {
	_, err := (&checker{}).output(t.Context(), 50*time.Millisecond, os.Environ(), "/bin/sleep", "100")
	must.ErrorContains(t, err, "did not end within 50ms")
}

func TestReport(t *testing.T) {
	r := newReport()
	r.machine = [][2]string{{"GPU", "NVIDIA H200"}}
	r.group = "ways"
	r.add("cuMemAlloc", passed, "limit 4 GiB")
	r.add("cuMemCreate", notPossible, "the driver has none")
	text := r.markdown(time.Second)
	must.StrContains(t, text, "| GPU | NVIDIA H200 |")
	must.StrContains(t, text, "**1 passed, 0 failed, 1 not possible**")
	must.StrNotContains(t, text, "SIMULATED")
	must.StrNotContains(t, text, "What failed")

	r.simulated = true
	r.turns = []string{"A switch takes 60 µs.", "A launch takes 2 µs."}
	r.add("arrays", failed, "5 GiB | over\nthe limit")
	r.addFill("cuMemAlloc", good())
	text = r.markdown(time.Second)
	must.StrHasPrefix(t, "# gpu-check\n\n> **THE GPU IS SIMULATED.**", text)
	must.StrContains(t, text, "\n## Compute shares\n\nSIMULATED: A switch takes 60 µs. A launch takes 2 µs.\n\n")
	must.StrContains(t, text, "- ways: arrays: 5 GiB | over the limit\n")
	must.StrContains(t, text, `| ways | arrays | FAILED | 5 GiB \| over the limit |`)
	for line := range strings.Lines(text) {
		if strings.HasPrefix(line, "| cuMemAlloc | 300 MiB") {
			must.Eq(t, 11, strings.Count(line, "|"))
		}
	}
}

func TestReport_stopped(t *testing.T) {
	r := newReport()
	r.stopped = "there is no GPU"
	must.StrContains(t, r.markdown(0), "**nothing was checked: there is no GPU**")
}

func TestSize(t *testing.T) {
	for want, bytes := range map[string]uint64{
		"0 B": 0, "5 B": 5, "4 KiB": 4096, "2 MiB": 2 * mib, "4 GiB": 4 << 30, "1.50 MiB": 3 * mib / 2, "4097 MiB": 4097 * mib,
	} {
		must.Eq(t, want, size(bytes))
	}
	must.Eq(t, "-2 MiB", signed(-2*mib))
}
