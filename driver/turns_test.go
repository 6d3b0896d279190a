package driver

import (
	"context"
	"testing"
	"time"

	"github.com/shoenig/test/must"
)

// taken waits for a turn that is free.
func taken(t *testing.T, turns *turns) (end func()) {
	t.Helper()
	ctx, cancel := context.WithTimeout(t.Context(), time.Minute)
	defer cancel()
	end, err := turns.take(ctx)
	must.NoError(t, err)
	return end
}

// noneFree asserts that whoever asks has to wait.
func noneFree(t *testing.T, turns *turns) {
	t.Helper()
	ctx, cancel := context.WithTimeout(t.Context(), 20*time.Millisecond)
	defer cancel()
	_, err := turns.take(ctx)
	must.ErrorIs(t, err, context.DeadlineExceeded)
}

func TestTurns_NoMoreThanThereAre(t *testing.T) {
	turns := newTurns(2, time.Minute)
	end := taken(t, turns)
	taken(t, turns)
	noneFree(t, turns)
	end()
	taken(t, turns)
	noneFree(t, turns)
}

func TestTurns_EndingTwiceGivesOneBack(t *testing.T) {
	turns := newTurns(1, time.Minute)
	end := taken(t, turns)
	end()
	end()
	taken(t, turns)
	noneFree(t, turns)
}

func TestTurns_OneThatHangsDoesNotHoldUpTheOthers(t *testing.T) {
	turns := newTurns(1, 10*time.Millisecond)
	late := taken(t, turns)
	end := taken(t, turns) // Once the first has been at it for too long.
	turns.limit = time.Minute
	end()
	taken(t, turns)
	late() // It has been given back before.
	noneFree(t, turns)
}
