package driver

import (
	"context"
	"fmt"
	"sync"
)

// keyedLock is a lock per key. The zero value is ready.
type keyedLock struct {
	mu    sync.Mutex
	locks map[string]*countedLock
}

// countedLock is held by who put its token in.
type countedLock struct {
	token chan struct{}
	users int
}

// lock waits for the key's lock as long as the context lasts, and returns how to give it back.
func (k *keyedLock) lock(ctx context.Context, key string) (unlock func(), err error) {
	l := k.join(key)
	select {
	case l.token <- struct{}{}:
		return func() { <-l.token; k.leave(key, l) }, nil
	case <-ctx.Done():
		k.leave(key, l)
		return nil, fmt.Errorf("wait for another that works on %s: %w", key, context.Cause(ctx))
	}
}

// join counts one more who has the key's lock or waits for it.
func (k *keyedLock) join(key string) *countedLock {
	k.mu.Lock()
	defer k.mu.Unlock()
	if k.locks == nil {
		k.locks = map[string]*countedLock{}
	}
	l := k.locks[key]
	if l == nil {
		l = &countedLock{token: make(chan struct{}, 1)}
		k.locks[key] = l
	}
	l.users++
	return l
}

func (k *keyedLock) leave(key string, l *countedLock) {
	k.mu.Lock()
	defer k.mu.Unlock()
	if l.users--; l.users == 0 {
		delete(k.locks, key)
	}
}
