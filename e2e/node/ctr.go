package node

import (
	"context"
	"os/exec"
	"path/filepath"
)

// Ctr is containerd's own command line.
type Ctr struct {
	name     string
	program  string
	address  string
	runtimes Runtimes
}

// NewCtr is the ctr that came with the containerd; program is empty for the one on PATH.
func NewCtr(name, program string, c *Containerd, runtimes Runtimes) *Ctr {
	if program == "" {
		program = "ctr"
	}
	return &Ctr{name: name, program: program, address: c.Address, runtimes: runtimes}
}

// Name is what people call it.
func (c *Ctr) Name() string { return c.name }

// Command is a subcommand of ctr.
func (c *Ctr) Command(ctx context.Context, args ...string) *exec.Cmd {
	return exec.CommandContext(ctx, c.program, append([]string{"--address", c.address, "--namespace", "ctr"}, args...)...)
}

// Load puts the image of a `docker save` archive into it.
func (c *Ctr) Load(ctx context.Context, archive string) error {
	return loaded(c.Command(ctx, "images", "import", archive), archive, c.name)
}

// Run is `ctr run` in the host's network, since no bridge is made for tests.
func (c *Ctr) Run(ctx context.Context, o Container) *exec.Cmd {
	args := []string{"run", "--net-host", "--runc-binary", c.runtimes[o.Runtime]}
	if o.Detach {
		args = append(args, "--detach", "--null-io")
	} else {
		args = append(args, "--rm")
	}
	args = append(args, flags("--env", o.Env)...)
	args = append(args, flags("--annotation", o.Annotations)...)
	args = append(args, flags("--device", o.Devices)...)
	args = append(append(args, o.Flags...), o.Image, o.Name)
	return c.Command(ctx, append(args, o.Command...)...)
}

// Signal is `ctr tasks kill`.
func (c *Ctr) Signal(ctx context.Context, container, signal string) *exec.Cmd {
	return c.Command(ctx, "tasks", "kill", "--signal", signal, container)
}

// Exec is `ctr tasks exec`.
func (c *Ctr) Exec(ctx context.Context, container string, command ...string) *exec.Cmd {
	return c.Command(ctx, append([]string{"tasks", "exec", "--exec-id", "exec-1", container}, command...)...)
}

// NewNerdctl is nerdctl with a containerd.
func NewNerdctl(program, dir string, c *Containerd, runtimes Runtimes) *DockerLike {
	return &DockerLike{
		name: "nerdctl",
		command: []string{
			program, "--address", c.Address, "--namespace", "nerdctl", "--data-root", filepath.Join(dir, "nerdctl"),
			"--cgroup-manager", "cgroupfs", "--cni-netconfpath", filepath.Join(dir, "nerdctl-cni"), "--cni-path", "/usr/lib/cni",
		},
		runtime: func(name string) (global, run []string) { return nil, []string{"--runtime", runtimes[name]} },
	}
}

// containerd2Dir is where the build folder has containerd 2, its shim and its ctr.
const containerd2Dir = "tools/containerd"

// StartContainerd2 starts the containerd 2 of the build folder, with the shim that goes with it.
func StartContainerd2(ctx context.Context, dir, buildDir string, options ContainerdOptions) (*Containerd, error) {
	programs := filepath.Join(buildDir, containerd2Dir)
	options.Binary = filepath.Join(programs, "containerd")
	options.Env = append(options.Env, "PATH="+programs+":/usr/sbin:/usr/bin:/sbin:/bin")
	return StartContainerd(ctx, dir, options)
}

// NewCtr2 is the ctr of the build folder's containerd 2.
func NewCtr2(c *Containerd, buildDir string, runtimes Runtimes) *Ctr {
	return NewCtr("containerd 2", filepath.Join(buildDir, containerd2Dir, "ctr"), c, runtimes)
}
