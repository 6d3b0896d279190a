// Package wrapper is tranche-runtime: an OCI runtime that edits the spec of a container that has or requests claims, and
// then becomes the next OCI runtime, such as runc.
package wrapper

import (
	"context"
	"encoding/json"
	"errors"
	"fmt"
	"io"
	"io/fs"
	"os"
	"strings"
	"syscall"
	"time"

	"github.com/tranche-gpu/tranche/claim"
	"github.com/tranche-gpu/tranche/runtime"
	"github.com/tranche-gpu/tranche/runtime/oneline"
	"github.com/tranche-gpu/tranche/runtime/rootfs"
)

// Main edits the spec of a container that is created, or the process of an exec, and becomes the next OCI runtime with the
// same arguments. It returns, with an exit status, only on failure.
func Main(args, environ []string, stderr io.Writer) int {
	inv := parseInvocation(args[1:])
	err := errors.New(oneline.Of(become(inv, args, environ)))
	fmt.Fprintf(stderr, "tranche-runtime: %v\n", err)
	if logErr := inv.logError(err); logErr != nil {
		fmt.Fprintf(stderr, "tranche-runtime: %v\n", logErr)
	}
	return 1
}

// become edits the spec, if there is one to edit, and replaces this process by the next runtime. A mistake in the configuration
// concerns new containers with a GPU alone: all others start, and those that run can be stopped.
func become(inv invocation, args, environ []string) error {
	cfg, wrong := runtime.LoadConfig(lookUp(environ, runtime.ConfigEnv))
	next, name, err := nextRuntime(cfg.NextRuntimes(), lookUp(environ, "PATH"))
	if err != nil {
		return errors.Join(wrong, err)
	}
	if inv.creates() {
		ctx, cancel := context.WithTimeout(context.Background(), runtime.PrepareTimeout)
		defer cancel()
		if err := editBundle(ctx, cfg, wrong, inv); err != nil {
			return err
		}
	}
	if inv.process != "" {
		if err := editProcess(cfg, inv); err != nil {
			return err
		}
	}
	argv := append([]string{name}, args[1:]...)
	return fmt.Errorf("become the next OCI runtime, %s: %w", next, syscall.Exec(next, argv, environ))
}

// editBundle edits the spec in a bundle if the container has claims or requests one. For containers that request GPUs in
// another way there is a policy, and all others are left untouched. It refuses a container whose image would have the next
// runtime write on the host. wrong says why the configuration cannot be used, if it cannot.
func editBundle(ctx context.Context, cfg runtime.Config, wrong error, inv invocation) error {
	file, err := readSpecFile(inv.specPath())
	if errors.Is(err, fs.ErrNotExist) {
		return nil // the next runtime reports it
	}
	if err != nil {
		return err
	}
	if dir := inv.rootDir(file); dir != "" {
		if err := rootfs.RefuseLinkedDirs(dir); err != nil {
			return err
		}
	}
	inv.warnAboutVariables(file, os.Stderr)
	source, err := claimSourceOf(cfg, file)
	if err != nil {
		return err
	}
	if wrong != nil {
		return inv.refuseWithoutConfig(wrong, source != nil, file)
	}
	if source == nil {
		return withoutClaim(cfg, file)
	}
	hostMemory, err := runtime.GPUHostMemory("environment variable "+runtime.GPUHostMemoryEnv,
		source.env[runtime.GPUHostMemoryEnv], cfg.GPUHostMemoryMaxBytes)
	if err != nil {
		return err
	}
	// Warnings of the ledger may be about containers of others, and are not shown to whoever starts this one.
	ledger, err := claim.Open(claim.Options{StateDir: cfg.StateDir, RunDir: cfg.RunDir, Logger: logger{inv: inv}})
	if err != nil {
		return fmt.Errorf("open the ledger of claims: %w", err)
	}
	cfg.Logger = logger{inv, os.Stderr}
	claims, cancel, err := source.claims(ctx, cfg, ledger, inv.workload(source.env, file))
	if err != nil {
		return err
	}
	err = source.compute.Apply(ctx, ledger, cfg.RunDir, cfg.Compute, source.computeOption, claims)
	if err == nil {
		err = giveClaims(ctx, ledger, cfg, inv.id, claims, hostMemory, file)
	}
	if err != nil {
		return errors.Join(err, cancel())
	}
	inv.warnAboutImage(file, os.Stderr)
	return nil
}

// giveClaims edits a spec so that its container has the claims.
func giveClaims(ctx context.Context, ledger *claim.Ledger, cfg runtime.Config, id string, claims []*claim.Claim,
	hostMemory uint64, file *specFile,
) error {
	edits, err := runtime.Prepare(ctx, ledger, cfg, id, claims, hostMemory)
	if err != nil {
		return err
	}
	if err := file.modify(edits); err != nil {
		return err
	}
	return file.write()
}

func lookUp(environ []string, name string) string {
	for _, entry := range environ {
		if value, ok := strings.CutPrefix(entry, name+"="); ok {
			return value
		}
	}
	return ""
}

// logError writes the error to the log file in the arguments: containerd and Docker show users its last error, and do not
// show the standard error.
func (inv invocation) logError(err error) error { return inv.logLine("error", err.Error()) }

// logLine writes a line to the log file in the arguments, if there is one, in its format.
func (inv invocation) logLine(level, message string) error {
	if inv.log == "" {
		return nil
	}
	file, openErr := os.OpenFile(inv.log, os.O_CREATE|os.O_WRONLY|os.O_APPEND|syscall.O_NONBLOCK, 0o644)
	if openErr != nil {
		return fmt.Errorf("write to the log: %w", openErr)
	}
	now := time.Now().Format(time.RFC3339)
	line := fmt.Sprintf("time=%q level=%s msg=%q\n", now, level, message)
	if inv.logFormat == "json" {
		entry, _ := json.Marshal(map[string]string{"level": level, "msg": message, "time": now})
		line = string(entry) + "\n"
	}
	_, writeErr := file.WriteString(line)
	return errors.Join(writeErr, file.Close())
}
