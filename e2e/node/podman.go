package node

import (
	"context"
	"errors"
	"fmt"
	"os"
	"os/exec"
	"path/filepath"
	"strings"
	"syscall"
	"time"

	"golang.org/x/sys/unix"
)

// Podman is Podman with storage and configuration of its own.
type Podman struct {
	*DockerLike
	// Dir holds everything that it writes, but for what it has while containers run: the name of that directory may have 50
	// characters.
	Dir string
	run string
	// Socket is the path of its API's socket, once Serve has been called.
	Socket string

	service *exec.Cmd
	ended   chan struct{}
}

// NewPodman writes Podman's configuration: runtimes by name, and the one that containers get who name none.
func NewPodman(dir string, runtimes Runtimes, defaultRuntime string) (*Podman, error) {
	if err := os.MkdirAll(dir, 0o711); err != nil {
		return nil, err
	}
	var config strings.Builder
	fmt.Fprintf(&config, "[engine]\ncgroup_manager = \"cgroupfs\"\nevents_logger = \"file\"\nruntime = %q\n"+
		"[engine.runtimes]\n", defaultRuntime)
	for name, program := range runtimes {
		fmt.Fprintf(&config, "%s = [%q]\n", name, program)
	}
	file := filepath.Join(dir, "containers.conf")
	if err := os.WriteFile(file, []byte(config.String()), 0o644); err != nil {
		return nil, err
	}
	run, err := os.MkdirTemp("/run", "podman-")
	if err != nil {
		return nil, err
	}
	engine := &DockerLike{
		name:    "podman",
		command: []string{"podman", "--root", filepath.Join(dir, "root"), "--runroot", run},
		env:     []string{"CONTAINERS_CONF=" + file},
		runtime: func(name string) (global, run []string) { return []string{"--runtime", name}, nil },
	}
	return &Podman{DockerLike: engine, Dir: dir, run: run, Socket: filepath.Join(dir, "podman.sock")}, nil
}

// Serve starts Podman's API, which Nomad's podman driver speaks to, and waits until it listens. Stop ends it.
func (p *Podman) Serve(ctx context.Context) error {
	log, err := os.Create(filepath.Join(p.Dir, "service.log"))
	if err != nil {
		return err
	}
	defer log.Close()
	notify, err := listenNotify(filepath.Join(p.Dir, "notify.sock"))
	if err != nil {
		return err
	}
	defer notify.Close()
	service := p.Command(context.WithoutCancel(ctx), "system", "service", "--time", "0", "unix://"+p.Socket)
	service.Env = append(service.Env, "NOTIFY_SOCKET="+filepath.Join(p.Dir, "notify.sock"))
	service.Stdout, service.Stderr = log, log
	service.SysProcAttr = &syscall.SysProcAttr{Setpgid: true}
	if err := service.Start(); err != nil {
		return fmt.Errorf("start Podman's API: %w", err)
	}
	p.service, p.ended = service, make(chan struct{})
	go func() {
		defer close(p.ended)
		_ = service.Wait()
	}()
	ctx, cancel := context.WithTimeout(ctx, startTimeout)
	defer cancel()
	if err := awaitReady(ctx, notify, p.ended); err != nil {
		return fmt.Errorf("start Podman's API: %w; see %s", err, log.Name())
	}
	return nil
}

// Stop ends the API and every container, and unmounts what is mounted.
func (p *Podman) Stop(ctx context.Context) error {
	out, err := p.Command(ctx, "rm", "--all", "--force", "--time", "0").CombinedOutput()
	if err != nil {
		err = fmt.Errorf("remove Podman's containers: %w: %s", err, out)
	}
	if p.service != nil {
		_ = p.service.Process.Signal(unix.SIGTERM)
		select {
		case <-p.ended:
		case <-time.After(10 * time.Second):
			_ = p.service.Process.Kill()
			<-p.ended
		}
	}
	if err = errors.Join(err, unmountUnder(p.Dir), unmountUnder(p.run)); err != nil {
		return err
	}
	return os.RemoveAll(p.run)
}
