package main

import (
	"context"
	"fmt"
	"os"
	"path/filepath"
	"strings"
)

// llamaRest is what llama.cpp takes at most beside a context and the model's weights.
const llamaRest = 768 * mib

// llamaRun is what came of a model that llama.cpp loaded, ran and freed.
type llamaRun struct {
	events map[string]event
	at     map[string]reading
}

// checkLlama checks llama.cpp with a model of random weights: without a limit, under one, and under one that is too low for it.
func (c *checker) checkLlama(ctx context.Context) {
	const title, low = "llama.cpp, a model under a limit", "llama.cpp, a limit below the model's weights"
	if _, err := os.Stat(c.llama("llama")); err != nil {
		c.note("llama.cpp", notPossible, "the bundle has none: make gpu-check-llama")
		return
	}
	if c.machine.major < 8 {
		c.note("llama.cpp", notPossible, "the bundle's has code for compute capability 8.0 and newer")
		return
	}
	if need := c.machine.contextBytes + llamaRest + modelBytes(); c.machine.limitBytes < need {
		c.note("llama.cpp", notPossible, fmt.Sprintf("it needs %s, and the checks may use %s", size(need), size(c.machine.limitBytes)))
		return
	}
	model := filepath.Join(c.work, "model.gguf")
	if err := writeModel(model); err != nil {
		c.broken("llama.cpp", err)
		return
	}
	bare, err := c.runLlama(ctx, nil, model)
	if err != nil {
		c.broken("llama.cpp", err)
		return
	}
	l, err := c.newClaim(c.machine.limitBytes)
	if err == nil {
		var run *llamaRun
		if run, err = c.runLlama(ctx, l, model); err == nil {
			failures, figures := judgeLlama(l.limitBytes, bare, run)
			c.conclude(title, failures, figures)
		}
	}
	if err != nil {
		c.broken(title, err)
	}
	c.attempt(low, func() (string, error) { return c.checkLlamaRefused(ctx, model) })
}

func (c *checker) llama(name string) string { return filepath.Join(c.bundle, "llama", name) }

func modelBytes() (sum uint64) {
	for _, t := range modelTensors() {
		sum += t.bytes()
	}
	return sum
}

// runLlama runs the model, under a limit unless there is no claim. It ends at the first step that has a message.
func (c *checker) runLlama(ctx context.Context, l *claim, model string) (*llamaRun, error) {
	env := c.bareEnv()
	if l != nil {
		env = l.env
	}
	// CUDA's libraries come after what the loader finds otherwise.
	directories := append([]string{getEnv(env, "LD_LIBRARY_PATH")}, c.machine.cudaLibraries...)
	env = setEnv(env, "LD_LIBRARY_PATH", strings.Trim(strings.Join(directories, ":"), ":"))
	m, err := c.newMeter(l)
	if err != nil {
		return nil, err
	}
	p, err := c.start(env, c.llama("llama"), filepath.Dir(c.llama("llama")), model, "gpu")
	if err != nil {
		return nil, err
	}
	defer p.kill()
	run := &llamaRun{map[string]event{}, map[string]reading{}}
	for _, step := range []string{"begun", "loaded", "generated", "freed"} {
		e, err := p.expect(ctx, torchPatience, step)
		if err != nil {
			return nil, err
		}
		if run.at[step], err = m.read(p.pid()); err != nil {
			return nil, err
		}
		if run.events[step] = e; e.Message != "" {
			break
		}
		p.tell("go")
	}
	return run, nil
}

func judgeLlama(limit uint64, bare, run *llamaRun) (failures []string, figures string) {
	fail := func(format string, args ...any) { failures = append(failures, fmt.Sprintf(format, args...)) }
	for _, step := range []string{"loaded", "generated"} {
		if e := run.events[step]; e.Message != "" {
			fail("%s under the limit; without it: %q", e.Message, bare.events[step].Message)
		}
	}
	if total := run.events["begun"].Total; total != limit {
		fail("llama.cpp sees a total of %s under a limit of %s", size(total), size(limit))
	}
	for step, r := range run.at {
		if r.physical() > limit {
			fail("at the step %q %s are physically taken, over the limit of %s", step, size(r.physical()), size(limit))
		}
	}
	if got, want := run.events["generated"].Title, bare.events["generated"].Title; got != want {
		fail("it generated other tokens than without a limit: %q, not %q", shorten(got, 40), shorten(want, 40))
	}
	return failures, fmt.Sprintf("a model of %s; loaded: %s; generating: %s, %.0f tokens a second (without a limit: physically %s, "+
		"%.0f); after freeing: %s", size(modelBytes()), run.at["loaded"], run.at["generated"], run.events["generated"].Value,
		size(bare.at["generated"].physical()), bare.events["generated"].Value, run.at["freed"])
}

// checkLlamaRefused has llama.cpp load the model under a limit that is too low. It has to say so, and not to crash.
func (c *checker) checkLlamaRefused(ctx context.Context, model string) (string, error) {
	limit := c.machine.contextBytes + modelBytes()/2/granularity*granularity
	l, err := c.newClaim(limit)
	if err != nil {
		return "", err
	}
	run, err := c.runLlama(ctx, l, model)
	if err != nil {
		return "", err
	}
	loaded, r := run.events["loaded"], run.at["loaded"]
	figures := fmt.Sprintf("limit %s; %q; %s", size(limit), loaded.Message, r)
	if loaded.Message == "" || r.physical() > limit {
		return "", fmt.Errorf("it was not refused under a %s", figures)
	}
	return figures, nil
}
