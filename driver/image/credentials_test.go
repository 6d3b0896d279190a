package image

import (
	"context"
	"encoding/base64"
	"fmt"
	"os"
	"path/filepath"
	"strings"
	"testing"
	"time"

	"github.com/shoenig/test/must"
	"github.com/shoenig/test/wait"

	"github.com/tranche-gpu/tranche/driver/image/credentialtest"
)

const testSecret = "hunter2-is-secret"

func TestAuth_Check(t *testing.T) {
	cases := []struct {
		name string
		auth Auth
		want string
	}{
		{"none", Auth{}, ""},
		{"for the image's registry", Auth{Username: "u", Password: testSecret}, ""},
		{"a host", Auth{Username: "u", Password: testSecret, ServerAddress: "ghcr.io"}, ""},
		{"a port", Auth{Username: "u", Password: testSecret, ServerAddress: "localhost:5000"}, ""},
		{"a URL", Auth{Username: "u", Password: testSecret, ServerAddress: "https://index.docker.io/v1/"}, ""},
		{"no username", Auth{Password: testSecret}, `option auth.username = ""`},
		{"no password", Auth{Username: "u"}, "option auth.password must not be empty"},
		{"only a server", Auth{ServerAddress: "ghcr.io"}, "option auth.username"},
		{"no server", Auth{Username: "u", Password: testSecret, ServerAddress: "not a host"},
			`option auth.server_address = "not a host": must be the name of a registry`},
	}
	for _, c := range cases {
		t.Run(c.name, func(t *testing.T) {
			err := Options{Image: "busybox", Auth: c.auth}.Check()
			if c.want == "" {
				must.NoError(t, err)
				return
			}
			must.ErrorContains(t, err, c.want)
			must.StrNotContains(t, err.Error(), testSecret)
		})
	}
}

func TestCredentials_ForWhom(t *testing.T) {
	// It answers with the server that it was asked for, and knows nothing of some.
	credentialtest.Helper(t, "echo", `[ "$1" = get ] || exit 9
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
	}}`, credentialtest.BasicAuth("hub", "h"), credentialtest.BasicAuth("gh", "g:h"), credentialtest.BasicAuth("old", "o"))
	task := Auth{Username: "task", Password: "t"}
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
			task: Auth{"task", "t", "https://mirror.example.com:5000/v2/"}}, "", "", "mirror.example.com:5000",
			credential{"task", "t", "the task's auth block"}},
		{"the task's, not for its image's registry if it names another", &credentialSearch{registry: "ghcr.io",
			task: Auth{"task", "t", "mirror.example.com"}}, auths, "", "ghcr.io",
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
				search.plugin.Config = credentialtest.DockerConfig(t, "%s", c.config)
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
	credentialtest.Helper(t, "says", `echo "the vault is sealed"; exit 3`)
	credentialtest.Helper(t, "tells", `printf '{"Username":"u","Secret":"`+testSecret+`"}'; exit 3`)
	credentialtest.Helper(t, "babbles", `echo `+testSecret+` no JSON; exit 0`)
	credentialtest.Helper(t, "floods", `cat /dev/zero`)
	credentialtest.Helper(t, "hangs", `sleep 600 & wait`)
	cases := []struct {
		name   string
		plugin CredentialSources
		wants  []string
	}{
		{"no such config", CredentialSources{Config: "/none/config.json"}, []string{`auth.config = "/none/config.json"`, "no such file"}},
		{"a config that is none", CredentialSources{Config: credentialtest.DockerConfig(t, "{")}, []string{"auth.config", "unexpected EOF"}},
		{"a config with a bad entry", CredentialSources{Config: credentialtest.DockerConfig(t, `{"auths": {"ghcr.io": {"auth": "%s"}}}`,
			base64.StdEncoding.EncodeToString([]byte(testSecret)))}, []string{"auth.config"}},
		{"no such helper", CredentialSources{Helper: "none"},
			[]string{`auth.helper = "none"`, "docker-credential-none is not on the PATH"}},
		{"a helper elsewhere", CredentialSources{Config: credentialtest.DockerConfig(t, `{"credsStore": "../../bin/sh"}`)}, []string{"../../bin/sh"}},
		{"a helper that fails", CredentialSources{Helper: "says"}, []string{"exit status 3", "the vault is sealed"}},
		{"a helper that fails and tells", CredentialSources{Helper: "tells"}, []string{"docker-credential-tells failed: exit status 3"}},
		{"a helper that babbles", CredentialSources{Helper: "babbles"}, []string{"docker-credential-babbles", "no JSON object"}},
		{"a helper that floods", CredentialSources{Helper: "floods"}, []string{"docker-credential-floods", "longer than 1048576 bytes"}},
		{"a helper that hangs", CredentialSources{Helper: "hangs"}, []string{"docker-credential-hangs did not answer within 300ms"}},
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
			must.Less(t, time.Minute, time.Since(began))
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
	search := &credentialSearch{plugin: CredentialSources{Helper: "x"}, ask: func(string, string) (credential, error) {
		asked++
		return credential{username: "u", secret: "s"}, nil
	}}
	for _, host := range []string{"docker.io", "registry-1.docker.io", "docker.io"} {
		_, _, err := search.of(host)
		must.NoError(t, err)
	}
	must.Eq(t, 1, asked)
}

func TestHelper_EndsWithWhatItStarted(t *testing.T) {
	file := filepath.Join(t.TempDir(), "pid")
	credentialtest.Helper(t, "forks", "sleep 600 & echo $! > "+file+"; wait")
	ctx, cancel := context.WithCancel(t.Context())
	done := make(chan error, 1)
	go func() {
		_, err := askHelper(ctx, time.Minute, "forks", "ghcr.io")
		done <- err
	}()
	var pid int
	eventually(t, func() bool {
		data, _ := os.ReadFile(file)
		n, _ := fmt.Sscan(string(data), &pid)
		return n == 1
	})
	must.True(t, runs(pid))
	cancel()
	must.Error(t, <-done)
	eventually(t, func() bool { return !runs(pid) })
}

// eventually waits for what another process does.
func eventually(t *testing.T, condition func() bool) {
	t.Helper()
	must.Wait(t, wait.InitialSuccess(wait.BoolFunc(condition), wait.Timeout(time.Minute), wait.Gap(20*time.Millisecond)))
}

// runs reports whether the process runs, a zombie not counting.
func runs(pid int) bool {
	data, err := os.ReadFile(fmt.Sprintf("/proc/%d/stat", pid))
	_, rest, _ := strings.Cut(string(data), ") ")
	return err == nil && !strings.HasPrefix(rest, "Z")
}
