// Command demo shows the main job on a node of its own: two jobs on fractions of one GPU, each held to its own, a greedy
// one held to its limit, one that waits until there is room, two that share the GPU's time, and one without a GPU. It exits
// 0 only if all of it held.
//
//	demo -build DIR -nomad FILE [-keep]   show it; with -keep leave the node running afterwards
//	demo -build DIR -stop                 stop a node that was left running
package main

import (
	"context"
	"errors"
	"flag"
	"fmt"
	"os"
	"os/signal"
	"path/filepath"

	"golang.org/x/sys/unix"
)

// options are the command line.
type options struct {
	build, nomad       string
	keep, stop, inside bool
}

// place is where the demo keeps everything: build/demo.
func (o options) place(elements ...string) string {
	return filepath.Join(append([]string{o.build, "demo"}, elements...)...)
}

func main() {
	var o options
	flag.StringVar(&o.build, "build", "build", "the repository's build folder")
	flag.StringVar(&o.nomad, "nomad", "build/tools/nomad", "the Nomad executable")
	flag.BoolVar(&o.keep, "keep", false, "leave the node running and say how to look around")
	flag.BoolVar(&o.stop, "stop", false, "stop a node that was left running")
	flag.BoolVar(&o.inside, "inside", false, "for the demo itself: run in the sandbox that it made")
	flag.Parse()
	if err := o.run(); err != nil {
		fmt.Fprintln(os.Stderr, "demo:", err)
		os.Exit(1)
	}
}

func (o options) run() error {
	ctx, cancel := signal.NotifyContext(context.Background(), unix.SIGINT, unix.SIGTERM)
	defer cancel()
	switch {
	case o.stop:
		return stopKept(o)
	case o.inside:
		return show(ctx, o)
	}
	if kept(o) {
		return errors.New("a demo is still running, left by KEEP=1; stop it with: make demo-stop")
	}
	return startSandbox(o)
}
