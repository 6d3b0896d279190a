package policy

import (
	"cmp"
	"errors"
	"fmt"
	"io/fs"
	"os"
	"path/filepath"
	"regexp"
	"strings"
	"time"

	"github.com/pelletier/go-toml/v2"

	"github.com/tranche-gpu/tranche/internal/nomadapi"
)

// Action is what is done about allocations that are idle for too long.
type Action string

// The actions, each of which includes those before it.
const (
	Off     Action = "off"
	Observe Action = "observe" // count and show them
	Warn    Action = "warn"    // task event, log, webhook
	Stop    Action = "stop"    // after a warning, stop their group
)

// Rule is what holds for the allocations of a namespace.
type Rule struct {
	Action Action
	// After is for how long an allocation may be idle, and MaxAfter to how long its job may extend that.
	After, MaxAfter time.Duration
	// Grace is how long after the warning the group is stopped.
	Grace time.Duration
}

// Config is the table [idle] of Tranche's configuration file, and how Nomad's API is reached.
type Config struct {
	// Default holds for namespaces that Namespaces does not have.
	Default    Rule
	Namespaces map[string]Rule
	// StopsPerHour is how many groups are stopped in an hour at most.
	StopsPerHour int
	// WebhookFile has the URL of a webhook; empty for none.
	WebhookFile string
	Nomad       nomadapi.Options
}

// defaults are what holds where the file says nothing.
var defaults = Config{
	Default:      Rule{Action: Off, After: time.Hour, MaxAfter: 24 * time.Hour, Grace: 15 * time.Minute},
	StopsPerHour: 3,
}

const (
	// leastAfter is from when on a claim can be known to be idle.
	leastAfter   = 30 * time.Second
	mostPerHour  = 1000
	ruleSettings = "policy, after, max_after, grace"
)

// Rule returns what holds for a namespace.
func (c *Config) Rule(namespace string) Rule {
	if r, ok := c.Namespaces[namespace]; ok {
		return r
	}
	return c.Default
}

// Enabled reports whether anything is to be done in any namespace.
func (c *Config) Enabled() bool {
	for _, r := range c.Namespaces {
		if r.Action != Off {
			return true
		}
	}
	return c.Default.Action != Off
}

// ruleFile is a rule as the file has it.
type ruleFile struct {
	Policy   *string `toml:"policy"`
	After    *string `toml:"after"`
	MaxAfter *string `toml:"max_after"`
	Grace    *string `toml:"grace"`
}

type tableFile struct {
	ruleFile

	StopsPerHour *int                `toml:"stops_per_hour"`
	WebhookFile  string              `toml:"webhook_file"`
	Namespaces   map[string]ruleFile `toml:"namespaces"`
}

// LoadConfig reads the settings from a configuration file, which may be missing. All else in it is tranche-runtime's and others'.
func LoadConfig(path string) (Config, error) {
	content, err := os.ReadFile(path)
	if err != nil && !errors.Is(err, fs.ErrNotExist) {
		return Config{}, fmt.Errorf("read the configuration: %w", err)
	}
	c, err := parse(content)
	if err != nil {
		return Config{}, fmt.Errorf("read the configuration %s: %w", path, err)
	}
	return c, nil
}

func parse(content []byte) (Config, error) {
	var file struct {
		Address   string `toml:"nomad_address"`
		TokenFile string `toml:"nomad_token_file"`
		CAFile    string `toml:"nomad_ca_file"`
		Idle      any    `toml:"idle"`
	}
	if err := toml.Unmarshal(content, &file); err != nil {
		return Config{}, explain(err, "")
	}
	c := defaults
	c.Nomad = nomadapi.Options{Address: file.Address, TokenFile: file.TokenFile, CAFile: file.CAFile}
	if err := c.Nomad.Check(); err != nil {
		return Config{}, err
	}
	if file.Idle == nil {
		return c, nil
	}
	if _, ok := file.Idle.(map[string]any); !ok {
		return Config{}, fmt.Errorf("idle must be a table, [idle], got %v", file.Idle)
	}
	// The table alone is decoded strictly: what is not known beside it is another program's.
	text, err := toml.Marshal(file.Idle)
	if err != nil {
		return Config{}, fmt.Errorf("idle: %w", err)
	}
	var table tableFile
	if err := toml.NewDecoder(strings.NewReader(string(text))).DisallowUnknownFields().Decode(&table); err != nil {
		return Config{}, explain(err, "idle.")
	}
	return c, c.take(table)
}

// explain names the setting that is wrong.
func explain(err error, table string) error {
	var unknown *toml.StrictMissingError
	if errors.As(err, &unknown) && len(unknown.Errors) > 0 {
		key := unknown.Errors[0].Key()
		if len(key) > 1 {
			return fmt.Errorf("there is no setting %s%s; there are %s", table, strings.Join(key, "."), ruleSettings)
		}
		return fmt.Errorf("there is no setting %s%s; there are %s, stops_per_hour, webhook_file, and a table namespaces.NAME for each "+
			"namespace that differs", table, strings.Join(key, "."), ruleSettings)
	}
	var wrong *toml.DecodeError
	switch {
	case !errors.As(err, &wrong):
		return err
	case len(wrong.Key()) > 0 && table == "":
		return fmt.Errorf("%s must be text in quotes", strings.Join(wrong.Key(), "."))
	case len(wrong.Key()) > 0:
		return fmt.Errorf("%s%s has a value of the wrong type: %s and webhook_file are text in quotes, stops_per_hour is a number, and "+
			"namespaces.NAME is a table", table, strings.Join(wrong.Key(), "."), ruleSettings)
	}
	line, column := wrong.Position()
	return fmt.Errorf("line %d, column %d: %w", line, column, err)
}

// namespaceName matches the names that Nomad allows.
var namespaceName = regexp.MustCompile(`^[a-zA-Z0-9-]{1,128}$`)

// take checks the settings of the table and takes them over.
func (c *Config) take(table tableFile) (err error) {
	if c.Default, err = table.rule("idle", c.Default); err != nil {
		return err
	}
	c.Namespaces = make(map[string]Rule)
	for name, file := range table.Namespaces {
		if !namespaceName.MatchString(name) {
			return fmt.Errorf("idle.namespaces: %q is no name of a namespace; [idle] is for all that have no table of their own", name)
		}
		if c.Namespaces[name], err = file.rule("idle.namespaces."+name, c.Default); err != nil {
			return err
		}
	}
	if n := table.StopsPerHour; n != nil {
		if *n < 1 || *n > mostPerHour {
			return fmt.Errorf("idle.stops_per_hour must be from 1 to %d, got %d; policy = %q stops nothing", mostPerHour, *n, Warn)
		}
		c.StopsPerHour = *n
	}
	if c.WebhookFile = table.WebhookFile; c.WebhookFile != "" && !filepath.IsAbs(c.WebhookFile) {
		return fmt.Errorf("idle.webhook_file must be an absolute path of a file with the URL, got %q", c.WebhookFile)
	}
	for _, r := range c.Namespaces {
		if r.Action == Stop && c.Nomad.Address == "" {
			return errNoAddress
		}
	}
	if c.Default.Action == Stop && c.Nomad.Address == "" {
		return errNoAddress
	}
	return nil
}

var errNoAddress = fmt.Errorf("idle: policy = %q needs nomad_address, such as \"http://127.0.0.1:4646\", above all tables of the file", Stop)

// rule returns the rule of a table; what it does not state is as in another one.
func (f ruleFile) rule(table string, r Rule) (Rule, error) {
	if f.Policy != nil {
		switch r.Action = Action(*f.Policy); r.Action {
		case Off, Observe, Warn, Stop:
		default:
			return r, fmt.Errorf("%s.policy must be %q, %q, %q or %q, got %q", table, Off, Observe, Warn, Stop, *f.Policy)
		}
	}
	for _, setting := range []struct {
		name  string
		value *string
		least time.Duration
		to    *time.Duration
	}{
		{"after", f.After, leastAfter, &r.After}, {"max_after", f.MaxAfter, leastAfter, &r.MaxAfter}, {"grace", f.Grace, 0, &r.Grace},
	} {
		if setting.value == nil {
			continue
		}
		d, err := time.ParseDuration(*setting.value)
		if err != nil || d < setting.least {
			return r, fmt.Errorf("%s.%s must be a duration of at least %s, such as \"90m\" or \"6h\", got %q",
				table, setting.name, cmp.Or(setting.least.String(), "0s"), *setting.value)
		}
		*setting.to = d
	}
	if r.MaxAfter < r.After {
		return r, fmt.Errorf("%s.max_after is %s and must not be less than after, which is %s", table, r.MaxAfter, r.After)
	}
	return r, nil
}
