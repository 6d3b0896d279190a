package main

import (
	"context"
	"fmt"
)

// invalidPTX are the results by which a driver says that it cannot make anything of a kernel.
var invalidPTX = map[int]bool{200: true, 209: true, 218: true, 221: true, 222: true}

// checkContextLimits checks heaps, stacks and local memory, which nobody allocates in so many words.
func (c *checker) checkContextLimits(ctx context.Context) {
	for _, kind := range []struct{ name, title string }{
		{"heap", "the heap of kernels (CU_LIMIT_MALLOC_HEAP_SIZE)"},
		{"fifo", "the buffer of printf (CU_LIMIT_PRINTF_FIFO_SIZE)"},
		{"stack", "stacks (CU_LIMIT_STACK_SIZE)"},
		{"local", "a kernel's local memory"},
	} {
		if err := c.checkContextLimit(ctx, kind.name, kind.title); err != nil {
			c.broken(kind.title, err)
		}
	}
}

func (c *checker) checkContextLimit(ctx context.Context, name, title string) error {
	limit := c.machine.limitBytes
	small, large := (limit-c.machine.contextBytes)/4, limit+limit/4
	l, err := c.newClaim(limit)
	if err != nil {
		return err
	}
	m, err := c.newMeter(l)
	if err != nil {
		return err
	}
	p, err := c.start(l.env, c.program("probe"), "limits", name, fmt.Sprint(small), fmt.Sprint(large))
	if err != nil {
		return err
	}
	defer p.kill()

	events, readings := map[string]event{}, map[string]reading{}
	for _, step := range []string{"empty", "small", "small-gone", "large", "large-gone"} {
		if events[step], err = p.expect(ctx, stepPatience, step); err != nil {
			return err
		}
		if readings[step], err = m.read(p.pid()); err != nil {
			return err
		}
		p.tell("go")
	}
	got, refused := events["small"], events["large"]
	c.report.contextLimits = append(c.report.contextLimits, contextLimitRow{title, got, refused,
		readings["small"], readings["small-gone"], readings["large"]})
	if invalidPTX[got.Result] {
		return &impossibleError{fmt.Sprintf("this driver does not take the kernel: %s by %s", got.Name, got.Where)}
	}
	failures, figures := judgeContextLimit(limit, got, refused, readings)
	c.conclude(title, failures, figures)
	return nil
}

func judgeContextLimit(limit uint64, got, refused event, at map[string]reading) (failures []string, figures string) {
	fail := func(format string, args ...any) { failures = append(failures, fmt.Sprintf(format, args...)) }
	if got.Result != 0 {
		fail("%s, which the limit of %s allows, were refused: %s by %s", size(got.Taken), size(limit), got.Name, got.Where)
	}
	physical := max(at["small"].physical(), at["large"].physical())
	if physical > limit {
		fail("%s are physically taken, which is over the limit of %s", size(physical), size(limit))
	}
	switch {
	case refused.Result == outOfMemory:
		figures = fmt.Sprintf("%s refused by %s; ", size(refused.Taken), refused.Where)
	case refused.Result != 0:
		fail("%s were refused with %s (%d) by %s, not CUDA_ERROR_OUT_OF_MEMORY", size(refused.Taken), refused.Name,
			refused.Result, refused.Where)
	default:
		figures = fmt.Sprintf("a setting for %s was not refused; ", size(refused.Taken))
	}
	return failures, figures + fmt.Sprintf("with %s: %s", size(got.Taken), at["small"])
}
