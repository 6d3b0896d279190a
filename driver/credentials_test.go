package driver

import (
	"bytes"
	"fmt"
	"net/http"
	"strings"
	"sync"
	"testing"

	"github.com/containerd/containerd/v2/core/content"
	"github.com/hashicorp/go-hclog"
	"github.com/shoenig/test/must"

	"github.com/tranche-gpu/tranche/driver/image"
	"github.com/tranche-gpu/tranche/driver/image/credentialtest"
	"github.com/tranche-gpu/tranche/driver/naming"
	"github.com/tranche-gpu/tranche/driver/spec"
)

const testSecret = "hunter2-is-secret"

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
	for _, secret := range []string{testSecret, credentialtest.BasicAuth("user", testSecret)} {
		must.StrNotContains(d.t, text, secret)
	}
}

func TestImage_Credentials(t *testing.T) {
	n := requireNode(t)
	reg := newTestRegistry(t)
	credentialtest.Helper(t, "test", `read server; printf '{"Username":"user","Secret":"`+testSecret+`"}'`)
	credentialtest.Helper(t, "broken", `echo "the vault is sealed"; exit 1`)
	config := credentialtest.DockerConfig(t, `{"auths": {%q: {"auth": %q}}}`, reg.host, credentialtest.BasicAuth("user", testSecret))
	right := image.Auth{Username: "user", Password: testSecret}
	wrong := image.Auth{Username: "other", Password: testSecret}
	cases := []struct {
		name   string
		public bool // the registry wants no credentials
		task   image.Auth
		soft   bool
		plugin image.CredentialSources
		want   string
	}{
		{"the task's", false, right, false, image.CredentialSources{}, ""},
		{"the task's first", false, right, false, image.CredentialSources{Helper: "broken"}, ""},
		{"the task's for another server", false,
			image.Auth{Username: "user", Password: testSecret, ServerAddress: "ghcr.io"}, false, image.CredentialSources{},
			"without credentials"},
		{"the plugin's config", false, image.Auth{}, false, image.CredentialSources{Config: config}, ""},
		{"the plugin's helper", false, image.Auth{}, false, image.CredentialSources{Helper: "test"}, ""},
		{"none", false, image.Auth{}, false, image.CredentialSources{}, "without credentials"},
		{"wrong ones", false, wrong, false, image.CredentialSources{}, "with the credentials from the task's auth block"},
		{"a helper that fails", false, image.Auth{}, false, image.CredentialSources{Helper: "broken"},
			"the vault is sealed; mend this, or set auth_soft_fail"},
		{"a helper that fails, softly", false, image.Auth{}, true, image.CredentialSources{Helper: "broken"}, "without credentials"},
		{"nobody asks", true, image.Auth{}, false, image.CredentialSources{Helper: "broken"}, ""},
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
			edit := func(o *spec.TaskConfig) { o.Image, o.Auth, o.AuthSoftFail = ref, c.task, c.soft }
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
	err := d.startFails(func(c *spec.TaskConfig) { c.Image, c.Auth = ref, image.Auth{Username: "user", Password: "wrong"} })
	must.ErrorContains(t, err, "with the credentials from the task's auth block")
	d.run(d.task("echo there", func(c *spec.TaskConfig) {
		c.Image, c.Auth = ref, image.Auth{Username: "user", Password: testSecret}
	}), "there")
}
