package image

import (
	"context"
	"errors"
	"fmt"
	"os"
	"regexp"
	"slices"
	"strings"
	"sync"

	"github.com/distribution/reference"
	"github.com/docker/cli/cli/config/configfile"
	dockercredentials "github.com/docker/cli/cli/config/credentials"

	"github.com/tranche-gpu/tranche/internal/namedfile"
)

// dockerHub is the name that images of the default registry have before them. Its servers have others.
const dockerHub = "docker.io"

// dockerHubKey is what Docker's configuration and credential helpers know the default registry by.
const dockerHubKey = "https://index.docker.io/v1/"

// credential is what a registry wants to know. Without a username the secret is an identity token. It must not get into
// a log, an event, an error or a label.
type credential struct {
	username, secret string
	// from is the option that it came from, for messages.
	from string
}

// Auth is the auth block of a task.
type Auth struct {
	Username string `codec:"username"`
	Password string `codec:"password"`
	// ServerAddress is the registry that they are for; empty means the image's.
	ServerAddress string `codec:"server_address"`
}

// CredentialSources is the auth block of the plugin.
type CredentialSources struct {
	// Config is a Docker config.json; Helper the suffix of a docker-credential-SUFFIX program.
	Config string `codec:"config"`
	Helper string `codec:"helper"`
}

// Check checks the block.
func (c CredentialSources) Check() error {
	if c.Helper != "" && !helperName.MatchString(c.Helper) {
		return fmt.Errorf("plugin option auth.helper = %q: must be the end of a program's name, such as "+
			"\"ecr-login\" for docker-credential-ecr-login", c.Helper)
	}
	return nil
}

// check checks the auth block of a task. No message shows the password.
func (a Auth) check() error {
	const block = "option auth"
	switch {
	case a == (Auth{}):
		return nil
	case a.Username == "":
		return errors.New(block + `.username = "": must not be empty in an auth block`)
	case a.Password == "":
		return errors.New(block + `.password must not be empty in an auth block`)
	case a.ServerAddress != "" && !isRegistry(registryOf(a.ServerAddress)):
		return fmt.Errorf(block+".server_address = %q: must be the name of a registry, such as \"ghcr.io\" or "+
			"\"registry.example.com:5000\"", a.ServerAddress)
	}
	return nil
}

// isRegistry says whether an image's name can begin with it.
func isRegistry(name string) bool {
	named, err := reference.ParseNormalizedNamed(name + "/image")
	return err == nil && reference.Domain(named) == name
}

// registryOf is the name of the registry at an address, which may be a host or a URL.
func registryOf(address string) string {
	host := strings.ToLower(dockercredentials.ConvertToHostname(address))
	switch host {
	case "index.docker.io", "registry-1.docker.io":
		return dockerHub
	}
	return host
}

// credentialSearch finds what the registries of one pull want to know: from the task, else from the plugin's
// configuration. Nothing is looked up before a registry asks, so that a public image needs no credential helper.
type credentialSearch struct {
	task   Auth
	plugin CredentialSources
	// registry is the image's own, for which the task's credentials are if they do not say.
	registry string
	// softFail has a pull go on without credentials where they could not be got.
	softFail bool
	warn     func(error)
	// ask runs a credential helper.
	ask func(suffix, server string) (credential, error)

	mu    sync.Mutex
	found map[string]credential
	err   error
}

// of answers the question of containerd's resolver. It asks for each host that demands credentials, be it the image's
// registry, a mirror, or where either has sent us on to; each gets those that are for itself, and for nobody else.
func (c *credentialSearch) of(host string) (username, secret string, err error) {
	c.mu.Lock()
	defer c.mu.Unlock()
	registry := registryOf(host)
	if known, ok := c.found[registry]; ok {
		return known.username, known.secret, nil
	}
	got, err := c.search(registry)
	if err != nil {
		err = fmt.Errorf("credentials for %s: %w", registry, err)
		if !c.softFail {
			c.err = err
			return "", "", err
		}
		c.warn(err)
	}
	if c.found == nil {
		c.found = map[string]credential{}
	}
	c.found[registry] = got
	return got.username, got.secret, nil
}

// search goes through all that may have credentials for the registry.
func (c *credentialSearch) search(registry string) (credential, error) {
	if c.task != (Auth{}) {
		server := c.registry
		if c.task.ServerAddress != "" {
			server = registryOf(c.task.ServerAddress)
		}
		if server == registry {
			return credential{c.task.Username, c.task.Password, "the task's auth block"}, nil
		}
	}
	if c.plugin.Config != "" {
		got, err := c.fromConfig(registry)
		if err != nil || got != (credential{}) {
			return got, err
		}
	}
	if c.plugin.Helper == "" {
		return credential{}, nil
	}
	got, err := c.fromHelper("auth.helper", c.plugin.Helper, registry)
	if err != nil {
		err = fmt.Errorf("plugin option auth.helper = %q: %w", c.plugin.Helper, err)
	}
	return got, err
}

// fromConfig looks into the Docker config.json of the plugin's auth block. It is read at each pull: operators renew what
// is in it.
func (c *credentialSearch) fromConfig(registry string) (credential, error) {
	file := configfile.New(c.plugin.Config)
	in, err := os.Open(c.plugin.Config)
	if err == nil {
		defer in.Close()
		err = file.LoadFromReader(in)
	}
	if err != nil {
		return credential{}, fmt.Errorf("plugin option auth.config = %q: %w", c.plugin.Config, namedfile.Error("read it", err))
	}
	const from = "auth.config"
	helper := file.CredentialsStore
	for _, key := range configKeys(registry) {
		auth, err := dockercredentials.NewFileStore(file).Get(key)
		switch {
		case err != nil:
			return credential{}, fmt.Errorf("plugin option auth.config = %q: %w", c.plugin.Config, err)
		case auth.IdentityToken != "":
			return credential{secret: auth.IdentityToken, from: "the plugin's " + from}, nil
		case auth.Username != "" && auth.Password != "":
			return credential{auth.Username, auth.Password, "the plugin's " + from}, nil
		}
		if own := file.CredentialHelpers[key]; own != "" {
			helper = own
			break
		}
	}
	if helper == "" {
		return credential{}, nil
	}
	got, err := c.fromHelper(from, helper, registry)
	if err != nil {
		err = fmt.Errorf("plugin option auth.config = %q: %w", c.plugin.Config, err)
	}
	return got, err
}

// configKeys are the names that a registry may have in a Docker config.json.
func configKeys(registry string) []string {
	if registry == dockerHub {
		return []string{dockerHubKey, dockerHub, "index.docker.io", "registry-1.docker.io"}
	}
	return []string{registry}
}

// helperName is the end of the name of a credential helper, which must not lead out of PATH.
var helperName = regexp.MustCompile(`^[A-Za-z0-9][A-Za-z0-9._-]*$`)

// fromHelper asks a credential helper.
func (c *credentialSearch) fromHelper(option, suffix, registry string) (credential, error) {
	if !helperName.MatchString(suffix) {
		return credential{}, fmt.Errorf("the name of the credential helper %q must be letters, digits, \".\", \"_\" and \"-\"",
			suffix)
	}
	got, err := c.ask(suffix, configKeys(registry)[0])
	if err == nil && got != (credential{}) {
		got.from = "the plugin's " + option
	}
	return got, err
}

// used says where the credentials came from that the registries were given; empty if they were given none.
func (c *credentialSearch) used() string {
	c.mu.Lock()
	defer c.mu.Unlock()
	var from []string
	for _, known := range c.found {
		if known.from != "" && !slices.Contains(from, known.from) {
			from = append(from, known.from)
		}
	}
	slices.Sort(from)
	return strings.Join(from, " and ")
}

// failure is why credentials could not be got; nil if they could.
func (c *credentialSearch) failure() error {
	c.mu.Lock()
	defer c.mu.Unlock()
	return c.err
}

// newCredentialSearch prepares the search for one pull, which ctx bounds.
func (s *Store) newCredentialSearch(ctx context.Context, p *pull) *credentialSearch {
	return &credentialSearch{
		task:     p.key.auth,
		plugin:   s.config.Credentials,
		registry: p.source.registry(),
		softFail: p.key.authSoftFail,
		warn: func(err error) {
			s.notifyWaiters(p, "Pulling image %s without credentials: %v", p.source.reference, err)
		},
		ask: func(suffix, server string) (credential, error) {
			return askHelper(ctx, s.Pace.orDefault().Helper, suffix, server)
		},
	}
}
