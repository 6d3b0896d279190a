package claim

import "context"

// List gives all claims, ordered by GPU and slices, and the files in the ledger that are none.
func (l *Ledger) List(ctx context.Context) (claims []*Claim, problems []Problem, err error) {
	err = l.read(ctx, func(b *book) error {
		for _, r := range b.sorted() {
			claims = append(claims, r.claim())
		}
		problems = b.problems
		return nil
	})
	return claims, problems, err
}

// Drop removes a claim and its region. If a container that lives has it, the error is a *HeldError.
func (l *Ledger) Drop(ctx context.Context, id string) error {
	return l.read(ctx, func(b *book) error {
		r, err := b.get(id)
		if err != nil {
			return err
		}
		if r.held() {
			return &HeldError{Claim: r.claim(), Slices: r.claim().Slices}
		}
		l.remove(b, r)
		l.logger.Info("claim dropped", "claim", id)
		return nil
	})
}
