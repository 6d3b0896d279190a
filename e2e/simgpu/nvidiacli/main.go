// Command nvidiacli is a SIMULATED nvidia-container-cli: it does to a container what the `configure` of NVIDIA's own
// does, with the driver of the simulated GPU. NVIDIA's container-runtime-hook calls it, from a prestart hook, when the
// container's mounts are made and its root is not yet changed. It follows paths in the container as they are, so it is
// for the images of tests only.
package main

import (
	"errors"
	"fmt"
	"os"
	"path/filepath"
	"runtime"
	"strings"

	"golang.org/x/sys/unix"
)

const libraries = "usr/lib/x86_64-linux-gnu"

// request is what the command line asks for.
type request struct {
	root         string
	pid          string
	rootfs       string
	devices      []string
	capabilities map[string]bool
}

func main() {
	fmt.Fprintln(os.Stderr, "nvidia-container-cli: SIMULATED")
	if err := configure(parse(os.Args[1:])); err != nil {
		fmt.Fprintln(os.Stderr, "nvidia-container-cli (simulated):", err)
		os.Exit(1)
	}
}

func parse(args []string) request {
	r := request{root: "/", capabilities: map[string]bool{}}
	for _, arg := range args {
		name, value, _ := strings.Cut(arg, "=")
		switch name {
		case "--root":
			r.root = value
		case "--pid":
			r.pid = value
		case "--device":
			r.devices = strings.Split(value, ",")
		case "--compute", "--utility", "--video", "--graphics", "--display", "--ngx":
			r.capabilities[strings.TrimPrefix(name, "--")] = true
		}
	}
	if len(args) > 0 {
		r.rootfs = args[len(args)-1]
	}
	return r
}

func configure(r request) error {
	if r.pid == "" || !filepath.IsAbs(r.rootfs) {
		return errors.New("only configure --pid=PID … ROOTFS is simulated")
	}
	nodes, err := r.nodes()
	if err != nil {
		return err
	}
	if err := allow(r.pid, filepath.Join(r.root, "dev/nvidiactl")); err != nil {
		return err
	}
	if err := enter(r.pid); err != nil {
		return fmt.Errorf("enter the mount namespace of %s: %w", r.pid, err)
	}
	for _, node := range nodes {
		if err := r.makeNode(node); err != nil {
			return err
		}
	}
	return r.mountDriver()
}

// nodes are the names of the device nodes, as the kernel module's part of /proc in the driver root has the GPUs.
func (r request) nodes() ([]string, error) {
	nodes := []string{"nvidiactl"}
	if r.capabilities["compute"] {
		nodes = append(nodes, "nvidia-uvm")
	}
	files, err := filepath.Glob(filepath.Join(r.root, "proc/driver/nvidia/gpus/*/information"))
	if err != nil {
		return nil, err
	}
	for _, file := range files {
		content, err := os.ReadFile(file)
		if err != nil {
			return nil, err
		}
		minor := value(string(content), "Device Minor")
		for _, device := range r.devices {
			if device == "all" || device == minor || device == value(string(content), "GPU UUID") {
				nodes = append(nodes, "nvidia"+minor)
				break
			}
		}
	}
	return nodes, nil
}

func value(content, key string) string {
	for line := range strings.Lines(content) {
		if text, ok := strings.CutPrefix(line, key+":"); ok {
			return strings.TrimSpace(text)
		}
	}
	return ""
}

// allow lets the container at the devices, which all have one number here. Where there is no such cgroup, nothing
// holds them back.
func allow(pid, node string) error {
	var stat unix.Stat_t
	if err := unix.Stat(node, &stat); err != nil {
		return fmt.Errorf("look at %s: %w", node, err)
	}
	groups, err := os.ReadFile(filepath.Join("/proc", pid, "cgroup"))
	if err != nil {
		return err
	}
	for line := range strings.Lines(string(groups)) {
		_, group, ok := strings.Cut(strings.TrimSpace(line), ":devices:")
		if !ok {
			continue
		}
		rule := fmt.Sprintf("c %d:%d rw", unix.Major(stat.Rdev), unix.Minor(stat.Rdev))
		return os.WriteFile(filepath.Join("/sys/fs/cgroup/devices", group, "devices.allow"), []byte(rule), 0)
	}
	return nil
}

// enter takes this thread, on which all that follows happens, into the container's mount namespace.
func enter(pid string) error {
	runtime.LockOSThread()
	namespace, err := os.Open(filepath.Join("/proc", pid, "ns/mnt"))
	if err != nil {
		return err
	}
	defer namespace.Close()
	if err := unix.Unshare(unix.CLONE_FS); err != nil {
		return err
	}
	return unix.Setns(int(namespace.Fd()), unix.CLONE_NEWNS)
}

func (r request) makeNode(name string) error {
	var stat unix.Stat_t
	if err := unix.Stat(filepath.Join(r.root, "dev", name), &stat); err != nil {
		return fmt.Errorf("look at the device node %s: %w", name, err)
	}
	path := filepath.Join(r.rootfs, "dev", name)
	if err := unix.Mknod(path, unix.S_IFCHR|0o666, int(stat.Rdev)); err != nil && !errors.Is(err, unix.EEXIST) {
		return fmt.Errorf("make the device node %s: %w", path, err)
	}
	return os.Chmod(path, 0o666)
}

// mountDriver mounts the driver's files over whatever is there, and makes the links that ldconfig would make.
func (r request) mountDriver() error {
	var names []string
	if r.capabilities["compute"] {
		names = append(names, "libcuda")
	}
	if r.capabilities["utility"] {
		names = append(names, "libnvidia-ml")
	}
	for _, name := range names {
		files, err := filepath.Glob(filepath.Join(r.root, libraries, name+".so.*.*"))
		if err != nil || len(files) != 1 {
			return fmt.Errorf("find %s in the driver root: %v %w", name, files, err)
		}
		if err := r.mount(files[0], filepath.Join(libraries, filepath.Base(files[0])), unix.MS_RDONLY); err != nil {
			return err
		}
		link := filepath.Join(r.rootfs, libraries, name+".so.1")
		if err := os.Symlink(filepath.Base(files[0]), link); err != nil && !errors.Is(err, os.ErrExist) {
			return err
		}
	}
	// The simulated GPUs' memory is a file.
	return r.mount(filepath.Join(r.root, "run/simgpu"), "run/simgpu", 0)
}

func (r request) mount(source, at string, flags uintptr) error {
	target := filepath.Join(r.rootfs, at)
	info, err := os.Stat(source)
	if err != nil {
		return err
	}
	if info.IsDir() {
		err = os.MkdirAll(target, 0o755)
	} else if err = os.MkdirAll(filepath.Dir(target), 0o755); err == nil {
		var file *os.File
		if file, err = os.OpenFile(target, os.O_CREATE|os.O_RDONLY, 0o755); err == nil {
			err = file.Close()
		}
	}
	if err == nil {
		err = unix.Mount(source, target, "", unix.MS_BIND, "")
	}
	if err == nil {
		err = unix.Mount("", target, "", unix.MS_BIND|unix.MS_REMOUNT|unix.MS_NOSUID|unix.MS_NODEV|flags, "")
	}
	if err != nil {
		return fmt.Errorf("mount %s at %s: %w", source, target, err)
	}
	return nil
}
