package install

import (
	"errors"
	"fmt"
	"io"
	"os"
	"time"
)

// Show prints what a plan would do.
func (p *Plan) Show(out io.Writer) error {
	for _, c := range p.Changes {
		text, err := c.Diff()
		if err != nil {
			return err
		}
		if _, err := io.WriteString(out, text); err != nil {
			return err
		}
	}
	return nil
}

// Apply does what the plan says, or nothing: where a change fails, those before it are taken back.
func (p *Plan) Apply(out io.Writer) error {
	now := time.Now()
	for i, c := range p.Changes {
		backup, err := c.Apply(now)
		if err != nil {
			return errors.Join(err, undo(p.Changes[:i]))
		}
		if _, err := fmt.Fprintln(out, c.Describe(backup)); err != nil {
			return errors.Join(err, undo(p.Changes[:i+1]))
		}
	}
	for _, dir := range p.Dirs {
		_ = os.Remove(dir) // others have something in it
	}
	return nil
}

func undo(done []Change) error {
	var errs []error
	for _, c := range done {
		errs = append(errs, c.Undo())
	}
	return errors.Join(errs...)
}
