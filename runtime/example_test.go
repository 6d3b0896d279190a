package runtime

import (
	"testing"

	"github.com/shoenig/test/must"
)

// TestExampleConfig checks that the example is accepted and shows the defaults, as it says.
func TestExampleConfig(t *testing.T) {
	example, err := LoadConfig("../examples/config.toml")
	must.NoError(t, err)
	defaults := Config{}.WithDefaults()
	example.Logger, defaults.Logger = nil, nil
	must.Eq(t, defaults, example)
}
