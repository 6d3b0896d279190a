package node

import (
	"context"
	"errors"
	"fmt"
	"os"
	"os/exec"
	"path/filepath"
	"syscall"
	"time"

	"golang.org/x/sys/unix"
)

// dockerConfigDir is where dockerd reads its configuration, and writes a key that no option puts elsewhere.
const dockerConfigDir = "/etc/docker"

// Docker is a private dockerd. It runs in the sandbox only.
type Docker struct {
	// Host is its address, as DOCKER_HOST has it.
	Host string
	// Dir holds everything that it writes, its log (dockerd.log) included.
	Dir string

	cmd    *exec.Cmd
	exited chan struct{}
}

// FindDocker says whether Docker is installed: the daemon and the command line that fills it with images.
func FindDocker() error {
	for _, program := range []string{"dockerd", "docker"} {
		if _, err := exec.LookPath(program); err != nil {
			return fmt.Errorf("Docker is not installed here: %w", err)
		}
	}
	return nil
}

// StartDocker starts a dockerd whose state lies in dir and whose containers a running containerd has, and waits until it
// answers. It makes no bridge and no rules for packets.
//
// Further arguments are for dockerd.
func StartDocker(ctx context.Context, dir, containerdAddress string, more ...string) (_ *Docker, err error) {
	if err := hideDockerConfig(); err != nil {
		return nil, err
	}
	if err := os.MkdirAll(dir, 0o711); err != nil {
		return nil, err
	}
	d := &Docker{Host: "unix://" + filepath.Join(dir, "docker.sock"), Dir: dir, exited: make(chan struct{})}
	log, err := os.Create(filepath.Join(dir, "dockerd.log"))
	if err != nil {
		return nil, err
	}
	defer log.Close()
	notify, err := listenNotify(filepath.Join(dir, "notify.sock"))
	if err != nil {
		return nil, err
	}
	defer notify.Close()

	d.cmd = exec.Command("dockerd", "--host", d.Host, "--containerd", containerdAddress,
		"--data-root", filepath.Join(dir, "data"), "--exec-root", filepath.Join(dir, "exec"),
		"--pidfile", filepath.Join(dir, "dockerd.pid"), "--storage-driver", "overlay2",
		"--bridge", "none", "--iptables=false", "--ip6tables=false", "--ip-forward=false", "--ip-masq=false")
	d.cmd.Args = append(d.cmd.Args, more...)
	d.cmd.Stdout, d.cmd.Stderr = log, log
	d.cmd.Env = append(os.Environ(), "NOTIFY_SOCKET="+filepath.Join(dir, "notify.sock"))
	d.cmd.SysProcAttr = &syscall.SysProcAttr{Setpgid: true}
	if err := d.cmd.Start(); err != nil {
		return nil, fmt.Errorf("start dockerd: %w", err)
	}
	go func() {
		defer close(d.exited)
		_ = d.cmd.Wait()
	}()
	ctx, cancel := context.WithTimeout(ctx, startTimeout)
	defer cancel()
	if err := awaitReady(ctx, notify, d.exited); err != nil {
		return nil, errors.Join(fmt.Errorf("start dockerd: %w; see %s", err, log.Name()), d.Stop())
	}
	return d, nil
}

// hideDockerConfig puts an empty directory over Docker's configuration, so that the machine's own is neither used nor
// changed. The mount goes with the sandbox.
func hideDockerConfig() error {
	if os.Getenv("TRANCHE_SANDBOX") != "1" {
		return errors.New("dockerd is only started in a sandbox (build/e2e/sandbox), where what it changes goes away again")
	}
	if err := os.MkdirAll(dockerConfigDir, 0o755); err != nil {
		return err
	}
	if err := unix.Mount("tmpfs", dockerConfigDir, "tmpfs", unix.MS_NOSUID|unix.MS_NODEV, "mode=0755"); err != nil {
		return fmt.Errorf("hide %s: %w", dockerConfigDir, err)
	}
	return nil
}

// Load puts the image of an archive into it.
func (d *Docker) Load(ctx context.Context, archive string) error {
	out, err := exec.CommandContext(ctx, "docker", "--host", d.Host, "load", "--quiet", "--input", archive).CombinedOutput()
	if err != nil {
		return fmt.Errorf("load %s into Docker: %w: %s", archive, err, out)
	}
	return nil
}

// DockerRuntimes are the arguments by which dockerd knows runtimes, and has one for containers that name none.
func DockerRuntimes(runtimes Runtimes, defaultRuntime string) []string {
	args := []string{"--default-runtime", defaultRuntime}
	for name, program := range runtimes {
		if name != RuntimeRunc { // which it knows, and lets nobody state
			args = append(args, "--add-runtime", name+"="+program)
		}
	}
	return args
}

// Engine is Docker's command line.
func (d *Docker) Engine() *DockerLike {
	return &DockerLike{
		name:    "docker",
		command: []string{"docker", "--host", d.Host},
		runtime: func(name string) (global, run []string) { return nil, []string{"--runtime", name} },
	}
}

// Stop ends dockerd, which ends its containers, and unmounts what it mounted.
func (d *Docker) Stop() error {
	if err := d.cmd.Process.Signal(unix.SIGTERM); err != nil && !errors.Is(err, os.ErrProcessDone) {
		return fmt.Errorf("signal dockerd (process %d): %w", d.cmd.Process.Pid, err)
	}
	select {
	case <-d.exited:
	case <-time.After(30 * time.Second):
		_ = d.cmd.Process.Kill()
		<-d.exited
	}
	return unmountUnder(d.Dir)
}
