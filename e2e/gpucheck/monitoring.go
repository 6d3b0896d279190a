package main

import (
	"context"
	"errors"
	"fmt"
	"slices"
	"strconv"
	"strings"
)

// checkMonitoring checks what NVML and nvidia-smi show under a limit.
func (c *checker) checkMonitoring(ctx context.Context) {
	nvml, smi := "NVML: memory and processes, every version", "nvidia-smi"
	s, err := c.newScene(ctx, nvml)
	if err != nil {
		c.broken(nvml, err)
		return
	}
	defer s.close()
	other, err := c.newScene(ctx, nvml)
	if err != nil {
		c.broken(nvml, err)
		return
	}
	defer other.close()

	// A process under another limit, which is nobody's business here.
	stranger, err := other.enter(ctx)
	if err == nil {
		err = other.take(ctx, stranger, 64*mib)
	}
	var p *child
	if err == nil {
		p, err = s.enter(ctx)
	}
	if err == nil {
		err = s.take(ctx, p, 256*mib)
	}
	if err != nil {
		c.broken(nvml, err)
		return
	}
	if failures, figures, err := c.compareNVML(s, p.pid()); err != nil {
		c.broken(nvml, err)
	} else {
		c.conclude(nvml, failures, figures)
	}
	if err := c.checkSMI(ctx, s, smi); err != nil {
		c.broken(smi, err)
	}
}

// compareNVML compares what NVML shows behind the shadow library with what is counted.
func (c *checker) compareNVML(s *scene, pid int) (failures []string, figures string, err error) {
	w, err := c.watch(s.claim.env, c.machine.digits)
	if err != nil {
		return nil, "", err
	}
	defer w.close()
	seen, err := w.sample()
	if err != nil {
		return nil, "", err
	}
	r, err := s.read()
	if err != nil {
		return nil, "", err
	}
	failures = judgeNVML(seen, s.claim.limitBytes, r.counted, pid)
	return failures, fmt.Sprintf("total %s, used %s, free %s; %s", size(seen.Total), size(seen.Used), size(seen.Free), r), nil
}

func judgeNVML(seen *sample, limit, counted uint64, pid int) (failures []string) {
	fail := func(format string, args ...any) { failures = append(failures, fmt.Sprintf(format, args...)) }
	if seen.Total != limit || seen.Used != counted || seen.Free != limit-counted {
		fail("version 1 shows total %s, used %s, free %s under a limit of %s with %s counted", size(seen.Total), size(seen.Used),
			size(seen.Free), size(limit), size(counted))
	}
	if seen.ResultV2 == 0 && (seen.TotalV2 != limit || seen.FreeV2 != limit-counted) {
		fail("version 2 shows total %s, used %s, free %s, reserved %s", size(seen.TotalV2), size(seen.UsedV2), size(seen.FreeV2),
			size(seen.Reserved))
	}
	for i, list := range []processesList{seen.V1, seen.V2, seen.V3} {
		if list.Result == -1 || list.Result == 3 { // not in this driver, or not supported
			continue
		}
		var pids []int
		for _, process := range list.List {
			pids = append(pids, process.PID)
		}
		if list.Result != 0 || !slices.Equal(pids, []int{pid}) {
			fail("the list of processes, version %d, shows %v (result %d) where the only process is %d", i+1, pids, list.Result, pid)
		}
	}
	return failures
}

func (c *checker) checkSMI(ctx context.Context, s *scene, name string) error {
	if c.machine.smi == "" {
		return &impossibleError{"there is no nvidia-smi on the PATH"}
	}
	out, err := c.output(ctx, stepPatience, s.claim.env, c.machine.smi, "--query-gpu=uuid,memory.total,memory.used",
		"--format=csv,noheader,nounits")
	if err != nil {
		return err
	}
	total, used, err := parseSMI(out, c.machine.uuid)
	if err != nil {
		return err
	}
	r, err := s.read()
	if err != nil {
		return err
	}
	figures := fmt.Sprintf("total %d MiB, used %d MiB; %s", total, used, r)
	if total != s.claim.limitBytes/mib || used+2 < r.counted/mib || used > r.counted/mib+2 {
		return errors.New(figures)
	}
	c.note(name, passed, figures)
	return nil
}

func firstLine(text string) string {
	line, _, _ := strings.Cut(strings.TrimSpace(text), "\n")
	return line
}

// parseSMI reads the row of the GPU. A MIG instance has none.
func parseSMI(text, uuid string) (total, used uint64, err error) {
	for line := range strings.Lines(text) {
		rest, ok := strings.CutPrefix(strings.TrimSpace(line), uuid+",")
		if !ok {
			continue
		}
		first, second, _ := strings.Cut(rest, ",")
		total, err1 := strconv.ParseUint(strings.TrimSpace(first), 10, 64)
		used, err2 := strconv.ParseUint(strings.TrimSpace(second), 10, 64)
		if err := errors.Join(err1, err2); err != nil {
			return 0, 0, fmt.Errorf("nvidia-smi says %q: %w", line, err)
		}
		return total, used, nil
	}
	return 0, 0, &impossibleError{"nvidia-smi does not list the GPU by its UUID"}
}
