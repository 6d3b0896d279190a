package runtime

import (
	"context"
	"errors"
	"fmt"
	"io/fs"
	"os"
	"slices"
	"strings"
	"time"

	"github.com/opencontainers/runtime-spec/specs-go"

	"github.com/tranche-gpu/tranche/claim"
	"github.com/tranche-gpu/tranche/runtime/bundle"
)

// lookTimeout bounds how long exec waits for the ledger. Engines run health checks by it, which have little time.
const lookTimeout = 5 * time.Second

// processFile is a process that is to be executed in a container, as a file that the engine wrote for just that.
type processFile struct {
	jsonFile
	process *specs.Process
}

func readProcessFile(path string) (*processFile, error) {
	file := &processFile{
		jsonFile: jsonFile{bundle.File{What: "the process to execute", Kind: "OCI process", Path: path}}, process: &specs.Process{},
	}
	if err := file.Read(); err != nil {
		return file, err
	}
	return file, file.Parse(file.process)
}

// editProcess does to the environment of a process for exec what environment does to that of the container's first.
// Engines give it the variables that the container was configured with, claim tokens included, and know nothing of what we
// have made of them. It touches no process of a container that is not ours, unless it holds a token.
//
// The file is changed in place, since its name is on the command line of the next runtime, and the engine removes it.
func editProcess(cfg Config, inv invocation) error {
	file, err := readProcessFile(inv.process)
	if errors.Is(err, fs.ErrNotExist) {
		return nil // the next runtime says so in its own words
	}
	ours := err == nil && holdsToken(file.process.Env)
	if !ours {
		ours = inv.ofContainerWithClaims(cfg)
	}
	if !ours {
		return nil // Even a file that nobody can read is the next runtime's matter.
	}
	if err != nil {
		return fmt.Errorf("%w; the container has a claim, whose token is not for its processes", err)
	}
	if err := edit(&file.jsonFile, file.process, func(p *specs.Process) error { answered(p); return nil }); err != nil {
		return err
	}
	return file.write()
}

func holdsToken(env []string) bool {
	return slices.ContainsFunc(env, func(entry string) bool { return strings.HasPrefix(entry, claim.EnvPrefix) })
}

// ofContainerWithClaims tells whether the command is about a container that has claims. Where the ledger does not answer, it
// has none: without a token in it, the environment holds nothing that is worth a health check that fails.
func (inv invocation) ofContainerWithClaims(cfg Config) bool {
	ctx, cancel := context.WithTimeout(context.Background(), lookTimeout)
	defer cancel()
	ledger, err := claim.Open(claim.Options{StateDir: cfg.StateDir, RunDir: cfg.RunDir, Logger: cfg.Logger})
	if err != nil {
		return false
	}
	claims, _, err := ledger.List(ctx)
	if err != nil && !errors.Is(err, os.ErrPermission) { // a user's own containers hold none of root's claims
		_ = inv.logLine("warning", fmt.Sprintf("look for the claims of container %s: %v", excerpt(inv.id), err))
	}
	return slices.ContainsFunc(claims, func(c *claim.Claim) bool {
		return c.Container != nil && c.Released.IsZero() && c.Container.ID == inv.id
	})
}
