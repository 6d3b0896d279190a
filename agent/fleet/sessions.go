package fleet

import (
	"context"
	"crypto/rand"
	"net/http"
	"sync"
	"time"

	"github.com/hashicorp/nomad/api"

	"github.com/tranche-gpu/tranche/internal/explain"
	"github.com/tranche-gpu/tranche/internal/recent"
)

const (
	// sessionLife is how long a viewer stays signed in.
	sessionLife = 8 * time.Hour
	// mostSessions bounds the memory of viewers who never sign out. Each has shown a token that Nomad takes.
	mostSessions = 1000
)

// viewer is who looks at the pages with a token, and what Nomad shows to it, which is used as long as it is fresh.
type viewer struct {
	client   *api.Client
	fresh    time.Duration
	signedIn time.Time
	seen     recent.Value[*sight]
	queue    recent.Value[*explain.Queue]
}

// sight is what a viewer may see at a time. Users must not modify it.
type sight struct {
	time   time.Time
	allocs []*api.AllocationListStub
}

func (n *Nomad) viewer(token string) (*viewer, error) {
	client, err := n.client(token)
	return &viewer{client: client, fresh: n.times.lists, signedIn: time.Now()}, err
}

// look returns what the viewer may see. It fails unless the viewer may see nodes, too, so that the answer permits to show what others
// have queried of these.
func (v *viewer) look(ctx context.Context) (*sight, error) {
	return v.seen.Get(v.fresh, func() (*sight, error) {
		ctx := context.WithoutCancel(ctx) // the next page has it, too
		if err := mayReadNodes(ctx, v.client); err != nil {
			return nil, err
		}
		now := time.Now()
		allocs, err := allocations(ctx, v.client)
		return &sight{now, allocs}, err
	})
}

// sessions are the viewers who have signed in. A browser has a random ID and not the token, since it sends a host's cookies to every
// port of that host.
type sessions struct {
	mu  sync.Mutex
	all map[string]*viewer
}

// start returns the ID of a new session.
func (s *sessions) start(v *viewer) string {
	s.mu.Lock()
	defer s.mu.Unlock()
	if s.all == nil {
		s.all = make(map[string]*viewer)
	}
	if len(s.all) >= mostSessions {
		s.dropOldest()
	}
	id := rand.Text()
	s.all[id] = v
	time.AfterFunc(sessionLife, func() { s.drop(id) })
	return id
}

// dropOldest needs the lock.
func (s *sessions) dropOldest() {
	var oldest string
	for id, v := range s.all {
		if oldest == "" || v.signedIn.Before(s.all[oldest].signedIn) {
			oldest = id
		}
	}
	delete(s.all, oldest)
}

func (s *sessions) drop(id string) {
	s.mu.Lock()
	defer s.mu.Unlock()
	delete(s.all, id)
}

// of returns the viewer of a request, or nil.
func (s *sessions) of(r *http.Request) *viewer {
	cookie, err := r.Cookie(cookieName(r))
	if err != nil {
		return nil
	}
	s.mu.Lock()
	defer s.mu.Unlock()
	return s.all[cookie.Value]
}

// end ends the session of a request, if it has one.
func (s *sessions) end(w http.ResponseWriter, r *http.Request) {
	cookie, err := r.Cookie(cookieName(r))
	if err != nil {
		return
	}
	s.drop(cookie.Value)
	setCookie(w, r, "", -1)
}

// encrypted reports whether the browser's connection is. What a proxy says of that can only make the cookie stricter.
func encrypted(r *http.Request) bool {
	return r.TLS != nil || r.Header.Get("X-Forwarded-Proto") == "https"
}

// cookieName is the name of the session's cookie. Browsers take one with __Host- from nobody but this host, by TLS.
func cookieName(r *http.Request) string {
	if encrypted(r) {
		return "__Host-tranche-fleet"
	}
	return "tranche-fleet"
}

// setCookie sets the session's cookie until the browser ends, or, with a negative maxAge, removes it.
func setCookie(w http.ResponseWriter, r *http.Request, id string, maxAge int) {
	http.SetCookie(w, &http.Cookie{ //nolint:gosec // by plain HTTP it listens on this machine only
		Name: cookieName(r), Value: id, Path: "/", MaxAge: maxAge, Secure: encrypted(r), HttpOnly: true, SameSite: http.SameSiteStrictMode,
	})
}
