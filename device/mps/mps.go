// Package mps starts, watches and restarts MPS control daemons, one for each GPU whose programs are to compute side by
// side. A daemon outlives the plugin process that started it, and the next one takes it over. Which GPU has a daemon is
// decided elsewhere.
//
// A daemon is started by the caller's own binary, whose main must call ChildMain before anything else.
package mps

import (
	"context"
	"errors"
	"fmt"
	"os"
	"path/filepath"
	"slices"
	"strings"
	"sync"
	"time"

	"github.com/hashicorp/go-hclog"

	"github.com/tranche-gpu/tranche/device/nvml"
	"github.com/tranche-gpu/tranche/runtime/mpsdir"
)

// GPUs is what a Manager uses of NVML.
type GPUs interface {
	Health(ctx context.Context, uuid string) (*nvml.Health, error)
	SetComputeMode(ctx context.Context, uuid string, mode nvml.ComputeMode) error
}

// Options configure a Manager.
type Options struct {
	// DriverRoot is the directory tree with the driver and its programs.
	DriverRoot string
	// RunDir contains the directories of the daemons. It is empty after a restart of the machine.
	RunDir string
	GPUs   GPUs
	Logger hclog.Logger
}

// timing has time limits and pauses.
type timing struct {
	// start bounds the start of a daemon until it answers, answer one command, and quit the end of a daemon before it is
	// killed.
	start, answer, quit time.Duration
	// serve bounds the start of a server.
	serve time.Duration
	// firstPause and longestPause are the pauses between a failure and the next start of a daemon.
	firstPause, longestPause time.Duration
	// ranWell is how long a daemon must have run for the next one to be started without a pause.
	ranWell time.Duration
}

var defaultTiming = timing{
	start: 30 * time.Second, answer: 10 * time.Second, quit: 10 * time.Second, serve: 20 * time.Second,
	firstPause: time.Second, longestPause: 2 * time.Minute, ranWell: time.Minute,
}

// Manager runs the MPS control daemons of a node. All methods may be called at any time.
type Manager struct {
	options Options
	timing  timing
	changed chan struct{}

	mu      sync.Mutex
	watched map[string]*watch
	// earlier are the compute modes that GPUs had before, by UUID. Somebody may remove their files.
	earlier map[string]nvml.ComputeMode
}

// New returns a Manager that has started nothing.
func New(options Options) *Manager {
	if options.Logger == nil {
		options.Logger = hclog.NewNullLogger()
	}
	return &Manager{
		options: options, timing: defaultTiming, changed: make(chan struct{}, 1),
		watched: make(map[string]*watch), earlier: make(map[string]nvml.ComputeMode),
	}
}

// Status is the status of a GPU's daemon.
type Status struct {
	// Running is whether the daemon has answered and has not ended since.
	Running bool
	// Reason is why it does not run.
	Reason string
	// OneUser is whether the daemon serves programs of one user of the host at a time.
	OneUser bool
	// Namespaces is whether the daemon has a namespace for each claim.
	Namespaces bool
}

// DownError says that a GPU's daemon could not be started.
type DownError struct {
	GPUUUID string
	Reason  string
}

func (e *DownError) Error() string {
	return fmt.Sprintf("the MPS control daemon of GPU %s does not run: %s; it is restarted automatically", e.GPUUUID, e.Reason)
}

// Retriable reports that the same call may succeed later.
func (e *DownError) Retriable() bool { return true }

// ServerError says that a GPU's daemon has no server and can start none.
type ServerError struct {
	GPUUUID string
	Reason  string
}

func (e *ServerError) Error() string {
	return fmt.Sprintf("the MPS control daemon of GPU %s cannot start a server: %s", e.GPUUUID, e.Reason)
}

// Retriable reports that the same call may succeed later.
func (e *ServerError) Retriable() bool { return true }

// BusyError says that a GPU's daemon has clients.
type BusyError struct {
	GPUUUID string
	// Clients are process IDs.
	Clients []int
}

func (e *BusyError) Error() string {
	return fmt.Sprintf("the MPS control daemon of GPU %s has clients, %s: it is ended when they are gone", e.GPUUUID, listProcesses(e.Clients))
}

// Ensure runs a daemon for a GPU and returns when it answers. It sets compute mode Exclusive_Process, so that no program
// computes without the daemon. It takes over a daemon that is running, and replaces one that does not answer. From then on
// the daemon is restarted whenever it ends. The error is a *DownError if it cannot be started now; that is retried with
// growing pauses.
func (m *Manager) Ensure(ctx context.Context, uuid string) error {
	if err := checkUUID(uuid); err != nil {
		return err
	}
	w := m.watch(uuid)
	w.recheck(ctx)
	if err := w.wait(ctx); err != nil {
		return err
	}
	// Somebody may have changed the compute mode, or loaded the driver again.
	if err := m.setExclusive(ctx, uuid); err != nil {
		return err
	}
	m.dirs(uuid).boundLogs(m.options.Logger)
	return nil
}

// Serve starts a server for the daemon of a GPU, which Ensure has started, and returns when it runs. From then on the
// server has the GPU, and the compute mode excludes all other processes; without a server, the first program would get it.
// The error is a *ServerError if none can be started.
func (m *Manager) Serve(ctx context.Context, uuid string) error {
	daemon, err := m.control(uuid)
	if err != nil {
		return err
	}
	servers, err := daemon.servers(ctx)
	if err != nil || len(servers) > 0 {
		return err
	}
	timed, cancel := context.WithTimeout(ctx, m.timing.serve)
	defer cancel()
	var output string
	const longPause = time.Second
	for first, pause := true, 10*time.Millisecond; ; first, pause = false, min(2*pause, longPause) {
		// It is told again: the server before may have had the GPU still, or another daemon may have taken the place of this one.
		if first || pause == longPause {
			output, err = daemon.startServer(timed)
			if err != nil && first {
				return err
			}
		}
		if servers, err := daemon.servers(timed); err == nil && len(servers) > 0 {
			return nil
		}
		if !sleep(timed, pause) {
			return &ServerError{GPUUUID: uuid, Reason: strings.TrimPrefix(strings.TrimSpace(output)+"; ", "; ") + "see " + m.dirs(uuid).log()}
		}
	}
}

// Status returns the status of a GPU's daemon.
func (m *Manager) Status(uuid string) Status {
	m.mu.Lock()
	w := m.watched[uuid]
	m.mu.Unlock()
	if w == nil {
		return Status{Reason: "it is not started yet"}
	}
	return w.status()
}

// Changed receives a value when the status of a daemon has changed.
func (m *Manager) Changed() <-chan struct{} { return m.changed }

// Left returns the GPUs that have directories of a daemon, from this plugin process or an earlier one.
func (m *Manager) Left() ([]string, error) {
	entries, err := os.ReadDir(filepath.Join(m.options.RunDir, "mps"))
	if errors.Is(err, os.ErrNotExist) {
		return nil, nil
	}
	var left []string
	for _, entry := range entries {
		if checkUUID(entry.Name()) == nil && entry.IsDir() {
			left = append(left, entry.Name())
		}
	}
	return left, err
}

// Owns reports whether Ensure has set a GPU's compute mode, in this plugin process or an earlier one, and it was not
// restored.
func (m *Manager) Owns(uuid string) bool {
	_, err := os.Stat(m.dirs(uuid).computeMode())
	return err == nil
}

// Release ends the daemon of a GPU, restores the compute mode and removes the directories. The error is a *BusyError if the
// daemon has clients.
func (m *Manager) Release(ctx context.Context, uuid string) error {
	if err := checkUUID(uuid); err != nil {
		return err
	}
	clients, err := m.Clients(ctx, uuid)
	if ctx.Err() != nil {
		return err
	}
	if err != nil {
		m.options.Logger.Warn("an MPS control daemon does not answer, and is ended whether it has clients or not", "gpu", uuid, "error", err)
	}
	if len(clients) > 0 {
		return &BusyError{GPUUUID: uuid, Clients: clients}
	}
	if err := m.Stop(ctx, uuid); err != nil {
		return err
	}
	if err := m.restoreComputeMode(ctx, uuid); err != nil {
		return err
	}
	if err := m.dirs(uuid).remove(); err != nil {
		return fmt.Errorf("remove the directories of the MPS control daemon of GPU %s: %w", uuid, err)
	}
	return nil
}

// Clients returns the processes that compute through the daemon of a GPU; none if it does not run.
func (m *Manager) Clients(ctx context.Context, uuid string) ([]int, error) {
	id, err := m.dirs(uuid).readIdentity()
	if err != nil || !id.Process.MayLive() {
		return nil, err
	}
	daemon, err := m.control(uuid)
	if err != nil {
		return nil, err
	}
	return daemon.clients(ctx)
}

// Stop ends the daemon of a GPU even if it has clients, as is needed when the GPU is gone. The compute mode and the
// directories stay, for Ensure to continue with.
func (m *Manager) Stop(ctx context.Context, uuid string) error {
	if err := checkUUID(uuid); err != nil {
		return err
	}
	watched := m.unwatch(uuid)
	d := m.dirs(uuid)
	d.withdraw()
	id, err := d.readIdentity()
	if err != nil {
		return err
	}
	alive := id.Process.MayLive()
	if err := m.end(ctx, uuid, id); err != nil {
		return err
	}
	if watched || alive {
		m.options.Logger.Info("ended the MPS control daemon of a GPU", "gpu", uuid)
		m.notify()
	}
	return nil
}

// Close stops watching the daemons, which continue running. A later Ensure takes them over.
func (m *Manager) Close() {
	m.mu.Lock()
	watched := m.watched
	m.watched = make(map[string]*watch)
	m.mu.Unlock()
	for _, w := range watched {
		w.leave()
	}
}

func (m *Manager) dirs(uuid string) dirs {
	return dirs{runDir: m.options.RunDir, root: mpsdir.Of(m.options.RunDir, uuid)}
}

// watch returns the watch of a GPU, and begins it if there is none.
func (m *Manager) watch(uuid string) *watch {
	m.mu.Lock()
	defer m.mu.Unlock()
	w := m.watched[uuid]
	if w == nil {
		w = newWatch(m, uuid)
		m.watched[uuid] = w
		go w.run()
	}
	return w
}

// unwatch ends the watch of a GPU, and reports whether there was one.
func (m *Manager) unwatch(uuid string) bool {
	m.mu.Lock()
	w := m.watched[uuid]
	delete(m.watched, uuid)
	m.mu.Unlock()
	if w != nil {
		w.leave()
	}
	return w != nil
}

func (m *Manager) notify() {
	select {
	case m.changed <- struct{}{}:
	default: // a value is waiting already
	}
}

// checkUUID returns an error for a text that is not a UUID, because it becomes part of a path.
func checkUUID(uuid string) error {
	if filepath.Base(uuid) != uuid || !slices.Contains([]string{"GPU-", "MIG-"}, uuid[:min(4, len(uuid))]) {
		return fmt.Errorf("%q is not the UUID of a GPU", uuid)
	}
	return nil
}
