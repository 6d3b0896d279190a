package main

import (
	"context"
	"errors"
	"fmt"
	"os/exec"
	"path/filepath"
	"regexp"
	"strings"
	"time"
)

// noCUDA is the exit status of a program of cudart that finds no GPU that it may use.
const noCUDA = 4

// tracedBytes is what the traced program takes of the bare GPU.
const tracedBytes = 256 * mib

// checkCudart checks what programs meet that are linked with CUDA's runtime library (cudart), a program for each version of it
// that the bundle has, and traces what the library calls in the driver.
func (c *checker) checkCudart(ctx context.Context) {
	programs, _ := filepath.Glob(c.program("cudart-*"))
	if len(programs) == 0 {
		c.note("cudart", notPossible, "the bundle has no program of it: make gpu-check-cudart")
	}
	for _, program := range programs {
		title := "cudart " + strings.TrimPrefix(filepath.Base(program), "cudart-")
		err := c.traceCudart(ctx, title+", traced", program)
		if err != nil {
			c.broken(title+", traced", err)
		}
		var unusable *impossibleError
		if !errors.As(err, &unusable) {
			err = c.checkProgram(ctx, title, func(l *claim) (*child, error) {
				return c.start(l.env, program, fmt.Sprint(l.limitBytes))
			})
		}
		if err != nil {
			c.broken(title, err)
		}
	}
}

// traceCudart runs the program on the bare driver and enters which calls of the driver made contexts and took memory.
func (c *checker) traceCudart(ctx context.Context, title, program string) error {
	ctx, cancel := context.WithTimeout(ctx, time.Minute)
	defer cancel()
	cmd := exec.CommandContext(ctx, program, fmt.Sprint(tracedBytes))
	cmd.Env = setEnv(c.bareEnv(), "LD_PRELOAD", filepath.Join(c.bundle, "lib", "trace.so"))
	cmd.Stdin = strings.NewReader(strings.Repeat("go\n", 10))
	var said strings.Builder
	cmd.Stderr = &said
	err := cmd.Run()
	if err != nil && cmd.ProcessState != nil && cmd.ProcessState.ExitCode() == noCUDA {
		return &impossibleError{"the library finds no GPU that it may use: " + lastLine(withoutTrace(said.String()))}
	}
	if err != nil {
		return fmt.Errorf("%s: %w: %s", filepath.Base(program), err, shorten(lastLine(withoutTrace(said.String())), 300))
	}
	made := traceMade.FindAllStringSubmatch(said.String(), -1)
	figures := make([]string, 0, len(made)+1)
	for _, line := range made {
		figures = append(figures, line[1])
	}
	figures = append(figures, fmt.Sprintf("%d functions of the driver were called", strings.Count(said.String(), "trace: call ")))
	c.note(title, passed, strings.ReplaceAll(strings.Join(figures, "; "), "memory ", "MiB "))
	return nil
}

// withoutTrace is what the program itself said: the library calls the driver after that, too.
func withoutTrace(said string) string {
	return traceLine.ReplaceAllString(said, "")
}

var traceLine = regexp.MustCompile(`(?m)^trace: .*\n`)

// traceMade matches what lib/trace.so says of a context or of memory: see cudart/trace.c.
var traceMade = regexp.MustCompile(`(?m)^trace: ((?:context|memory \d+) in .+)$`)
