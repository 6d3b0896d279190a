package main

import (
	"context"
	"errors"
	"fmt"
	"os"
	"path/filepath"
	"runtime"

	"github.com/containerd/containerd/v2/pkg/namespaces"
	v1 "github.com/google/go-containerregistry/pkg/v1"
	"github.com/google/go-containerregistry/pkg/v1/empty"
	"github.com/google/go-containerregistry/pkg/v1/mutate"
	"github.com/hashicorp/go-hclog"
	"golang.org/x/sys/unix"

	"github.com/tranche-gpu/tranche/e2e/images"
	"github.com/tranche-gpu/tranche/e2e/node"
)

const (
	trancheNamespace = "nomad"
	snapshotter      = "overlayfs"
	dockerRuntime    = "runc"
	// The image's name in full and as a jobspec has it.
	taskImageFull = "docker.io/library/stopwatch:bench"
	taskImage     = "stopwatch:bench"
)

// taskNode is what tasks are measured on: one containerd, and dockerd on it where Docker is installed, as on a Debian
// machine with both; the drivers; and the image, unpacked in both.
type taskNode struct {
	// dir holds everything that they write.
	dir        string
	removeDir  func() error
	containerd *node.Containerd
	docker     *node.Docker // nil where Docker is not installed
	drivers    []*taskDriver
	// made is how many tasks have been made.
	made int
}

// startTaskNode starts all of it, in the sandbox.
func (b *bench) startTaskNode(ctx context.Context, runtimes []string) (_ *taskNode, err error) {
	if os.Getenv("TRANCHE_SANDBOX") != "1" {
		return nil, errors.New("tasks are measured in a sandbox only: run build/e2e/sandbox --dir DIR -- build/e2e/bench …")
	}
	if err := node.HideUnifiedCgroup(); err != nil {
		return nil, err
	}
	n := &taskNode{}
	defer func() {
		if err != nil {
			err = errors.Join(err, n.stop())
		}
	}()
	if n.dir, n.removeDir, err = b.shortDir("tasks"); err != nil {
		return nil, err
	}
	if n.containerd, err = node.StartContainerd(ctx, filepath.Join(n.dir, "c"), node.ContainerdOptions{}); err != nil {
		return nil, err
	}
	log, err := os.Create(filepath.Join(n.dir, "plugins.log"))
	if err != nil {
		return nil, err
	}
	logger := hclog.New(&hclog.LoggerOptions{Level: hclog.Warn, Output: log})
	archive, err := b.saveImage(n.dir)
	if err != nil {
		return nil, err
	}
	if err := n.addTranche(ctx, b.build, archive, runtimes, logger); err != nil {
		return nil, err
	}
	if err := findDocker(b.build); err != nil {
		fmt.Printf("==> %v: there is nothing to compare the starts of tasks with\n", err)
		return n, nil
	}
	return n, n.addDocker(ctx, b.build, archive, logger)
}

// shortDir makes a directory in the build folder, for the disk is part of what is measured, and gives it a short name,
// since the path of a Unix socket holds no more than 107 bytes.
func (b *bench) shortDir(name string) (short string, remove func() error, err error) {
	long := filepath.Join(b.dir, name)
	if err := os.MkdirAll(long, 0o755); err != nil {
		return "", nil, err
	}
	if short, err = os.MkdirTemp("", "bench"); err != nil {
		return "", nil, err
	}
	if err := unix.Mount(long, short, "", unix.MS_BIND, ""); err != nil {
		return "", nil, fmt.Errorf("mount %s at %s: %w", long, short, err)
	}
	return short, func() error { return unix.Unmount(short, unix.MNT_DETACH) }, nil
}

// saveImage writes an archive of an image that holds the program and nothing else.
func (b *bench) saveImage(dir string) (archive string, err error) {
	image, err := mutate.ConfigFile(empty.Image, &v1.ConfigFile{
		Architecture: runtime.GOARCH, OS: "linux",
		RootFS: v1.RootFS{Type: "layers"},
		Config: v1.Config{Cmd: []string{"/stopwatch", "/alloc"}},
	})
	if err == nil {
		image, err = images.WithFiles(image, images.File{Path: "/stopwatch", From: filepath.Join(b.build, "e2e/stopwatch")})
	}
	if err != nil {
		return "", fmt.Errorf("build the tasks' image: %w", err)
	}
	archive = filepath.Join(dir, "image.tar")
	return archive, images.SaveDockerArchive(image, taskImageFull, archive)
}

// addTranche starts our driver, once for each OCI runtime.
func (n *taskNode) addTranche(ctx context.Context, build, archive string, runtimes []string, logger hclog.Logger) error {
	if err := n.containerd.Import(ctx, trancheNamespace, archive); err != nil {
		return err
	}
	if err := n.unpack(namespaces.WithNamespace(ctx, trancheNamespace)); err != nil {
		return fmt.Errorf("unpack image %s: %w", taskImageFull, err)
	}
	for _, runtime := range runtimes {
		d, err := startDriver(trancheVariant(runtime), filepath.Join(build, "bin/nomad-driver-tranche"),
			trancheConfig(n.containerd.Address, n.dir, runtime),
			map[string]any{"image": taskImage, "network_mode": "host"}, logger)
		if err != nil {
			return err
		}
		n.drivers = append(n.drivers, d)
	}
	return nil
}

// trancheVariant is the name in the results of our driver with an OCI runtime. The one without a runtime in its name is
// with what docker's has, too.
func trancheVariant(runtime string) string {
	if runtime == dockerRuntime {
		return "tranche"
	}
	return "tranche-" + runtime
}

func (n *taskNode) unpack(ctx context.Context) error {
	client, err := n.containerd.Client()
	if err != nil {
		return err
	}
	defer client.Close()
	image, err := client.GetImage(ctx, taskImageFull)
	if err != nil {
		return err
	}
	return image.Unpack(ctx, snapshotter)
}

// dockerPlugin is Nomad's docker driver, which `make bench` builds where Docker is.
func dockerPlugin(build string) string { return filepath.Join(build, "tools/docker-plugin") }

// findDocker says whether there is a Docker, and Nomad's driver for it, to compare with.
func findDocker(build string) error {
	if err := node.FindDocker(); err != nil {
		return err
	}
	if _, err := os.Stat(dockerPlugin(build)); err != nil {
		return fmt.Errorf("find the plugin of Nomad's docker driver, which make bench builds: %w", err)
	}
	return nil
}

func (n *taskNode) addDocker(ctx context.Context, build, archive string, logger hclog.Logger) (err error) {
	if n.docker, err = node.StartDocker(ctx, filepath.Join(n.dir, "d"), n.containerd.Address); err != nil {
		return err
	}
	if err := n.docker.Load(ctx, archive); err != nil {
		return err
	}
	d, err := startDriver("docker", dockerPlugin(build), dockerConfig(n.docker.Host),
		map[string]any{"image": taskImage, "network_mode": "host"}, logger)
	if err == nil {
		n.drivers = append(n.drivers, d)
	}
	return err
}

// stop ends whatever has been started.
func (n *taskNode) stop() error {
	var errs []error
	for _, d := range n.drivers {
		d.process.Kill()
	}
	if n.docker != nil {
		errs = append(errs, n.docker.Stop())
	}
	if n.containerd != nil {
		errs = append(errs, n.containerd.Stop())
	}
	if n.removeDir != nil {
		errs = append(errs, n.removeDir())
	}
	return errors.Join(errs...)
}
