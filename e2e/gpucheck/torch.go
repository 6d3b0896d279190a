package main

import (
	"context"
	"encoding/json"
	"errors"
	"fmt"
	"os/exec"
	"path/filepath"
	"strings"
	"time"
)

// torchPatience is how long PyTorch may take for a step; its first import reads gigabytes.
const torchPatience = 100 * time.Second

// lookForTorch finds a Python that has PyTorch with CUDA.
func (c *checker) lookForTorch(ctx context.Context) {
	candidates := []string{"python3", "python"}
	if c.options.python != "" {
		candidates = []string{c.options.python}
	}
	c.machine.torch = "none: no Python on the PATH"
	for _, name := range candidates {
		path, err := exec.LookPath(name)
		if err != nil {
			continue
		}
		out, err := c.output(ctx, torchPatience, c.bareEnv(), path, c.script("torch_find.py"))
		var found struct {
			Version, Why string
			Libraries    []string
		}
		if err == nil {
			err = json.Unmarshal([]byte(lastLine(out)), &found)
		}
		switch {
		case err != nil:
			c.machine.torch = "none: " + err.Error()
		case found.Why != "":
			c.machine.torch = "none: " + found.Why
		default:
			c.python, c.machine.torch, c.machine.cudaLibraries = path, found.Version, found.Libraries
			return
		}
	}
}

func (c *checker) script(name string) string { return filepath.Join(c.bundle, "python", name) }

// checkTorch checks what a PyTorch program meets, with each of PyTorch's allocators.
func (c *checker) checkTorch(ctx context.Context) {
	for _, allocator := range []struct{ title, configuration string }{
		{"PyTorch, its own allocator", ""},
		{"PyTorch, expandable segments (cuMemCreate)", "expandable_segments:True"},
		{"PyTorch, cudaMallocAsync (memory pools)", "backend:cudaMallocAsync"},
	} {
		if err := c.checkAllocator(ctx, allocator.title, allocator.configuration); err != nil {
			c.broken(allocator.title, err)
		}
	}
	c.checkLibraries(ctx)
}

// checkLibraries checks that the libraries work under a limit that PyTorch brings, and what each takes when it is first used.
func (c *checker) checkLibraries(ctx context.Context) {
	const title = "cuBLAS, cuFFT, cuDNN and NCCL, as PyTorch uses them"
	if c.python == "" {
		c.note(title, notPossible, "PyTorch: "+c.machine.torch)
		return
	}
	l, err := c.newClaim(c.machine.limitBytes)
	if err != nil {
		c.broken(title, err)
		return
	}
	m, err := c.newMeter(l)
	if err != nil {
		c.broken(title, err)
		return
	}
	p, err := c.start(l.env, c.python, c.script("torch_libraries.py"))
	if err != nil {
		c.broken(title, err)
		return
	}
	defer p.kill()
	_, err = p.expect(ctx, torchPatience, "begun")
	for _, name := range []string{"cuBLAS", "cuFFT", "cuDNN", "NCCL"} {
		if err == nil {
			err = c.checkLibrary(ctx, p, m, name)
		}
		var missing *impossibleError
		if err != nil {
			c.broken(name+", as PyTorch uses it", err)
		}
		if errors.As(err, &missing) {
			err = nil
		}
	}
}

// checkLibrary has the program use the library that is next. The program has begun, or has used the one before.
func (c *checker) checkLibrary(ctx context.Context, p *child, m *meter, name string) error {
	before, err := m.read(p.pid())
	if err != nil {
		return err
	}
	p.tell("go")
	e, err := p.expect(ctx, torchPatience, name)
	if err != nil {
		return err
	}
	after, err := m.read(p.pid())
	if err != nil {
		return err
	}
	var failures []string
	if e.Message != "" {
		failures = append(failures, shorten(e.Message, 300))
	}
	if limit := m.claim.limitBytes; after.physical() > limit {
		failures = append(failures, fmt.Sprintf("over the limit of %s", size(limit)))
	}
	c.conclude(name+", as PyTorch uses it", failures, fmt.Sprintf("its first use: counted %s, physically %s; then %s",
		signed(delta(after.counted, before.counted)), signed(delta(after.physical(), before.physical())), after))
	return nil
}

func (c *checker) checkAllocator(ctx context.Context, title, configuration string) error {
	if c.python == "" {
		return &impossibleError{"PyTorch: " + c.machine.torch}
	}
	return c.checkProgram(ctx, title, func(l *claim) (*child, error) {
		env := l.env
		if configuration != "" {
			env = setEnv(setEnv(env, "PYTORCH_CUDA_ALLOC_CONF", configuration), "PYTORCH_ALLOC_CONF", configuration)
		}
		return c.start(env, c.python, c.script("torch_check.py"), fmt.Sprint(l.limitBytes))
	})
}

// checkProgram checks a program that meets its limit and goes on, in steps: python/torch_check.py has them.
func (c *checker) checkProgram(ctx context.Context, title string, start func(*claim) (*child, error)) error {
	l, err := c.newClaim(c.machine.limitBytes)
	if err != nil {
		return err
	}
	m, err := c.newMeter(l)
	if err != nil {
		return err
	}
	p, err := start(l)
	if err != nil {
		return err
	}
	defer p.kill()

	events, at := map[string]event{}, map[string]reading{}
	for _, step := range []string{"begun", "full", "computed", "freed", "again", "end"} {
		if events[step], err = p.expect(ctx, torchPatience, step); err != nil {
			return err
		}
		if at[step], err = m.read(p.pid()); err != nil {
			return err
		}
		p.tell("go")
	}
	failures, figures := judgeProgram(l.limitBytes, events, at)
	c.conclude(title, failures, figures)
	return nil
}

func judgeProgram(limit uint64, events map[string]event, at map[string]reading) (failures []string, figures string) {
	fail := func(format string, args ...any) { failures = append(failures, fmt.Sprintf(format, args...)) }
	begun, full := events["begun"], events["full"]
	if begun.Total != limit || begun.Device != limit {
		fail("mem_get_info shows a total of %s and get_device_properties %s, under a limit of %s", size(begun.Total),
			size(begun.Device), size(limit))
	}
	if off := delta(begun.Free, limit-min(at["begun"].counted, limit)); off != 0 {
		fail("mem_get_info shows %s free where %s are counted", size(begun.Free), size(at["begun"].counted))
	}
	for step, r := range at {
		if r.physical() > limit {
			fail("at the step %q %s are physically taken, over the limit of %s", step, size(r.physical()), size(limit))
		}
	}
	if full.Type == "" {
		fail("%s were taken and there was no error", size(full.Taken))
	} else if !strings.Contains(full.Type, "OutOfMemoryError") {
		fail("the error was %s: %s", full.Type, full.Message)
	}
	if unused := delta(limit, at["full"].counted); full.Type != "" && unused > 256*mib {
		fail("%s of the limit could not be used", signed(unused))
	}
	for _, step := range []string{"computed", "again"} {
		if e := events[step]; e.Message != "" {
			fail("after the error, at the step %q: %s", step, e.Message)
		}
	}
	figures = fmt.Sprintf("%s fit; then %s", size(full.Taken), full.Type)
	if first := firstLine(full.Message); first != "" {
		figures += fmt.Sprintf(": %q", shorten(first, 300))
	}
	return failures, figures + fmt.Sprintf("; %s; after freeing: %s", at["full"], at["freed"])
}

// trainOnce runs the training of a small model and returns how long a step took, in microseconds.
func (c *checker) trainOnce(ctx context.Context, env []string) (float64, error) {
	out, err := c.output(ctx, torchPatience, env, c.python, c.script("torch_train.py"))
	if err != nil {
		return 0, err
	}
	var e event
	if err := json.Unmarshal([]byte(lastLine(out)), &e); err != nil {
		return 0, err
	}
	if e.Value <= 0 {
		return 0, errors.New("the training came to no figure")
	}
	return e.Value, nil
}
