package claim

import (
	"errors"
	"fmt"
	"os"
	"path/filepath"
	"slices"
	"strings"
)

// groupName is the file that names claims while they are made together, one ID a line. It is there before the first of
// their records and goes after the last: its removal is what makes the claims. One is enough, since it is only used
// under the lock.
//
// Whoever finds it takes the records back that it names: who wanted to make the claims died in the midst of it and has told
// nobody their tokens, so that nobody can come for them; and what they would have superseded stays as it was.
const groupName = ".group"

// enterAll writes claims that belong together: all of them or none.
func (l *Ledger) enterAll(b *book, records []*record) error {
	if len(records) == 1 {
		return l.enter(b, records[0])
	}
	if err := l.announceGroup(records); err != nil {
		return fmt.Errorf("writing %s to the ledger, which stays as it was: %w", groupName, explain(l.claims, err))
	}
	for _, r := range records {
		if err := l.enter(b, r); err != nil {
			return errors.Join(err, l.takeBackGroup(b))
		}
	}
	if err := l.endGroup(); err != nil {
		return errors.Join(err, l.takeBackGroup(b))
	}
	return nil
}

func (l *Ledger) announceGroup(records []*record) error {
	var ids strings.Builder
	for _, r := range records {
		fmt.Fprintln(&ids, r.ID)
	}
	path := filepath.Join(l.claims, groupName)
	if err := writeDurably(path, []byte(ids.String())); err != nil {
		return errors.Join(err, removeFile(path))
	}
	return syncDir(l.claims)
}

// endGroup removes the file, and makes sure that a power cut does not bring it back.
func (l *Ledger) endGroup() error {
	if err := removeFile(filepath.Join(l.claims, groupName)); err != nil {
		return fmt.Errorf("removing %s from the ledger: %w", groupName, explain(l.claims, err))
	}
	return syncDir(l.claims)
}

// takeBackGroup removes the claims of a group that was not finished, where there is one. The records go before the file
// that names them, and it stays where one of them does. All of this takes no room on the disk.
func (l *Ledger) takeBackGroup(b *book) error {
	text, _, err := readRegular(filepath.Join(l.claims, groupName))
	if errors.Is(err, os.ErrNotExist) {
		return nil
	}
	if err != nil {
		return fmt.Errorf("reading which claims were not finished from %s: %w; if that is no file of ours, remove it",
			filepath.Join(l.claims, groupName), err)
	}
	for id := range strings.Lines(string(text)) {
		id = strings.TrimSpace(id)
		if _, ok := idOfFile(id + ".json"); !ok {
			continue // the file itself was not finished, and no record was begun
		}
		if err := removeRecord(l.claims, id); err != nil {
			return fmt.Errorf("taking back claim %s, which was not finished: %w", id, explain(l.claims, err))
		}
		if _, ok := b.records[id]; ok {
			l.logger.Warn("taking back a claim that was not finished", "claim", id)
		}
		delete(b.records, id)
		b.problems = slices.DeleteFunc(b.problems, func(p Problem) bool { return p.ClaimID == id })
		l.removeRegion(id)
	}
	if err := syncDir(l.claims); err != nil {
		return err
	}
	return l.endGroup()
}
