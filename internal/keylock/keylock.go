// Package keylock is a lock per key. Unlike a map of mutexes it keeps no keys that nobody uses, and waiting ends with a
// context.
package keylock

import (
	"context"
	"fmt"
	"sync"
)

// Locks is a lock per key. The zero value is ready.
type Locks struct {
	mu    sync.Mutex
	locks map[string]*lock
}

// lock is held by whoever put its token in. Locks.mu guards users.
type lock struct {
	token chan struct{}
	users int
}

// Lock waits for the key's lock as long as the context lasts.
func (l *Locks) Lock(ctx context.Context, key string) (unlock func(), err error) {
	k := l.join(key)
	select {
	case k.token <- struct{}{}:
		return func() { <-k.token; l.leave(key, k) }, nil
	case <-ctx.Done():
		l.leave(key, k)
		return nil, fmt.Errorf("wait for the lock of %s: %w", key, context.Cause(ctx))
	}
}

// join counts one more holder or waiter of the key's lock.
func (l *Locks) join(key string) *lock {
	l.mu.Lock()
	defer l.mu.Unlock()
	if l.locks == nil {
		l.locks = map[string]*lock{}
	}
	k := l.locks[key]
	if k == nil {
		k = &lock{token: make(chan struct{}, 1)}
		l.locks[key] = k
	}
	k.users++
	return k
}

func (l *Locks) leave(key string, k *lock) {
	l.mu.Lock()
	defer l.mu.Unlock()
	if k.users--; k.users == 0 {
		delete(l.locks, key)
	}
}
