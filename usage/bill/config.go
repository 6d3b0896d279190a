package bill

import (
	"errors"
	"fmt"
	"io/fs"
	"math/big"
	"os"
	"regexp"
	"strconv"
	"strings"
	"time"

	"github.com/pelletier/go-toml/v2"
)

// Config are the tables [usage] and [prices] of Tranche's configuration file.
type Config struct {
	// Keep is how long rows are kept.
	Keep   time.Duration
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

// DefaultKeepDays is how long rows are kept.
const DefaultKeepDays = 400

// configFile has the tables key by key. Other tables and keys of the file are tranche-runtime's.
type configFile struct {
	Usage struct {
		KeepDays *int `toml:"keep_days"`
	} `toml:"usage"`
	Prices struct {
		Currency string `toml:"currency"`
		GiBHour  any    `toml:"gib_hour"`
		GPUHour  any    `toml:"gpu_hour"`
		Account  string `toml:"account"`
		Provider string `toml:"provider"`
	} `toml:"prices"`
}

// LoadConfig reads the tables from a configuration file, which may be missing.
func LoadConfig(path string) (Config, error) {
	content, err := os.ReadFile(path)
	if err != nil && !errors.Is(err, fs.ErrNotExist) {
		return Config{}, fmt.Errorf("read the configuration: %w", err)
	}
	var file configFile
	err = toml.NewDecoder(strings.NewReader(string(content))).DisallowUnknownFields().Decode(&file)
	if err = explainTOML(err); err == nil {
		var c Config
		if c, err = file.config(); err == nil {
			return c, nil
		}
	}
	return Config{}, fmt.Errorf("read the configuration %s: %w", path, err)
}

// explainTOML names the wrong keys of the two tables, and ignores all others.
func explainTOML(err error) error {
	var unknown *toml.StrictMissingError
	if !errors.As(err, &unknown) {
		return err
	}
	for _, missing := range unknown.Errors {
		switch key := missing.Key(); {
		case len(key) > 1 && key[0] == "usage":
			return fmt.Errorf("there is no setting %s; there is usage.keep_days", strings.Join(key, "."))
		case len(key) > 1 && key[0] == "prices":
			return fmt.Errorf("there is no setting %s; there are currency, gib_hour, gpu_hour, account and provider", strings.Join(key, "."))
		}
	}
	return nil
}

var currencyCode = regexp.MustCompile(`^[A-Z]{3}$`)

func (f configFile) config() (Config, error) {
	days := DefaultKeepDays
	if f.Usage.KeepDays != nil {
		days = *f.Usage.KeepDays
	}
	if days < 1 || days > 100_000 {
		return Config{}, fmt.Errorf("usage.keep_days must be 1 to 100000, got %d", days)
	}
	p := Prices{Currency: f.Prices.Currency, Account: f.Prices.Account, Provider: f.Prices.Provider}
	var err error
	if p.GiBHour, err = price("gib_hour", f.Prices.GiBHour); err != nil {
		return Config{}, err
	}
	if p.GPUHour, err = price("gpu_hour", f.Prices.GPUHour); err != nil {
		return Config{}, err
	}
	switch {
	case p.Known() && !currencyCode.MatchString(p.Currency):
		return Config{}, fmt.Errorf("prices.currency must be a code such as \"EUR\", got %q", p.Currency)
	case !p.Known() && p.Currency != "":
		return Config{}, errors.New("prices has a currency and no price; set prices.gib_hour, prices.gpu_hour or both")
	}
	if p.Account == "" {
		p.Account = "tranche"
	}
	if p.Provider == "" {
		p.Provider = "Tranche"
	}
	return Config{Keep: time.Duration(days) * 24 * time.Hour, Prices: p}, nil
}

// price returns a price exactly as it is written.
func price(name string, value any) (*big.Rat, error) {
	var text string
	switch v := value.(type) {
	case nil:
		return nil, nil //nolint:nilnil // no price is an answer
	case int64:
		text = strconv.FormatInt(v, 10)
	case float64:
		text = strconv.FormatFloat(v, 'f', -1, 64)
	}
	p, ok := new(big.Rat).SetString(text)
	if !ok || p.Sign() < 0 {
		return nil, fmt.Errorf("prices.%s must be a number such as 0.05, got %#v", name, value)
	}
	return p, nil
}
