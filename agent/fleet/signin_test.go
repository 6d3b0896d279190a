package fleet

import (
	"bytes"
	"net"
	"net/http"
	"net/http/httptest"
	"net/url"
	"path/filepath"
	"strings"
	"testing"
	"testing/synctest"
	"time"

	"github.com/hashicorp/go-hclog"
	"github.com/shoenig/test/must"
)

// TestSignIn keeps the token from the browser, which gets an ID that is worth nothing elsewhere.
func TestSignIn(t *testing.T) {
	f := start(t, newNomad(t, all()))
	b := openBrowser(t, f)
	for _, path := range paths {
		status, body := b.get(path)
		must.Eq(t, http.StatusForbidden, status)
		must.StrContains(t, body, `<form method="post" action="/sign-in">`)
		must.StrContains(t, body, rights)
		must.StrNotContains(t, body, "gpu-a")
	}
	w := b.post(signInPath, url.Values{"token": {" " + tokenOfAll + "\n"}})
	must.Eq(t, http.StatusSeeOther, w.Code)
	must.Eq(t, "/", w.Header().Get("Location"))
	must.MapLen(t, 1, b.cookies)
	c := b.cookies["tranche-fleet"]
	must.True(t, c.HttpOnly && c.SameSite == http.SameSiteStrictMode && c.MaxAge == 0 && c.Path == "/", must.Sprint(c))
	status, body := b.get("/")
	must.Eq(t, http.StatusOK, status)
	must.StrContains(t, body, `action="/sign-out"`)

	must.Eq(t, http.StatusSeeOther, b.post(signInPath, url.Values{"token": {tokenOfResearch}}).Code)
	must.MapLen(t, 1, f.sessions.all, must.Sprint("the session before goes on"))
	stolen := *b.cookies["tranche-fleet"]
	must.NotEq(t, c.Value, stolen.Value)
	must.Eq(t, http.StatusSeeOther, b.post(signOutPath, nil).Code)
	must.MapEmpty(t, b.cookies)
	b.cookies[stolen.Name] = &stolen
	status, _ = b.get("/")
	must.Eq(t, http.StatusForbidden, status)
}

func TestSignIn_Refused(t *testing.T) {
	f := start(t, newNomad(t, all()))
	for token, want := range map[string]string{
		"":                                 "The form has no token.",
		"\n":                               "The form has no token.",
		"a\r\nX-Nomad-Token:":              "This is no token of Nomad",
		"Gerät":                            "This is no token of Nomad",
		"99999999-unknown":                 "Nomad does not take the token: list Nomad&#39;s nodes: Unexpected response code: 403 (ACL token not found)",
		tokenOfNothing:                     "list Nomad&#39;s allocations: Unexpected response code: 403 (Permission denied). The token needs node:read",
		tokenWithNoNode:                    "(Permission denied). The token needs node:read",
		strings.Repeat("x", mostFormBytes): "The form has no token.",
	} {
		w := openBrowser(t, f).post(signInPath, url.Values{"token": {token}})
		must.Between(t, 400, w.Code, 403)
		must.StrContains(t, w.Body.String(), want)
		must.SliceEmpty(t, w.Result().Cookies())
	}
	must.MapEmpty(t, f.sessions.all)
	must.Eq(t, http.StatusSeeOther, openBrowser(t, f).post(signOutPath, nil).Code)
}

// TestSignIn_Encrypted has a cookie that browsers send by TLS alone.
func TestSignIn_Encrypted(t *testing.T) {
	f := start(t, newNomad(t, all()))
	server := httptest.NewTLSServer(f.Handler())
	defer server.Close()
	client := server.Client()
	client.CheckRedirect = func(*http.Request, []*http.Request) error { return http.ErrUseLastResponse }
	response, err := client.PostForm(server.URL+signInPath, url.Values{"token": {tokenOfAll}})
	must.NoError(t, err)
	must.NoError(t, response.Body.Close())
	must.Len(t, 1, response.Cookies())
	must.Eq(t, "__Host-tranche-fleet", response.Cookies()[0].Name)
	must.True(t, response.Cookies()[0].Secure)
}

// TestSession_Ends with its token, and for those who came first when there are too many.
func TestSession_Ends(t *testing.T) {
	n := newNomad(t, all())
	f := start(t, n)
	b := signedIn(t, f, tokenOfAll)
	status, _ := b.get("/")
	must.Eq(t, http.StatusOK, status)
	n.allow(tokenOfAll, nil)
	status, _ = b.get("/")
	must.Eq(t, http.StatusOK, status) // what Nomad has answered is kept for some seconds
	for _, v := range f.sessions.all {
		v.seen.Drop()
	}
	status, body := b.get("/")
	must.Eq(t, http.StatusForbidden, status)
	must.StrContains(t, body, "Nomad does not take your token any more")
	must.MapEmpty(t, f.sessions.all)

	first := f.sessions.start(&viewer{signedIn: time.Now().Add(-time.Minute)})
	for range mostSessions {
		f.sessions.start(&viewer{signedIn: time.Now()})
	}
	must.MapLen(t, mostSessions, f.sessions.all)
	must.MapNotContainsKey(t, f.sessions.all, first)
}

func TestSession_EndsInTime(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		var s sessions
		sessions := func() int {
			synctest.Wait()
			s.mu.Lock()
			defer s.mu.Unlock()
			return len(s.all)
		}
		s.start(new(viewer))
		time.Sleep(sessionLife / 2)
		s.start(new(viewer))
		must.Eq(t, 2, sessions())
		time.Sleep(sessionLife / 2)
		must.Eq(t, 1, sessions())
		time.Sleep(sessionLife)
		must.Eq(t, 0, sessions())
	})
}

// TestSession_EndsForOne does not take a list from another viewer that was refused to one.
func TestSession_EndsForOne(t *testing.T) {
	n := newNomad(t, all())
	f := start(t, n)
	one, other := signedIn(t, f, tokenOfAll), signedIn(t, f, tokenOfResearch)
	n.allow(tokenOfAll, nil) // after the check, and before the first list of nodes
	status, _ := one.get("/")
	must.Eq(t, http.StatusForbidden, status)
	status, _ = other.get("/")
	must.Eq(t, http.StatusOK, status)
}

// TestAnonymous needs no token where Nomad wants none.
func TestAnonymous(t *testing.T) {
	n := newNomad(t, all())
	n.allow("", []string{"research"})
	b := openBrowser(t, start(t, n))
	status, body := b.get("/")
	must.Eq(t, http.StatusOK, status)
	must.StrContains(t, body, "train")
	must.StrNotContains(t, body, "confidential")
	must.StrContains(t, body, `<a href="/sign-in">Sign in</a>`)
	status, _ = b.get(signInPath)
	must.Eq(t, http.StatusOK, status)
}

// TestNomad_Unreachable tells viewers that Nomad does not answer, and the log why.
func TestNomad_Unreachable(t *testing.T) {
	n := newNomad(t, all())
	var log bytes.Buffer
	f := startWith(t, n, &log)
	b := signedIn(t, f, tokenOfAll)
	n.Close()
	for _, v := range f.sessions.all {
		v.seen.Drop()
	}
	status, body := b.get("/")
	must.Eq(t, http.StatusBadGateway, status)
	must.StrContains(t, body, "The log of tranche fleet says why.")
	must.StrNotContains(t, body, "127.0.0.1")
	must.MapLen(t, 1, f.sessions.all)
	w := openBrowser(t, f).post(signInPath, url.Values{"token": {tokenOfResearch}})
	must.Eq(t, http.StatusBadGateway, w.Code)
	must.Eq(t, 2, strings.Count(log.String(), "check that it runs, and NOMAD_ADDR in the environment: error="))
	must.StrNotContains(t, log.String(), "secret")
}

// TestFromEnvironment_Addresses refuses those on the way to which tokens can be read.
func TestFromEnvironment_Addresses(t *testing.T) {
	for address, ok := range map[string]bool{
		"": true, "http://127.0.0.1:4646": true, "http://localhost:4646": true, "http://[::1]:4646": true,
		"https://nomad.example.com:4646": true, "unix:///secrets/api.sock": true,
		"http://nomad.example.com:4646": false, "http://10.0.0.1:4646": false, "http://127.0.0.1.evil.example.com": false,
		"https://user:password@nomad.example.com": false, "https://": false, "nomad.example.com:4646": false, "unix://api.sock": false,
		"ftp://127.0.0.1": false,
	} {
		t.Setenv("NOMAD_ADDR", address)
		_, err := FromEnvironment()
		must.Eq(t, ok, err == nil, must.Sprintf("%q: %v", address, err))
		if err != nil {
			must.StrContains(t, err.Error(), "NOMAD_ADDR")
			must.StrNotContains(t, err.Error(), "password")
		}
	}
	t.Setenv("NOMAD_ADDR", "https://nomad.example.com:4646")
	t.Setenv("NOMAD_CACERT", "/no/such/file")
	_, err := FromEnvironment()
	must.ErrorContains(t, err, "NOMAD_CACERT")
}

// TestFromEnvironment_Socket queries Nomad as a task does.
func TestFromEnvironment_Socket(t *testing.T) {
	n := all()
	newNomad(t, n)
	f := start(t, n)
	path := filepath.Join(t.TempDir(), "api.sock")
	l, err := net.Listen("unix", path)
	must.NoError(t, err)
	server := &http.Server{Handler: n.Config.Handler}
	go func() { _ = server.Serve(l) }()
	defer server.Close()
	t.Setenv("NOMAD_ADDR", "unix://"+path)
	f.Nomad, err = FromEnvironment()
	must.NoError(t, err)
	status, _ := signedIn(t, f, tokenOfAll).get("/")
	must.Eq(t, http.StatusOK, status)
}

// TestFromEnvironment_Elsewhere sends no token where Nomad redirects to.
func TestFromEnvironment_Elsewhere(t *testing.T) {
	asked := 0
	elsewhere := httptest.NewServer(http.HandlerFunc(func(http.ResponseWriter, *http.Request) { asked++ }))
	defer elsewhere.Close()
	redirects := httptest.NewServer(http.RedirectHandler(elsewhere.URL+"/v1/nodes", http.StatusTemporaryRedirect))
	defer redirects.Close()
	t.Setenv("NOMAD_ADDR", redirects.URL)
	nomad, err := FromEnvironment()
	must.NoError(t, err)
	f, err := New(Options{Nomad: nomad, Logger: hclog.NewNullLogger()})
	must.NoError(t, err)
	w := openBrowser(t, f).post(signInPath, url.Values{"token": {tokenOfAll}})
	must.Eq(t, http.StatusBadGateway, w.Code)
	must.Zero(t, asked)
}
