package node

import (
	"context"
	"encoding/json"
	"errors"
	"fmt"
	"os"
	"os/exec"
	"path/filepath"
	"strings"
)

// PauseImage is the image of the first container of a pod.
const PauseImage = "tranche.local/pause:test"

// criNamespace is the one that containerd keeps a kubelet's images and containers in.
const criNamespace = "k8s.io"

// CRIConfig is what containerd's configuration has for pods with a runtime class each for the runtimes.
func CRIConfig(runtimes Runtimes) string {
	var config strings.Builder
	const plugin = `plugins."io.containerd.grpc.v1.cri"`
	// Where the tests run in a container themselves, nobody may go below that one's oom_score_adj.
	fmt.Fprintf(&config, "[%s]\nsandbox_image = %q\nrestrict_oom_score_adj = true\n", plugin, PauseImage)
	for name, program := range runtimes {
		fmt.Fprintf(&config, "[%[1]s.containerd.runtimes.%[2]s]\nruntime_type = \"io.containerd.runc.v2\"\n"+
			"container_annotations = [\"dev.tranche/*\"]\n"+
			"[%[1]s.containerd.runtimes.%[2]s.options]\nBinaryName = %[3]q\n", plugin, name, program)
	}
	return config.String()
}

// CRI runs containers as a kubelet does, each in a pod of a runtime class.
type CRI struct {
	name       string
	containerd *Containerd
	program    string
}

// NewCRI is the CRI of a containerd that was started with it.
func NewCRI(name string, c *Containerd, buildDir string) *CRI {
	return &CRI{name: name, containerd: c, program: filepath.Join(buildDir, containerd2Dir, "criclient")}
}

// Name is what people call it.
func (c *CRI) Name() string { return c.name }

// Load puts the images of a `docker save` archive into it.
func (c *CRI) Load(ctx context.Context, archive string) error {
	return c.containerd.Import(ctx, criNamespace, archive)
}

// Run is the command that runs a container in a pod of its own.
func (c *CRI) Run(ctx context.Context, o Container) *exec.Cmd {
	annotations := map[string]string{}
	for _, entry := range o.Annotations {
		name, value, _ := strings.Cut(entry, "=")
		annotations[name] = value
	}
	dir := filepath.Join(c.containerd.Dir, "pods", o.Name)
	spec := filepath.Join(dir, "spec.json")
	text, err := json.Marshal(map[string]any{
		"name": o.Name, "handler": o.Runtime, "image": o.Image, "command": o.Command, "env": o.Env,
		"annotations": annotations, "devices": o.Devices,
	})
	cmd := exec.CommandContext(ctx, c.program, "run", c.containerd.Address, dir, spec)
	cmd.Err = errors.Join(cmd.Err, err, os.MkdirAll(dir, 0o755), os.WriteFile(spec, text, 0o600))
	return cmd
}

// Signal has the container stop, which is all that a kubelet does.
func (c *CRI) Signal(ctx context.Context, container, _ string) *exec.Cmd {
	return exec.CommandContext(ctx, c.program, "stop", c.containerd.Address, container)
}
