package node

import (
	"context"
	"fmt"
	"os"
	"os/exec"
)

// Container is a container that an engine is asked to run.
type Container struct {
	Name  string
	Image string
	// Runtime is one of the node's runtimes.
	Runtime string
	// Env and Annotations are NAME=VALUE pairs, Devices are names of CDI devices.
	Env, Annotations, Devices []string
	// Flags are further flags of the engine's own `run`.
	Flags []string
	// Detach leaves it running when the command line returns, and there when it has ended. Others are removed then.
	Detach  bool
	Command []string
}

// Engine is a command line by which people run containers.
type Engine interface {
	// Name is what people call it.
	Name() string
	// Load puts the image of a `docker save` archive into it.
	Load(ctx context.Context, archive string) error
	// Run is the command that runs a container; it ends with the container, and with its exit code.
	Run(ctx context.Context, c Container) *exec.Cmd
	// Signal is the command that sends a signal to a container's first process.
	Signal(ctx context.Context, container, signal string) *exec.Cmd
}

// DockerLike is an engine whose command line is Docker's, or like it.
type DockerLike struct {
	name string
	// command is the program and its flags that lead to this node's engine.
	command []string
	env     []string
	// runtime are the flags that choose an OCI runtime: those before the subcommand, and those of `run`.
	runtime func(name string) (global, run []string)
}

// Name is what people call it.
func (d *DockerLike) Name() string { return d.name }

// Command is a subcommand of the engine.
func (d *DockerLike) Command(ctx context.Context, args ...string) *exec.Cmd {
	cmd := exec.CommandContext(ctx, d.command[0], append(d.command[1:len(d.command):len(d.command)], args...)...)
	cmd.Env = append(os.Environ(), d.env...)
	return cmd
}

// Load puts the image of a `docker save` archive into it.
func (d *DockerLike) Load(ctx context.Context, archive string) error {
	return loaded(d.Command(ctx, "load", "--quiet", "--input", archive), archive, d.name)
}

func loaded(cmd *exec.Cmd, archive, engine string) error {
	if out, err := cmd.CombinedOutput(); err != nil {
		return fmt.Errorf("load %s into %s: %w: %s", archive, engine, err, out)
	}
	return nil
}

// Run is `run` in the host's network, since no bridge is made for tests.
func (d *DockerLike) Run(ctx context.Context, c Container) *exec.Cmd {
	global, run := d.runtime(c.Runtime)
	args := append(append([]string{}, global...), "run", "--name", c.Name, "--network", "host")
	if c.Detach {
		args = append(args, "--detach")
	} else {
		args = append(args, "--rm")
	}
	args = append(args, run...)
	args = append(args, flags("--env", c.Env)...)
	args = append(args, flags("--annotation", c.Annotations)...)
	args = append(args, flags("--device", c.Devices)...)
	args = append(append(args, c.Flags...), c.Image)
	return d.Command(ctx, append(args, c.Command...)...)
}

// Signal is `kill`.
func (d *DockerLike) Signal(ctx context.Context, container, signal string) *exec.Cmd {
	return d.Command(ctx, "kill", "--signal", signal, container)
}

// Exec is `exec`.
func (d *DockerLike) Exec(ctx context.Context, container string, command ...string) *exec.Cmd {
	return d.Command(ctx, append([]string{"exec", container}, command...)...)
}

func flags(name string, values []string) []string {
	var args []string
	for _, value := range values {
		args = append(args, name, value)
	}
	return args
}
