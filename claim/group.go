package claim

import (
	"errors"
	"fmt"
	"os"
	"path/filepath"
	"slices"
	"strings"

	"golang.org/x/sys/unix"

	"github.com/tranche-gpu/tranche/claim/journal"
)

// groupName is the file with the IDs of claims while they are made together, one a line. It is written before the first of
// their records and removed after the last: its removal commits the claims. There is one, since it is used under the lock.
//
// A process that finds it removes the records in it: the process that was making the claims has died and has returned no
// tokens, so that no container can use them. The claims that they would have superseded do not change.
const groupName = ".group"

// enterAll writes claims that belong together: all of them, or none.
func (l *Ledger) enterAll(snap *snapshot, records []*record) error {
	if len(records) == 1 {
		return l.enter(snap, records[0])
	}
	err := l.announceGroup(records)
	for i := 0; i < len(records) && err == nil; i++ {
		err = l.enter(snap, records[i])
	}
	if err == nil {
		err = l.endGroup()
	}
	if err != nil {
		return errors.Join(err, l.takeBackGroup(snap))
	}
	return nil
}

// announceGroup writes the file. An existing one has claims that could not be removed yet.
func (l *Ledger) announceGroup(records []*record) error {
	var ids strings.Builder
	for _, r := range records {
		fmt.Fprintln(&ids, r.ID)
	}
	f, err := os.OpenFile(l.groupPath(), os.O_WRONLY|os.O_CREATE|os.O_EXCL|unix.O_NOFOLLOW, 0o600)
	if err != nil {
		return l.notAnnounced(err)
	}
	_, err = f.WriteString(ids.String())
	if err == nil {
		err = l.sync(f)
	}
	if err = errors.Join(err, f.Close()); err == nil {
		err = l.syncDir()
	}
	if err != nil {
		return errors.Join(l.notAnnounced(err), removeFile(l.groupPath()))
	}
	return nil
}

func (l *Ledger) notAnnounced(err error) error {
	return fmt.Errorf("writing %s to the ledger, which stays as it was: %w", groupName, explain(l.claims, markFull(err)))
}

// endGroup removes the file's name and syncs the directory, so that a power cut does not restore it. If syncing fails, it
// restores the name. Neither needs disk space.
func (l *Ledger) endGroup() error {
	group, ended := l.groupPath(), l.unfinishedPath()
	err := os.Rename(group, ended)
	if err == nil {
		if err = l.syncDir(); err != nil {
			err = errors.Join(err, os.Rename(ended, group))
		}
	}
	if err != nil {
		return fmt.Errorf("removing %s from the ledger: %w", groupName, explain(l.claims, err))
	}
	return nil
}

func (l *Ledger) groupPath() string { return filepath.Join(l.claims, groupName) }

// takeBackGroup removes the claims of an unfinished group, if there is one. The records are removed before the file that names
// them. If they cannot be removed, the file stays, and the snapshot does not have them. None of this needs disk space. It
// returns an error if the file cannot be read.
func (l *Ledger) takeBackGroup(snap *snapshot) error {
	text, _, err := readRegular(l.groupPath())
	if errors.Is(err, os.ErrNotExist) {
		return nil
	}
	if err != nil {
		return fmt.Errorf("reading which claims were not finished from %s: %w; if that is no file of ours, remove it",
			l.groupPath(), err)
	}
	var errs []error
	for id := range strings.Lines(string(text)) {
		id = strings.TrimSpace(id)
		if _, ok := idOfFile(id + ".json"); !ok {
			continue // the file itself was not finished, and no record was begun
		}
		if r, ok := snap.records[id]; ok {
			l.note(journal.Undo, r)
			l.logger.Warn("taking back a claim that was not finished", "claim", id)
		}
		errs = append(errs, l.removeRecord(id))
		delete(snap.records, id)
		snap.problems = slices.DeleteFunc(snap.problems, func(p Problem) bool { return p.ClaimID == id })
		l.removeRegion(id)
	}
	err = errors.Join(errs...)
	if err == nil {
		err = l.syncDir()
	}
	if err == nil {
		err = l.endGroup()
	}
	if err != nil {
		l.logger.Warn("claims that were not finished could not be taken back for good", "error", err)
	}
	return nil
}
