package mps

import (
	"context"
	"encoding/json"
	"errors"
	"fmt"
	"os"
	"os/exec"
	"slices"
	"syscall"
	"time"

	"github.com/fsnotify/fsnotify"
	"golang.org/x/sys/unix"

	"github.com/tranche-gpu/tranche/internal/proc"
)

// multiuser is the daemon's option to have one server for programs of all users of the host. Without it, a program waits
// until the server of another user has no clients.
const multiuser = "-multiuser-server"

// options are the daemon's options. Those of MPS v3 are on NVIDIA's page "MPS v3 Interface".
func (k kind) options() []string {
	switch {
	case k.V3:
		return []string{"-p", "3", "--multiuser"}
	case k.OneUser:
		return nil
	}
	return []string{multiuser}
}

// errEarly is the error of a daemon that ended before it answered.
var errEarly = errors.New("before it answered")

// start takes over the daemon of a GPU, or starts one, and returns when it answers. earlier is the daemon that was started
// before; it is used if its identity file was removed.
func (m *Manager) start(ctx context.Context, uuid string, earlier identity) (*process, error) {
	ctx, cancel := context.WithTimeout(ctx, m.timing.start)
	defer cancel()
	d := m.dirs(uuid)
	daemon, err := m.control(uuid)
	if err != nil {
		return nil, err
	}
	if err := d.make(); err != nil {
		return nil, err
	}
	if err := m.setExclusive(ctx, uuid); err != nil {
		return nil, err
	}
	id, err := d.readIdentity()
	if err != nil {
		return nil, err
	}
	if id.Process.PID == 0 {
		id = earlier
	}
	daemon.v3 = id.V3
	if p, err := m.adopt(ctx, uuid, daemon, id); p != nil || err != nil {
		return p, err
	}
	if err := m.end(ctx, uuid, id); err != nil {
		return nil, err
	}
	return m.launchAny(ctx, uuid, daemon)
}

// adopt takes over the daemon that an earlier plugin process has started, if it still answers.
func (m *Manager) adopt(ctx context.Context, uuid string, daemon *control, id identity) (*process, error) {
	if !id.Process.MayLive() {
		return nil, nil
	}
	p, err := follow(id.Process.PID, id, m.dirs(uuid).output())
	if err != nil {
		return nil, err
	}
	log := m.options.Logger.With("gpu", uuid, "pid", p.pid)
	// It may have ended in the meantime, and its process ID may be another's.
	if !id.Process.MayLive() {
		p.leave()
		return nil, nil
	}
	closedFor, err := m.open(ctx, uuid, daemon)
	if err != nil {
		p.leave()
		if ctx.Err() != nil {
			return nil, err
		}
		log.Warn("cannot take over an MPS control daemon, which is ended", "reason", err)
		return nil, nil
	}
	log.Info("took over the MPS control daemon of a GPU")
	if len(closedFor) > 0 || id.V3 {
		return p, nil
	}
	return p, m.dirs(uuid).publish()
}

// open returns an error unless a daemon answers and accepts new clients. If it only accepts no new ones, because its socket
// was removed or somebody has sent it the command to quit, it is kept as long as it has clients, which are returned then.
func (m *Manager) open(ctx context.Context, uuid string, daemon *control) (closedFor []int, err error) {
	clients, err := daemon.clients(ctx)
	if err != nil {
		return nil, fmt.Errorf("it does not answer: %w", err)
	}
	_, err = os.Stat(m.dirs(uuid).control())
	switch {
	case err == nil:
		return nil, nil
	case len(clients) > 0:
		return clients, nil
	}
	return nil, fmt.Errorf("it accepts no clients: %w", err)
}

// launchAny starts a daemon with namespaces, if there are any. Otherwise it starts one for all users or, if it is too old for
// that, for one at a time. Whether it knows that option is found out by trying, because its output is not meant for programs.
func (m *Manager) launchAny(ctx context.Context, uuid string, daemon *control) (*process, error) {
	if daemon.knowsV3(ctx) && len(m.dirs(uuid).namespaceSocket(longestName)) <= longestSocket {
		p, err := m.launch(ctx, uuid, daemon, kind{V3: true})
		if !errors.Is(err, errEarly) || ctx.Err() != nil {
			return p, err
		}
		m.options.Logger.Warn("the MPS control daemon of a GPU does not start with namespaces", "gpu", uuid, "error", err)
	}
	p, err := m.launch(ctx, uuid, daemon, kind{})
	if !errors.Is(err, errEarly) || ctx.Err() != nil {
		return p, err
	}
	p, retryErr := m.launch(ctx, uuid, daemon, kind{OneUser: true})
	if retryErr != nil {
		return nil, retryErr
	}
	m.options.Logger.Warn("the MPS control daemon of a GPU serves programs of one user at a time: it does not start for "+
		"several, as older ones do not", "gpu", uuid, "option", multiuser, "error", err)
	return p, nil
}

// launch starts a daemon and returns when it answers.
func (m *Manager) launch(ctx context.Context, uuid string, daemon *control, k kind) (*process, error) {
	d := m.dirs(uuid)
	daemon.v3 = k.V3
	args := append([]string{daemon.program, "-f"}, k.options()...)
	task, err := json.Marshal(childTask{Shm: d.shm(), Identity: d.identity(), Args: args, kind: k})
	if err != nil {
		return nil, err
	}
	if !childReady {
		return nil, errors.New("start an MPS control daemon: main has to call mps.ChildMain first")
	}
	output, err := d.openOutput()
	if err != nil {
		return nil, err
	}
	defer output.Close()
	child := exec.Command("/proc/self/exe") //nolint:noctx // it is to outlive this process
	child.Args = []string{childName, string(task)}
	child.Env = append(slices.Clone(daemon.env), "CUDA_VISIBLE_DEVICES="+uuid)
	child.Dir = "/"
	child.Stdout, child.Stderr = output, output
	child.SysProcAttr = &syscall.SysProcAttr{Setsid: true, Cloneflags: unix.CLONE_NEWNS}
	if err := child.Start(); err != nil {
		return nil, fmt.Errorf("start %s: %w", daemon.program, err)
	}
	p, err := follow(child.Process.Pid, identity{kind: k}, d.output())
	if err != nil {
		_ = child.Process.Kill()
		_ = child.Wait()
		return nil, err
	}
	_ = child.Process.Release()
	if err := m.settle(ctx, d, daemon, p); err != nil {
		// The next start ends this one first, if necessary.
		_ = proc.SignalTo(p.file, unix.SIGKILL)
		<-p.stopped
		p.leave()
		return nil, err
	}
	m.options.Logger.Info("started the MPS control daemon of a GPU", "gpu", uuid, "pid", p.pid, "one_user", k.OneUser, "namespaces", k.V3)
	return p, nil
}

// settle waits until a daemon answers, and lets clients at it, unless they are to have namespaces: see Manager.Assign.
func (m *Manager) settle(ctx context.Context, d dirs, daemon *control, p *process) error {
	if err := untilAnswer(ctx, d, daemon, p); err != nil || p.V3 {
		return err
	}
	_ = os.RemoveAll(d.namespace("")) // of a daemon of MPS v3 before
	return d.publish()
}

// untilAnswer queries the daemon whenever its directory changes, until it answers. Listening at a socket is no such change,
// so it is queried again after a while, too.
func untilAnswer(ctx context.Context, d dirs, daemon *control, p *process) error {
	watcher, err := fsnotify.NewWatcher()
	if err == nil {
		defer watcher.Close()
		err = watcher.Add(d.pipe())
	}
	if err != nil {
		return fmt.Errorf("watch %s: %w", d.pipe(), err)
	}
	for pause := 10 * time.Millisecond; ; pause = min(2*pause, time.Second) {
		if _, err := os.Stat(d.control()); err == nil && daemon.answers(ctx) == nil {
			return nil
		}
		retry := time.NewTimer(pause)
		select {
		case <-watcher.Events:
		case <-retry.C:
		case <-p.ended:
			retry.Stop()
			return fmt.Errorf("%w %s", errEarly, p.exit())
		case <-ctx.Done():
			retry.Stop()
			return fmt.Errorf("it did not answer: %w", ctx.Err())
		}
		retry.Stop()
	}
}
