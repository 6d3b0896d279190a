package wrapper

import (
	"context"
	"errors"
	"fmt"
	"io/fs"
	"os"
	"slices"
	"time"

	"github.com/opencontainers/runtime-spec/specs-go"

	"github.com/tranche-gpu/tranche/claim"
	"github.com/tranche-gpu/tranche/runtime"
	"github.com/tranche-gpu/tranche/runtime/bundle"
	"github.com/tranche-gpu/tranche/runtime/edit"
	"github.com/tranche-gpu/tranche/runtime/oneline"
)

// lookTimeout bounds how long exec waits for the ledger. Engines run health checks by exec, which have little time.
const lookTimeout = 5 * time.Second

// processFile is the file in which an engine describes a process for exec.
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

// editProcess edits the environment of a process for exec as edit.Environment does for the container's first process.
// Engines give it the variables that the container was configured with, claim tokens included. It leaves processes of
// containers without claims alone, unless they have a token.
//
// The file keeps its name, since that is on the command line of the next runtime, and the engine removes it.
func editProcess(cfg runtime.Config, inv invocation) error {
	file, err := readProcessFile(inv.process)
	if errors.Is(err, fs.ErrNotExist) {
		return nil // the next runtime reports it
	}
	ours := err == nil && slices.ContainsFunc(file.process.Env, claim.IsTokenVariable)
	if !ours {
		ours = inv.ofContainerWithClaims(cfg)
	}
	if !ours {
		return nil // the next runtime reports an unreadable file
	}
	if err != nil {
		return fmt.Errorf("%w; the container has a claim, whose token is not for its processes", err)
	}
	if err := change(&file.jsonFile, file.process, func(p *specs.Process) error { p.Env = edit.CleanEnv(p.Env); return nil }); err != nil {
		return err
	}
	return file.write()
}

// ofContainerWithClaims reports whether the command is about a container that has claims. If the ledger cannot be read, it
// returns false: without a token, the environment has nothing to protect that is worth a failed health check.
func (inv invocation) ofContainerWithClaims(cfg runtime.Config) bool {
	ctx, cancel := context.WithTimeout(context.Background(), lookTimeout)
	defer cancel()
	ledger, err := claim.Open(claim.Options{StateDir: cfg.StateDir, RunDir: cfg.RunDir, Logger: logger{inv: inv}})
	if err != nil {
		return false
	}
	claims, _, err := ledger.List(ctx)
	if err != nil && !errors.Is(err, os.ErrPermission) { // a user's own containers hold none of root's claims
		_ = inv.logLine("warning", fmt.Sprintf("look for the claims of container %s: %v", oneline.Excerpt(inv.id), err))
	}
	return slices.ContainsFunc(claims, func(c *claim.Claim) bool {
		return c.Container != nil && c.Released.IsZero() && c.Container.ID == inv.id
	})
}
