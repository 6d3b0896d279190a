package main

import (
	"os"
	"path/filepath"
	"testing"

	"github.com/shoenig/test/must"

	"github.com/tranche-gpu/tranche/internal/cli"
)

func TestWrite(t *testing.T) {
	dir := t.TempDir()
	must.NoError(t, write(dir))
	for _, command := range append(cli.Command("v0").Commands(), cli.Command("v0")) {
		if command.Hidden || command.Name() == "help" {
			continue
		}
		name := "tranche.1"
		if command.HasParent() {
			name = "tranche-" + command.Name() + ".1"
		}
		page, err := os.ReadFile(filepath.Join(dir, name))
		must.NoError(t, err)
		must.StrContains(t, string(page), command.Short)
	}
	hidden, err := filepath.Glob(filepath.Join(dir, "tranche-node-info*"))
	must.NoError(t, err)
	must.SliceEmpty(t, hidden)
}
