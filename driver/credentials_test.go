package driver

import (
	"bytes"
	"context"
	"encoding/base64"
	"fmt"
	"net/http"
	"os"
	"path/filepath"
	"strings"
	"sync"
	"testing"
	"time"

	"github.com/containerd/containerd/v2/core/content"
	"github.com/hashicorp/go-hclog"
	"github.com/shoenig/test/must"

	"github.com/tranche-gpu/tranche/driver/naming"
)

const testSecret = "hunter2-is-secret"

func TestAuthConfig_Check(t *testing.T) {
	cases := []struct {
		name string
		auth AuthConfig
		want string
	}{
		{"none", AuthConfig{}, ""},
		{"for the image's registry", AuthConfig{Username: "u", Password: testSecret}, ""},
		{"a host", AuthConfig{Username: "u", Password: testSecret, ServerAddress: "ghcr.io"}, ""},
		{"a port", AuthConfig{Username: "u", Password: testSecret, ServerAddress: "localhost:5000"}, ""},
		{"a URL", AuthConfig{Username: "u", Password: testSecret, ServerAddress: "https://index.docker.io/v1/"}, ""},
		{"no username", AuthConfig{Password: testSecret}, `option auth.username = ""`},
		{"no password", AuthConfig{Username: "u"}, "option auth.password must not be empty"},
		{"only a server", AuthConfig{ServerAddress: "ghcr.io"}, "option auth.username"},
		{"no server", AuthConfig{Username: "u", Password: testSecret, ServerAddress: "not a host"},
			`option auth.server_address = "not a host": must be the name of a registry`},
	}
	for _, c := range cases {
		t.Run(c.name, func(t *testing.T) {
			task := TaskConfig{Image: "busybox", Auth: c.auth}
			err := task.checkImage(&Config{})
			if c.want == "" {
				must.NoError(t, err)
				return
			}
			must.ErrorContains(t, err, c.want)
			must.StrNotContains(t, err.Error(), testSecret)
		})
	}
}

// helper puts a credential helper on PATH.
func helper(t *testing.T, suffix, script string) {
	t.Helper()
	dir := t.TempDir()
	must.NoError(t, os.WriteFile(filepath.Join(dir, "docker-credential-"+suffix), []byte("#!/bin/sh\n"+script), 0o755))
	t.Setenv("PATH", dir+":"+os.Getenv("PATH"))
}

// dockerConfig writes a config.json.
func dockerConfig(t *testing.T, format string, args ...any) string {
	t.Helper()
	file := filepath.Join(t.TempDir(), "config.json")
	must.NoError(t, os.WriteFile(file, fmt.Appendf(nil, format, args...), 0o600))
	return file
}

func basicAuth(username, password string) string {
	return base64.StdEncoding.EncodeToString([]byte(username + ":" + password))
}

func TestCredentials_ForWhom(t *testing.T) {
	// It answers with the server that it was asked for, and knows nothing of some.
	helper(t, "echo", `[ "$1" = get ] || exit 9
read server
case $server in
unknown*) echo "credentials not found in native keychain"; exit 1;;
token*) printf '{"ServerURL":"%s","Username":"<token>","Secret":"a token"}' "$server";;
*) printf '{"ServerURL":"%s","Username":"helper","Secret":"for %s"}' "$server" "$server";;
esac`)
	auths := fmt.Sprintf(`{"auths": {
		"https://index.docker.io/v1/": {"auth": %q},
		"ghcr.io": {"auth": %q},
		"empty.example.com": {},
		"identity.example.com": {"identitytoken": "an identity"},
		"https://old.example.com/v1/": {"auth": %q}
	}}`, basicAuth("hub", "h"), basicAuth("gh", "g:h"), basicAuth("old", "o"))
	task := AuthConfig{Username: "task", Password: "t"}
	cases := []struct {
		name   string
		search *credentialSearch
		config string
		helper string
		host   string
		want   credential
	}{
		{"nothing", &credentialSearch{}, "", "", "ghcr.io", credential{}},
		{"the task's, for its image's registry", &credentialSearch{task: task, registry: "ghcr.io"}, auths, "echo", "ghcr.io",
			credential{"task", "t", "the task's auth block"}},
		{"the task's, for nobody else", &credentialSearch{task: task, registry: "ghcr.io"}, "", "", "evil.example.com",
			credential{}},
		{"the task's, for the default registry", &credentialSearch{task: task, registry: "docker.io"}, "", "",
			"registry-1.docker.io", credential{"task", "t", "the task's auth block"}},
		{"the task's, for the server that it names", &credentialSearch{registry: "docker.io",
			task: AuthConfig{"task", "t", "https://mirror.example.com:5000/v2/"}}, "", "", "mirror.example.com:5000",
			credential{"task", "t", "the task's auth block"}},
		{"the task's, not for its image's registry if it names another", &credentialSearch{registry: "ghcr.io",
			task: AuthConfig{"task", "t", "mirror.example.com"}}, auths, "", "ghcr.io",
			credential{"gh", "g:h", "the plugin's auth.config"}},
		{"a config file", &credentialSearch{}, auths, "echo", "ghcr.io", credential{"gh", "g:h", "the plugin's auth.config"}},
		{"the default registry", &credentialSearch{}, auths, "", "registry-1.docker.io",
			credential{"hub", "h", "the plugin's auth.config"}},
		{"an address of old", &credentialSearch{}, auths, "", "old.example.com",
			credential{"old", "o", "the plugin's auth.config"}},
		{"an identity token", &credentialSearch{}, auths, "", "identity.example.com",
			credential{"", "an identity", "the plugin's auth.config"}},
		{"an empty entry", &credentialSearch{}, auths, "", "empty.example.com", credential{}},
		{"no entry, then the helper", &credentialSearch{}, auths, "echo", "quay.io",
			credential{"helper", "for quay.io", "the plugin's auth.helper"}},
		{"credHelpers", &credentialSearch{}, `{"credHelpers": {"quay.io": "echo"}}`, "", "quay.io",
			credential{"helper", "for quay.io", "the plugin's auth.config"}},
		{"credHelpers for another", &credentialSearch{}, `{"credHelpers": {"quay.io": "echo"}}`, "", "ghcr.io", credential{}},
		{"credsStore", &credentialSearch{}, `{"credsStore": "echo", "auths": {"ghcr.io": {}}}`, "", "ghcr.io",
			credential{"helper", "for ghcr.io", "the plugin's auth.config"}},
		{"a helper", &credentialSearch{}, "", "echo", "registry-1.docker.io",
			credential{"helper", "for https://index.docker.io/v1/", "the plugin's auth.helper"}},
		{"a helper with a token", &credentialSearch{}, "", "echo", "token.example.com",
			credential{"", "a token", "the plugin's auth.helper"}},
		{"a helper that knows nothing", &credentialSearch{}, "", "echo", "unknown.example.com", credential{}},
	}
	for _, c := range cases {
		t.Run(c.name, func(t *testing.T) {
			search := c.search
			search.plugin.Helper = c.helper
			if c.config != "" {
				search.plugin.Config = dockerConfig(t, "%s", c.config)
			}
			search.ask = func(suffix, server string) (credential, error) {
				return askHelper(t.Context(), time.Minute, suffix, server)
			}
			username, secret, err := search.of(c.host)
			must.NoError(t, err)
			must.Eq(t, c.want, credential{username, secret, search.used()})
		})
	}
}

func TestCredentials_Failures(t *testing.T) {
	helper(t, "says", `echo "the vault is sealed"; exit 3`)
	helper(t, "tells", `printf '{"Username":"u","Secret":"`+testSecret+`"}'; exit 3`)
	helper(t, "babbles", `echo `+testSecret+` no JSON; exit 0`)
	helper(t, "floods", `cat /dev/zero`)
	helper(t, "hangs", `sleep 600 & wait`)
	cases := []struct {
		name   string
		plugin PluginAuth
		wants  []string
	}{
		{"no such config", PluginAuth{Config: "/none/config.json"}, []string{`auth.config = "/none/config.json"`, "no such file"}},
		{"a config that is none", PluginAuth{Config: dockerConfig(t, "{")}, []string{"auth.config", "unexpected EOF"}},
		{"a config with a bad entry", PluginAuth{Config: dockerConfig(t, `{"auths": {"ghcr.io": {"auth": "%s"}}}`,
			base64.StdEncoding.EncodeToString([]byte(testSecret)))}, []string{"auth.config"}},
		{"no such helper", PluginAuth{Helper: "none"},
			[]string{`auth.helper = "none"`, "docker-credential-none is not on the PATH"}},
		{"a helper elsewhere", PluginAuth{Config: dockerConfig(t, `{"credsStore": "../../bin/sh"}`)}, []string{"../../bin/sh"}},
		{"a helper that fails", PluginAuth{Helper: "says"}, []string{"exit status 3", "the vault is sealed"}},
		{"a helper that fails and tells", PluginAuth{Helper: "tells"}, []string{"docker-credential-tells failed: exit status 3"}},
		{"a helper that babbles", PluginAuth{Helper: "babbles"}, []string{"docker-credential-babbles", "no JSON object"}},
		{"a helper that floods", PluginAuth{Helper: "floods"}, []string{"docker-credential-floods", "longer than 1048576 bytes"}},
		{"a helper that hangs", PluginAuth{Helper: "hangs"}, []string{"docker-credential-hangs did not answer within 300ms"}},
	}
	for _, c := range cases {
		t.Run(c.name, func(t *testing.T) {
			warned, patience := error(nil), time.Minute
			if c.plugin.Helper == "hangs" {
				patience = 300 * time.Millisecond
			}
			search := &credentialSearch{
				plugin: c.plugin,
				warn:   func(err error) { warned = err },
				ask: func(suffix, server string) (credential, error) {
					return askHelper(t.Context(), patience, suffix, server)
				},
			}
			began := time.Now()
			_, _, err := search.of("ghcr.io")
			must.Less(t, 10*time.Second, time.Since(began))
			for _, want := range append(c.wants, "credentials for ghcr.io") {
				must.ErrorContains(t, err, want)
			}
			must.StrNotContains(t, err.Error(), testSecret)
			must.ErrorIs(t, search.failure(), err)
			must.NoError(t, warned)

			search.softFail = true
			username, secret, err := search.of("ghcr.io")
			must.NoError(t, err)
			must.Eq(t, "", username+secret)
			must.ErrorContains(t, warned, c.wants[0])
		})
	}
}

func TestCredentials_AskedOnce(t *testing.T) {
	asked := 0
	search := &credentialSearch{plugin: PluginAuth{Helper: "x"}, ask: func(string, string) (credential, error) {
		asked++
		return credential{username: "u", secret: "s"}, nil
	}}
	for _, host := range []string{"docker.io", "registry-1.docker.io", "docker.io"} {
		_, _, err := search.of(host)
		must.NoError(t, err)
	}
	must.Eq(t, 1, asked)
}

// demand has the registry want credentials, as Basic authentication.
func demand(username, password string) spoiler {
	return func(w http.ResponseWriter, r *http.Request, next http.Handler) {
		if u, p, ok := r.BasicAuth(); ok && u == username && p == password {
			next.ServeHTTP(w, r)
			return
		}
		answer(http.StatusUnauthorized)(w, r, next)
	}
}

// lockedBuffer may be written to and read by several goroutines.
type lockedBuffer struct {
	mu sync.Mutex
	bytes.Buffer
}

func (b *lockedBuffer) Write(data []byte) (int, error) {
	b.mu.Lock()
	defer b.mu.Unlock()
	return b.Buffer.Write(data)
}

func (b *lockedBuffer) String() string {
	b.mu.Lock()
	defer b.mu.Unlock()
	return b.Buffer.String()
}

// noSecret asserts that the secret is in no task event, log line, or anything that containerd would show.
func (d *testDriver) noSecret(logs *lockedBuffer) {
	d.t.Helper()
	text := strings.Join(d.events.all(), "\n") + logs.String()
	records, err := d.client.ImageService().List(d.ctx)
	must.NoError(d.t, err)
	containers, err := d.client.ContainerService().List(d.ctx)
	must.NoError(d.t, err)
	leases, err := d.client.LeasesService().List(d.ctx)
	must.NoError(d.t, err)
	text += fmt.Sprint(records, leases)
	for _, c := range containers {
		text += fmt.Sprint(c.Labels, string(c.Spec.GetValue()))
	}
	err = d.client.ContentStore().Walk(d.ctx, func(info content.Info) error {
		text += fmt.Sprint(info.Labels)
		return nil
	})
	must.NoError(d.t, err)
	must.StrContains(d.t, text, naming.Owned)
	for _, secret := range []string{testSecret, basicAuth("user", testSecret)} {
		must.StrNotContains(d.t, text, secret)
	}
}

func TestImage_Credentials(t *testing.T) {
	n := requireNode(t)
	reg := newTestRegistry(t)
	helper(t, "test", `read server; printf '{"Username":"user","Secret":"`+testSecret+`"}'`)
	helper(t, "broken", `echo "the vault is sealed"; exit 1`)
	config := dockerConfig(t, `{"auths": {%q: {"auth": %q}}}`, reg.host, basicAuth("user", testSecret))
	right := AuthConfig{Username: "user", Password: testSecret}
	wrong := AuthConfig{Username: "other", Password: testSecret}
	cases := []struct {
		name   string
		public bool // the registry wants no credentials
		task   AuthConfig
		soft   bool
		plugin PluginAuth
		want   string
	}{
		{"the task's", false, right, false, PluginAuth{}, ""},
		{"the task's first", false, right, false, PluginAuth{Helper: "broken"}, ""},
		{"the task's for another server", false, AuthConfig{"user", testSecret, "ghcr.io"}, false, PluginAuth{},
			"without credentials"},
		{"the plugin's config", false, AuthConfig{}, false, PluginAuth{Config: config}, ""},
		{"the plugin's helper", false, AuthConfig{}, false, PluginAuth{Helper: "test"}, ""},
		{"none", false, AuthConfig{}, false, PluginAuth{}, "without credentials"},
		{"wrong ones", false, wrong, false, PluginAuth{}, "with the credentials from the task's auth block"},
		{"a helper that fails", false, AuthConfig{}, false, PluginAuth{Helper: "broken"},
			"the vault is sealed; mend this, or set auth_soft_fail"},
		{"a helper that fails, softly", false, AuthConfig{}, true, PluginAuth{Helper: "broken"}, "without credentials"},
		{"nobody asks", true, AuthConfig{}, false, PluginAuth{Helper: "broken"}, ""},
	}
	for i, c := range cases {
		t.Run(c.name, func(t *testing.T) {
			config := n.config()
			config.Auth = c.plugin
			d := newTestDriverWith(t, n, config)
			logs := &lockedBuffer{}
			d.driver.logger.(hclog.InterceptLogger).RegisterSink(hclog.NewSinkAdapter(&hclog.LoggerOptions{
				Level: hclog.Trace, Output: logs}))
			reg.spoilWith(nil)
			ref, layer := reg.unique(t, n.busybox, fmt.Sprintf("private/%d:1", i), 1)
			if !c.public {
				reg.spoilWith(demand("user", testSecret))
			}
			edit := func(o *TaskConfig) { o.Image, o.Auth, o.AuthSoftFail = ref, c.task, c.soft }
			if c.want == "" {
				d.run(d.task("echo there", edit), "there")
			} else {
				err := d.startFails(edit)
				must.ErrorContains(t, err, c.want)
				must.StrNotContains(t, err.Error(), testSecret)
				d.nothingPulled(ref, layer)
			}
			if c.soft {
				must.Eq(t, 1, d.events.said("Pulling image "+ref+" without credentials: "))
			}
			d.noSecret(logs)
		})
	}
}

// TestImage_BearerToken goes the way of most public registries: they send the client to another server for a token.
func TestImage_BearerToken(t *testing.T) {
	d := newTestDriver(t)
	reg := newTestRegistry(t)
	ref, _ := reg.unique(t, d.node.busybox, "private/token:1", 1)
	reg.spoilWith(func(w http.ResponseWriter, r *http.Request, next http.Handler) {
		username, password, _ := r.BasicAuth()
		switch {
		case r.URL.Path == "/token" && r.Method == http.MethodGet && username == "user" && password == testSecret:
			fmt.Fprint(w, `{"token": "a-token"}`)
		case r.URL.Path == "/token" && r.Method == http.MethodPost:
			http.Error(w, "no such thing", http.StatusNotFound)
		case r.Header.Get("Authorization") == "Bearer a-token":
			next.ServeHTTP(w, r)
		default:
			w.Header().Set("WWW-Authenticate", fmt.Sprintf(`Bearer realm="http://%s/token",service="test"`, reg.host))
			http.Error(w, "no", http.StatusUnauthorized)
		}
	})
	err := d.startFails(func(c *TaskConfig) { c.Image, c.Auth = ref, AuthConfig{Username: "user", Password: "wrong"} })
	must.ErrorContains(t, err, "with the credentials from the task's auth block")
	d.run(d.task("echo there", func(c *TaskConfig) {
		c.Image, c.Auth = ref, AuthConfig{Username: "user", Password: testSecret}
	}), "there")
}

func TestHelper_EndsWithWhatItStarted(t *testing.T) {
	file := filepath.Join(t.TempDir(), "pid")
	helper(t, "forks", "sleep 600 & echo $! > "+file+"; wait")
	ctx, cancel := context.WithCancel(t.Context())
	done := make(chan error, 1)
	go func() {
		_, err := askHelper(ctx, time.Minute, "forks", "ghcr.io")
		done <- err
	}()
	var pid int
	eventually(t, "the helper's child", func() bool {
		data, _ := os.ReadFile(file)
		n, _ := fmt.Sscan(string(data), &pid)
		return n == 1
	})
	must.True(t, alive(pid))
	cancel()
	must.Error(t, <-done)
	eventually(t, "the end of the helper's child", func() bool { return !alive(pid) })
}
