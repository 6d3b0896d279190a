package bill

import (
	"cmp"
	"errors"
	"fmt"
	"io/fs"
	"math/big"
	"os"
	"regexp"
	"slices"
	"strconv"
	"strings"
	"time"

	"github.com/pelletier/go-toml/v2"

	"github.com/tranche-gpu/tranche/usage"
)

// Config are the tables [usage] and [prices] of Tranche's configuration file.
type Config struct {
	// Keep is how long rows are kept.
	Keep time.Duration
	// Database is the URL of a PostgreSQL database that nodes share; empty if this node has one of its own.
	Database string
	// Node is the name of this node in reports.
	Node   string
	Prices Prices
}

// Prices are what reserved time costs. The zero value has none.
type Prices struct {
	// Currency is a code of ISO 4217, such as EUR.
	Currency string
	// GiBHour is the price of a GiB of reserved memory for an hour, GPUHour that of a whole GPU for an hour; nil is no price.
	GiBHour, GPUHour *big.Rat
	// Account is the ID of the billing account, Provider the name of who sends the bill.
	Account, Provider string
}

// Known reports whether there is a price.
func (p Prices) Known() bool { return p.GiBHour != nil || p.GPUHour != nil }

// DefaultKeepDays is how long rows are kept, mostKeepDays how long they can be.
const (
	DefaultKeepDays = 400
	mostKeepDays    = 36_500
)

// tableKeys are the keys of the tables.
var tableKeys = map[string][]string{
	"usage":  {"keep_days", "database", "node"},
	"prices": {"currency", "gib_hour", "gpu_hour", "account", "provider"},
}

// LoadConfig reads the tables from a configuration file, which may be missing. All else in it is tranche-runtime's.
func LoadConfig(path string) (Config, error) {
	content, err := os.ReadFile(path)
	if err != nil && !errors.Is(err, fs.ErrNotExist) {
		return Config{}, fmt.Errorf("read the configuration: %w", err)
	}
	var file map[string]any
	var c Config
	if err = toml.Unmarshal(content, &file); err == nil {
		c, err = newConfig(file)
	}
	if err != nil {
		return Config{}, fmt.Errorf("read the configuration %s: %w", path, err)
	}
	return c, nil
}

// table is a table of the file, by its keys.
type table struct {
	name   string
	values map[string]any
}

func newTable(file map[string]any, name string) (table, error) {
	t := table{name: name}
	for key := range file {
		if key != name && strings.EqualFold(key, name) {
			return t, fmt.Errorf("there is no table [%s]; write [%s]", key, name)
		}
	}
	value, found := file[name]
	if !found {
		return t, nil
	}
	var ok bool
	if t.values, ok = value.(map[string]any); !ok {
		return t, fmt.Errorf("%s must be a table, [%s], got %v", name, name, value)
	}
	for key := range t.values {
		if !slices.Contains(tableKeys[name], key) {
			return t, fmt.Errorf("there is no setting %s.%s; there are %s", name, key, strings.Join(tableKeys[name], ", "))
		}
	}
	return t, nil
}

// text returns a text; "" if it is not set.
func (t table) text(key string) (string, error) {
	value, found := t.values[key]
	text, ok := value.(string)
	if found && !ok {
		return "", fmt.Errorf("%s.%s must be a text in quotes, got %v", t.name, key, value)
	}
	return text, nil
}

var currencyCode = regexp.MustCompile(`^[A-Z]{3}$`)

func newConfig(file map[string]any) (Config, error) {
	rows, err := newTable(file, "usage")
	if err != nil {
		return Config{}, err
	}
	costs, err := newTable(file, "prices")
	if err != nil {
		return Config{}, err
	}
	var c Config
	if c.Keep, err = rows.keep(); err == nil {
		c.Database, c.Node, err = rows.place()
	}
	if err == nil {
		c.Prices, err = costs.prices()
	}
	return c, err
}

// place returns where the rows are, and under which name.
func (t table) place() (database, node string, err error) {
	if value, found := t.values["database"]; found {
		text, ok := value.(string)
		if !ok {
			return "", "", errors.New("usage.database must be a text in quotes") // it may have a secret
		}
		if err := usage.CheckDatabase(text); err != nil {
			return "", "", fmt.Errorf("usage.database %w", err)
		}
		database = text
	}
	if node, err = t.text("node"); err == nil && node == "" {
		node, err = os.Hostname()
	}
	return database, node, err
}

func (t table) keep() (time.Duration, error) {
	value, found := t.values["keep_days"]
	if !found {
		value = int64(DefaultKeepDays)
	}
	days, ok := value.(int64)
	if !ok || days < 1 || days > mostKeepDays {
		return 0, fmt.Errorf("usage.keep_days must be a whole number from 1 to %d, got %#v", mostKeepDays, value)
	}
	return time.Duration(days) * 24 * time.Hour, nil
}

func (t table) prices() (p Prices, err error) {
	for key, to := range map[string]*string{"currency": &p.Currency, "account": &p.Account, "provider": &p.Provider} {
		if *to, err = t.text(key); err != nil {
			return p, err
		}
	}
	for key, to := range map[string]**big.Rat{"gib_hour": &p.GiBHour, "gpu_hour": &p.GPUHour} {
		if *to, err = t.price(key); err != nil {
			return p, err
		}
	}
	switch {
	case p.Known() && !currencyCode.MatchString(p.Currency):
		return p, fmt.Errorf("prices.currency must be a code such as \"EUR\", got %q", p.Currency)
	case !p.Known() && p.Currency != "":
		return p, errors.New("prices has a currency and no price; set prices.gib_hour, prices.gpu_hour or both")
	}
	p.Account, p.Provider = cmp.Or(p.Account, "tranche"), cmp.Or(p.Provider, "Tranche")
	return p, nil
}

// mostPrice is more than a GPU costs for an hour in any currency.
var mostPrice = big.NewRat(1_000_000_000, 1)

// price returns a price exactly as it is written; nil if there is none.
func (t table) price(key string) (*big.Rat, error) {
	var text string
	value, found := t.values[key]
	switch v := value.(type) {
	case int64:
		text = strconv.FormatInt(v, 10)
	case float64:
		text = strconv.FormatFloat(v, 'f', -1, 64)
	}
	if !found {
		return nil, nil //nolint:nilnil // no price is an answer
	}
	p, ok := new(big.Rat).SetString(text)
	if !ok || p.Sign() < 0 || p.Cmp(mostPrice) > 0 {
		return nil, fmt.Errorf("prices.%s must be a number from 0 to %s, such as 0.05, got %#v", key, mostPrice.RatString(), value)
	}
	return p, nil
}
