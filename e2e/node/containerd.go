package node

import (
	"context"
	"errors"
	"fmt"
	"net"
	"os"
	"os/exec"
	"path/filepath"
	"strings"
	"sync"
	"syscall"
	"time"

	containerd "github.com/containerd/containerd/v2/client"
	"github.com/containerd/containerd/v2/pkg/namespaces"
	"github.com/containerd/errdefs"
	"golang.org/x/sys/unix"
)

// startTimeout is how long containerd may take until it says that it is ready.
const startTimeout = 2 * time.Minute

// ContainerdOptions change how a private containerd runs. The zero value is a plain one.
type ContainerdOptions struct {
	// Binary is the containerd to run; empty means the one on PATH.
	Binary string
	// ExtraConfig is appended to the configuration file (TOML, version 2).
	ExtraConfig string
	// CRI has it offer the API that a kubelet speaks.
	CRI bool
	// Env is added to containerd's environment, and so to that of the shims and runtimes it starts.
	Env []string
}

// Containerd is a private containerd.
type Containerd struct {
	// Address is the path of its socket.
	Address string
	// Dir holds everything that it writes, its log (containerd.log) included.
	Dir string

	options ContainerdOptions
	mu      sync.Mutex
	cmd     *exec.Cmd
	exited  chan struct{}
}

// StartContainerd starts a containerd whose state lies in dir, which is made if it is missing, and waits until it
// answers. dir must be short: the path of a Unix socket holds no more than 107 bytes.
func StartContainerd(ctx context.Context, dir string, options ContainerdOptions) (*Containerd, error) {
	if options.Binary == "" {
		options.Binary = "containerd"
	}
	dir, err := filepath.Abs(dir)
	if err != nil {
		return nil, err
	}
	c := &Containerd{Address: filepath.Join(dir, "containerd.sock"), Dir: dir, options: options}
	if len(c.Address)+len(".ttrpc") > 107 {
		return nil, fmt.Errorf("the directory %s is too long a path for containerd's socket; use a shorter one", dir)
	}
	if err := os.MkdirAll(dir, 0o711); err != nil {
		return nil, err
	}
	if err := os.WriteFile(filepath.Join(dir, "config.toml"), []byte(c.config()), 0o600); err != nil {
		return nil, err
	}
	return c, c.start(ctx)
}

// config keeps every path that containerd writes to under its own directory.
func (c *Containerd) config() string {
	disabled := `"io.containerd.tracing.processor.v1.otlp"`
	if !c.options.CRI {
		disabled += `, "io.containerd.grpc.v1.cri"`
	}
	return fmt.Sprintf(`version = 2
root = %[1]q
state = %[2]q
disabled_plugins = [%[7]s]
[grpc]
address = %[3]q
[ttrpc]
address = %[4]q
[plugins."io.containerd.internal.v1.opt"]
path = %[5]q
%[6]s
`, filepath.Join(c.Dir, "root"), filepath.Join(c.Dir, "state"), c.Address, c.Address+".ttrpc",
		filepath.Join(c.Dir, "opt"), c.options.ExtraConfig, disabled)
}

// start runs the binary and waits for the message that it sends once it serves.
func (c *Containerd) start(ctx context.Context) error {
	ctx, cancel := context.WithTimeout(ctx, startTimeout)
	defer cancel()

	log, err := os.OpenFile(filepath.Join(c.Dir, "containerd.log"), os.O_CREATE|os.O_WRONLY|os.O_APPEND, 0o600)
	if err != nil {
		return err
	}
	defer log.Close()
	notify, err := listenNotify(filepath.Join(c.Dir, "notify.sock"))
	if err != nil {
		return err
	}
	defer notify.Close()

	cmd := exec.Command(c.options.Binary, "--config", filepath.Join(c.Dir, "config.toml"))
	cmd.Stdout, cmd.Stderr = log, log
	cmd.Env = append(os.Environ(), c.options.Env...)
	cmd.Env = append(cmd.Env, "NOTIFY_SOCKET="+filepath.Join(c.Dir, "notify.sock"))
	// A group of its own, so that an interrupt at the terminal ends it through Stop and not beneath it.
	cmd.SysProcAttr = &syscall.SysProcAttr{Setpgid: true}
	if err := cmd.Start(); err != nil {
		return fmt.Errorf("start %s: %w", c.options.Binary, err)
	}
	exited := make(chan struct{})
	go func() {
		defer close(exited)
		_ = cmd.Wait()
	}()
	c.mu.Lock()
	c.cmd, c.exited = cmd, exited
	c.mu.Unlock()

	if err := awaitReady(ctx, notify, exited); err != nil {
		_ = c.Kill()
		return fmt.Errorf("start %s: %w; see %s", c.options.Binary, err, log.Name())
	}
	return nil
}

// listenNotify opens the datagram socket to which a daemon writes READY=1 (sd_notify).
func listenNotify(path string) (*net.UnixConn, error) {
	_ = os.Remove(path)
	conn, err := net.ListenUnixgram("unixgram", &net.UnixAddr{Name: path, Net: "unixgram"})
	if err != nil {
		return nil, fmt.Errorf("listen for the ready message: %w", err)
	}
	return conn, nil
}

func awaitReady(ctx context.Context, notify *net.UnixConn, exited <-chan struct{}) error {
	ready := make(chan error, 1)
	go func() {
		buffer := make([]byte, 4096)
		for {
			n, err := notify.Read(buffer)
			if err != nil {
				ready <- err
				return
			}
			if strings.Contains(string(buffer[:n]), "READY=1") {
				ready <- nil
				return
			}
		}
	}()
	select {
	case err := <-ready:
		return err
	case <-exited:
		return errors.New("it exited at once")
	case <-ctx.Done():
		return fmt.Errorf("it did not become ready: %w", ctx.Err())
	}
}

// PID is containerd's process ID; 0 while it does not run, whoever ended it.
func (c *Containerd) PID() int {
	c.mu.Lock()
	defer c.mu.Unlock()
	if c.cmd == nil {
		return 0
	}
	select {
	case <-c.exited:
		return 0
	default:
		return c.cmd.Process.Pid
	}
}

// Kill ends containerd with SIGKILL and waits until it is gone. Shims and containers stay.
func (c *Containerd) Kill() error { return c.end(unix.SIGKILL) }

// Restart ends containerd, if it runs, and starts it again on the same state.
func (c *Containerd) Restart(ctx context.Context) error {
	if err := c.end(unix.SIGTERM); err != nil {
		return err
	}
	return c.start(ctx)
}

func (c *Containerd) end(signal syscall.Signal) error {
	c.mu.Lock()
	cmd, exited := c.cmd, c.exited
	c.cmd, c.exited = nil, nil
	c.mu.Unlock()
	if cmd == nil {
		return nil
	}
	if err := cmd.Process.Signal(signal); err != nil && !errors.Is(err, os.ErrProcessDone) {
		return fmt.Errorf("signal containerd (process %d): %w", cmd.Process.Pid, err)
	}
	select {
	case <-exited:
	case <-time.After(10 * time.Second):
		_ = cmd.Process.Kill()
		<-exited
	}
	return nil
}

// Client connects to it. The caller closes the client.
func (c *Containerd) Client() (*containerd.Client, error) {
	return containerd.New(c.Address, containerd.WithTimeout(time.Second))
}

// Stop removes every container, ends containerd and whatever shims are left, and unmounts what they mounted. The
// directory stays; nothing uses it any more.
func (c *Containerd) Stop() error {
	ctx, cancel := context.WithTimeout(context.Background(), time.Minute)
	defer cancel()
	var errs []error
	if c.PID() == 0 {
		// Containers can only be taken down properly by a containerd that runs.
		errs = append(errs, c.start(ctx))
	}
	errs = append(errs, c.removeContainers(ctx), c.end(unix.SIGTERM), c.killShims(), unmountUnder(c.Dir))
	return errors.Join(errs...)
}

func (c *Containerd) removeContainers(ctx context.Context) error {
	client, err := c.Client()
	if err != nil {
		return err
	}
	defer client.Close()
	names, err := client.NamespaceService().List(ctx)
	if err != nil {
		return fmt.Errorf("list containerd's namespaces: %w", err)
	}
	var errs []error
	for _, name := range names {
		ctx := namespaces.WithNamespace(ctx, name)
		containers, err := client.Containers(ctx)
		errs = append(errs, err)
		for _, container := range containers {
			errs = append(errs, removeContainer(ctx, container))
		}
	}
	return errors.Join(errs...)
}

func removeContainer(ctx context.Context, container containerd.Container) error {
	task, err := container.Task(ctx, nil)
	if err == nil {
		_, err = task.Delete(ctx, containerd.WithProcessKill)
	}
	if err != nil && !errdefs.IsNotFound(err) {
		return fmt.Errorf("end container %s: %w", container.ID(), err)
	}
	err = container.Delete(ctx, containerd.WithSnapshotCleanup)
	if err != nil && !errdefs.IsNotFound(err) {
		return fmt.Errorf("remove container %s: %w", container.ID(), err)
	}
	return nil
}

// Shims returns the process IDs of the shims that this containerd started.
func (c *Containerd) Shims() ([]int, error) {
	entries, err := filepath.Glob("/proc/[0-9]*/cmdline")
	if err != nil {
		return nil, err
	}
	var pids []int
	for _, entry := range entries {
		data, err := os.ReadFile(entry)
		if err != nil {
			continue // It ended meanwhile.
		}
		args := strings.Split(string(data), "\x00")
		if !strings.HasPrefix(filepath.Base(args[0]), "containerd-shim") {
			continue
		}
		for i, arg := range args[:len(args)-1] {
			if arg == "-address" && args[i+1] == c.Address {
				var pid int
				if _, err := fmt.Sscanf(entry, "/proc/%d/cmdline", &pid); err == nil {
					pids = append(pids, pid)
				}
			}
		}
	}
	return pids, nil
}

func (c *Containerd) killShims() error {
	pids, err := c.Shims()
	if err != nil {
		return err
	}
	for _, pid := range pids {
		if err := unix.Kill(pid, unix.SIGKILL); err != nil && !errors.Is(err, unix.ESRCH) {
			return fmt.Errorf("kill shim %d: %w", pid, err)
		}
	}
	return nil
}

// unmountUnder unmounts everything that is mounted at or below dir, the innermost first.
func unmountUnder(dir string) error {
	data, err := os.ReadFile("/proc/self/mountinfo")
	if err != nil {
		return err
	}
	lines := strings.Split(string(data), "\n")
	var errs []error
	for i := len(lines) - 1; i >= 0; i-- {
		fields := strings.Fields(lines[i])
		if len(fields) < 5 || (fields[4] != dir && !strings.HasPrefix(fields[4], dir+"/")) {
			continue
		}
		if err := unix.Unmount(fields[4], unix.MNT_DETACH); err != nil && !errors.Is(err, unix.ENOENT) {
			errs = append(errs, fmt.Errorf("unmount %s: %w", fields[4], err))
		}
	}
	return errors.Join(errs...)
}
