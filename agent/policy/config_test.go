package policy

import (
	"os"
	"path/filepath"
	"testing"
	"time"

	"github.com/shoenig/test/must"

	"github.com/tranche-gpu/tranche/internal/nomadapi"
)

func load(t *testing.T, text string) (Config, error) {
	t.Helper()
	path := filepath.Join(t.TempDir(), "config.toml")
	must.NoError(t, os.WriteFile(path, []byte(text), 0o600))
	return LoadConfig(path)
}

func TestLoadConfig(t *testing.T) {
	c, err := LoadConfig(filepath.Join(t.TempDir(), "absent"))
	must.NoError(t, err)
	must.Eq(t, defaults, c)
	must.False(t, c.Enabled())

	c, err = load(t, `
runtimes = ["crun"]
nomad_address = "https://nomad.example:4646"
nomad_token_file = "/etc/tranche/token"
[prices]
currency = "EUR"
[idle]
policy = "warn"
after = "2h"
stops_per_hour = 10
webhook_file = "/etc/tranche/webhook"
[idle.namespaces.research]
policy = "stop"
grace = "5m"
[idle.namespaces."a-b"]
policy = "off"
`)
	must.NoError(t, err)
	must.True(t, c.Enabled())
	must.Eq(t, Config{
		Default: Rule{Action: Warn, After: 2 * time.Hour, MaxAfter: 24 * time.Hour, Grace: 15 * time.Minute},
		Namespaces: map[string]Rule{
			"research": {Action: Stop, After: 2 * time.Hour, MaxAfter: 24 * time.Hour, Grace: 5 * time.Minute},
			"a-b":      {Action: Off, After: 2 * time.Hour, MaxAfter: 24 * time.Hour, Grace: 15 * time.Minute},
		},
		StopsPerHour: 10, WebhookFile: "/etc/tranche/webhook",
		Nomad: nomadapi.Options{Address: "https://nomad.example:4646", TokenFile: "/etc/tranche/token"},
	}, c)
	must.Eq(t, Stop, c.Rule("research").Action)
	must.Eq(t, Warn, c.Rule("default").Action)
}

func TestLoadConfig_Errors(t *testing.T) {
	for text, want := range map[string]string{
		"idle = 'stop'":                              "idle must be a table",
		"[idle]\npolicy = 'kill'":                    `idle.policy must be "off", "observe", "warn" or "stop", got "kill"`,
		"[idle]\npolicy = ''":                        "idle.policy must be",
		"[idle]\npolicy = true":                      "idle.policy",
		"[idle]\npolicies = 'stop'":                  "there is no setting idle.policies; there are policy, after",
		"[idle]\nafter = 30":                         "idle.after has a value of the wrong type: policy, after, max_after, grace and webhook_file are text in quotes",
		"[idle]\nafter = '1d'":                       `idle.after must be a duration of at least 30s, such as "90m" or "6h", got "1d"`,
		"[idle]\nafter = '29s'":                      "idle.after must be a duration of at least 30s",
		"[idle]\nafter = '25h'":                      "idle.max_after is 24h0m0s and must not be less than after, which is 25h0m0s",
		"[idle]\ngrace = '-1s'":                      "idle.grace must be a duration of at least 0s",
		"[idle]\nstops_per_hour = 0":                 "idle.stops_per_hour must be from 1 to 1000, got 0",
		"[idle]\nstops_per_hour = 'all'":             "idle.stops_per_hour",
		"[idle]\nwebhook_file = 'https://hook'":      "idle.webhook_file must be an absolute path",
		"[idle.namespaces.a]\nafter = ''":            "idle.namespaces.a.after must be a duration",
		"[idle.namespaces.a]\nstops_per_hour = 1":    "there is no setting idle.namespaces.a.stops_per_hour; there are policy, after, max_after, grace",
		"[idle.namespaces]\na = 'stop'":              "idle.namespaces.a",
		"[idle.namespaces.'*']\npolicy = 'warn'":     `idle.namespaces: "*" is no name of a namespace; [idle] is for all`,
		"[idle]\npolicy = 'stop'":                    `policy = "stop" needs nomad_address`,
		"[idle.namespaces.a]\npolicy = 'stop'":       "needs nomad_address",
		"nomad_address = 'nomad:4646'":               "nomad_address must be the URL",
		"nomad_token_file = '/t'":                    "need nomad_address",
		"nomad_address = 4646":                       "nomad_address must be text in quotes",
		"[idle]\npolicy = 'stop'\nnomad_address='x'": "there is no setting idle.nomad_address",
		"[idle": "line 1",
	} {
		_, err := load(t, text)
		must.ErrorContains(t, err, want, must.Sprint(text))
		must.ErrorContains(t, err, "config.toml", must.Sprint(text))
	}
}
