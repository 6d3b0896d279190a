package main

import (
	"context"
	"debug/elf"
	"errors"
	"fmt"
	"os"
	"path/filepath"
	"regexp"
	"slices"
	"strings"
)

// factRow is one thing that was done to the bare driver, and what came of it.
type factRow struct {
	event
	process, device int64 // change since the row before
}

// collectFacts measures what the simulated GPU can only assume. Nothing here can fail but the measuring itself.
func (c *checker) collectFacts(ctx context.Context) {
	name := "the driver's own doings, measured bare"
	m, err := c.newMeter(nil)
	if err != nil {
		c.broken(name, err)
		return
	}
	p, err := c.start(c.bareEnv(), c.program("probe"), "facts", fmt.Sprint(c.machine.limitBytes))
	if err != nil {
		c.broken(name, err)
		return
	}
	defer p.kill()
	var last reading
	for {
		e, err := p.next(ctx, stepPatience)
		if err != nil && p.waitEnded() && p.cmd.ProcessState.Success() {
			break
		}
		now, readErr := m.read(p.pid())
		if err = errors.Join(err, readErr); err != nil {
			c.broken(name, err)
			return
		}
		row := factRow{event: e, process: delta(now.process, last.process), device: now.device - last.device}
		c.report.facts = append(c.report.facts, row)
		last = now
		p.tell("go")
	}
	c.note(name, passed, fmt.Sprintf("%d figures, below", len(c.report.facts)))
}

// listSymbols asks the driver for what the shadow library stands in front of, and looks in the driver's library for what
// it might not know of.
func (c *checker) listSymbols(ctx context.Context) {
	name := "cuGetProcAddress answers with the addresses that the library exports"
	out, err := c.output(ctx, stepPatience, c.bareEnv(), c.program("probe"), "symbols", filepath.Join(c.bundle, "symbols"))
	if err != nil {
		c.broken(name, err)
		return
	}
	var missing, others, strangers []string
	count := 0
	events, err := parseEvents(out)
	if err != nil {
		c.broken(name, err)
		return
	}
	for _, e := range events {
		count++
		switch {
		case !e.Exported:
			missing = append(missing, e.Name)
		case e.Answered > 0 && !e.Same:
			others = append(others, e.Name)
		}
		if e.Strangers > 0 {
			strangers = append(strangers, fmt.Sprintf("%s (%d)", e.Name, e.Strangers))
		}
	}
	c.report.symbols = []symbolList{
		{"shadowed, and not in this driver", missing},
		{"exported with an address that cuGetProcAddress never answers with", others},
		{"cuGetProcAddress answers with addresses that are no export of the name", strangers},
	}
	c.note(name, passed, fmt.Sprintf("%d of %d shadowed functions are in this driver, %d of them with another address; lists below",
		count-len(missing), count, len(others)))
	c.listUnknown()
}

// holdsMemory matches names of functions by which a process may come to hold memory.
var holdsMemory = regexp.MustCompile(`^cu[A-Z].*(Alloc|Array.*Create|MemCreate|CtxCreate|CtxRetain|PoolCreate|Import|IpcOpen|` +
	`ModuleLoad|LibraryLoad|LinkComplete|Multicast|MapArray|GraphLaunch|GraphUpload|CtxSetLimit|Resize)`)

// listUnknown lists functions of the driver that sound as if they took memory, and that the shadow library does not have.
func (c *checker) listUnknown() {
	name := "functions of the driver that may take memory and are not shadowed"
	known, err := os.ReadFile(filepath.Join(c.bundle, "symbols"))
	if err != nil {
		c.broken(name, err)
		return
	}
	exported, err := exports(c.machine.cudaFile)
	if err != nil {
		c.broken(name, &impossibleError{err.Error()})
		return
	}
	shadowed := strings.Fields(string(known))
	var unknown []string
	for _, symbol := range exported {
		if holdsMemory.MatchString(symbol) && !slices.Contains(shadowed, symbol) {
			unknown = append(unknown, symbol)
		}
	}
	c.report.symbols = append(c.report.symbols, symbolList{name, unknown})
	c.note(name, passed, fmt.Sprintf("%d of %d exports, listed below", len(unknown), len(exported)))
}

// exports lists what a library exports.
func exports(file string) ([]string, error) {
	f, err := elf.Open(file)
	if err != nil {
		return nil, err
	}
	defer f.Close()
	symbols, err := f.DynamicSymbols()
	if err != nil {
		return nil, err
	}
	var names []string
	for _, s := range symbols {
		if s.Section != elf.SHN_UNDEF && elf.ST_TYPE(s.Info) == elf.STT_FUNC {
			names = append(names, s.Name)
		}
	}
	slices.Sort(names)
	return slices.Compact(names), nil
}
