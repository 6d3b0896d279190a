package claim

import (
	"context"
	"errors"
	"fmt"
	"os"
	"path/filepath"
	"time"

	"github.com/tranche-gpu/tranche/claim/journal"
	"github.com/tranche-gpu/tranche/claim/region"
	"github.com/tranche-gpu/tranche/internal/filelock"
)

// The default directories of the ledger and the regions.
const (
	DefaultStateDir = "/var/lib/tranche"
	DefaultRunDir   = "/run/tranche"
)

// claimsDir is the directory of the claims in the state directory, and of the regions in the run directory.
const claimsDir = "claims"

// Options are the directories of a ledger, and its logger.
type Options struct {
	// StateDir holds the ledger, in "claims". It must survive a reboot.
	StateDir string
	// RunDir holds the regions, in "claims/<id>". It is empty after a reboot.
	RunDir string
	// Logger receives messages about changes; nil logs nothing.
	Logger Logger
}

const lockName = ".lock"

// lockPatience is how long a call waits for the lock if its context has no deadline. A change takes milliseconds, so a
// process that holds the lock for this long is stopped.
const lockPatience = 30 * time.Second

// Ledger is the ledger of claims of this node. Its methods may be called concurrently by many goroutines and processes. The
// context bounds how long they wait for the lock; without a deadline it is lockPatience.
type Ledger struct {
	claims      string // directory of the records
	runDir      string
	regions     string      // directory of the regions
	workloads   string      // directory of the workloads
	yielded     string      // directory of the records of claims that have yielded
	recordCache recordCache // records that were read last
	lock        *filelock.Lock
	logger      Logger
	now         func() time.Time
	sync        func(*os.File) error // writes a file or a directory to the disk
	listCache   listCache
	journal     *journal.Journal

	workloadCache workloadCache
}

// Open returns the ledger in the options' directories. It creates nothing: directories are created with the first claim.
func Open(o Options) (*Ledger, error) {
	if o.StateDir == "" {
		o.StateDir = DefaultStateDir
	}
	if o.RunDir == "" {
		o.RunDir = DefaultRunDir
	}
	if o.Logger == nil {
		o.Logger = silent{}
	}
	for what, dir := range map[string]string{"state": o.StateDir, "run": o.RunDir} {
		if !filepath.IsAbs(dir) {
			return nil, fmt.Errorf("the %s directory %q has to be an absolute path", what, dir)
		}
	}
	l := &Ledger{
		claims:  filepath.Join(o.StateDir, claimsDir),
		runDir:  o.RunDir,
		regions: filepath.Join(o.RunDir, claimsDir),

		workloads: filepath.Join(o.StateDir, workloadsDir),
		yielded:   filepath.Join(o.StateDir, yieldedDir),

		logger: o.Logger,
		now:    func() time.Time { return time.Now().UTC().Round(0) },
		sync:   (*os.File).Sync,

		journal: journal.In(filepath.Join(o.StateDir, journalDir)),
	}
	if l.claims == l.regions {
		return nil, fmt.Errorf("state_dir and run_dir must be two directories, got %q for both", filepath.Dir(l.claims))
	}
	l.lock = filelock.New(filepath.Join(l.claims, lockName), lockPatience)
	return l, nil
}

// HasState reports whether a claim may ever have been made in a state directory. One that cannot be read may have had claims.
func HasState(stateDir string) bool {
	_, err := os.Stat(filepath.Join(stateDir, claimsDir))
	return !errors.Is(err, os.ErrNotExist)
}

// read calls fn with a snapshot, under the lock. A ledger that was never written to is empty.
func (l *Ledger) read(ctx context.Context, fn func(*snapshot) error) error {
	unlock, err := l.lock.Acquire(ctx)
	if errors.Is(err, os.ErrNotExist) {
		return fn(newSnapshot())
	}
	return l.locked(unlock, err, fn)
}

// write is read for changes that may be the first: it creates the ledger if it is missing. It never changes a ledger without
// the lock, even if the directory is replaced meanwhile.
func (l *Ledger) write(ctx context.Context, fn func(*snapshot) error) error {
	unlock, err := l.lock.Acquire(ctx)
	if errors.Is(err, os.ErrNotExist) {
		if err := makeDir(l.claims); err != nil {
			return accessError(fmt.Errorf("making the ledger: %w", explain(l.claims, err)))
		}
		unlock, err = l.lock.Acquire(ctx)
	}
	return l.locked(unlock, err, fn)
}

// locked calls fn under the lock, if that could be taken. Records that fn has replaced are synced after the lock is released,
// so that no other process waits for the disk.
func (l *Ledger) locked(unlock func(), err error, fn func(*snapshot) error) error {
	if err != nil {
		return accessError(fmt.Errorf("opening the ledger: %w", explain(l.claims, err)))
	}
	var snap *snapshot
	err = func() (err error) {
		defer unlock()
		defer l.journal.Close()
		if snap, err = l.load(); err != nil {
			return accessError(err)
		}
		return fn(snap)
	}()
	if snap == nil {
		return err
	}
	if syncErr := l.syncChanged(snap); syncErr != nil {
		return errors.Join(err, syncErr)
	}
	return err
}

// load reads a snapshot, and completes changes of processes that died.
func (l *Ledger) load() (*snapshot, error) {
	snap, now, err := readSnapshot(l.claims, l.recordCache)
	if err != nil {
		return nil, err
	}
	l.recordCache = now
	if err := l.takeBackGroup(snap); err != nil { // first, since the claims that they would supersede are to stay
		return nil, err
	}
	l.finishSuperseding(snap)
	return snap, nil
}

// finishSuperseding removes the claims that a later one has superseded. Reserve does so itself; this is for a process that
// died in between.
func (l *Ledger) finishSuperseding(snap *snapshot) {
	for _, r := range snap.records {
		for _, id := range r.Supersedes {
			if older, ok := snap.records[id]; ok {
				l.supersede(snap, older, r)
			}
		}
	}
}

// supersede removes a claim that another one has superseded. The claim is gone even if its file cannot be removed, since the
// later record names it.
func (l *Ledger) supersede(snap *snapshot, older, by *record) {
	w, _ := l.Workload(older.ID)
	l.logger.Info("claim superseded", "claim", older.ID, "by", by.ID, "slices", older.Slices, "workload", w.String())
	l.noteSuperseded(older, by, w)
	if err := l.erase(snap, older); err != nil {
		l.logger.Warn("a superseded claim could not be removed from the ledger", "claim", older.ID, "error", err)
		delete(snap.records, older.ID)
		l.removeRegion(older.ID)
	}
}

// remove notes the end of a claim and erases it.
func (l *Ledger) remove(snap *snapshot, r *record) error {
	l.note(journal.Remove, r)
	return l.erase(snap, r)
}

// erase removes a claim and its region. The next sweep removes a region that could not be removed.
func (l *Ledger) erase(snap *snapshot, r *record) error {
	if err := l.removeRecord(r.ID); err != nil {
		return accessError(err)
	}
	delete(snap.records, r.ID)
	l.removeRegion(r.ID)
	return nil
}

func (l *Ledger) removeRegion(id string) {
	if err := region.Remove(l.regionPath(id)); err != nil {
		l.logger.Warn("removing the region of a claim", "claim", id, "error", err)
	}
}

func (l *Ledger) regionPath(id string) string { return filepath.Join(l.regions, id) }

// Logger receives messages for the operator, with names and values in turns. An hclog.Logger is one. The hooks have none, and
// do not start a logging library.
type Logger interface {
	Info(message string, namesAndValues ...any)
	Warn(message string, namesAndValues ...any)
}

// silent is the Logger of a ledger without one.
type silent struct{}

func (silent) Info(string, ...any) {}
func (silent) Warn(string, ...any) {}
