package driver

import (
	"context"
	"fmt"
	"os"
	"os/exec"
	"path/filepath"
	"regexp"
	"strconv"
	"sync"
	"time"

	"github.com/tranche-gpu/tranche/driver/ownnull"
)

// Programs of other runtimes than runc can give the host's /dev/null to a container's user: see package ownnull.

// crunVersion is how crun tells its version: the first line of `crun --version`.
var crunVersion = regexp.MustCompile(`^crun version (\d+)\.(\d+)`)

// crunKeepsNull is the first minor version of crun 1 that leaves the owners of devices alone.
const crunKeepsNull = 24

// takesNull says whether what a runtime tells of its version is an older crun's.
func takesNull(said string) bool {
	match := crunVersion.FindStringSubmatch(said)
	if match == nil {
		return false
	}
	major, errMajor := strconv.Atoi(match[1])
	minor, errMinor := strconv.Atoi(match[2])
	return errMajor == nil && errMinor == nil && (major < 1 || major == 1 && minor < crunKeepsNull)
}

// runtimePrograms remembers what programs of runtimes are. The zero value is ready.
type runtimePrograms struct {
	mu    sync.Mutex
	known map[string]knownProgram
}

// knownProgram is what a program was when it was asked.
type knownProgram struct {
	size      int64
	changed   time.Time
	takesNull bool
}

// takesNull asks the program for its version, once as long as its file stays the same. One that does not tell is taken for
// a runtime of another kind: whether it works at all the start will show.
func (p *runtimePrograms) takesNull(ctx context.Context, program string) (bool, error) {
	info, err := os.Stat(program)
	if err != nil {
		return false, err
	}
	p.mu.Lock()
	known, ok := p.known[program]
	p.mu.Unlock()
	if ok && known.size == info.Size() && known.changed.Equal(info.ModTime()) {
		return known.takesNull, nil
	}
	ctx, cancel := context.WithTimeout(ctx, versionPatience)
	defer cancel()
	said, _ := exec.CommandContext(ctx, program, "--version").Output()
	if ctx.Err() != nil {
		return false, fmt.Errorf("it does not answer to --version: %w", ctx.Err())
	}
	known = knownProgram{info.Size(), info.ModTime(), takesNull(string(said))}
	p.mu.Lock()
	defer p.mu.Unlock()
	if p.known == nil {
		p.known = map[string]knownProgram{}
	}
	p.known[program] = known
	return known.takesNull, nil
}

// versionPatience is how long a runtime may take to tell its version.
const versionPatience = 5 * time.Second

// keepNull has a runtime run without the host's /dev/null that would give it away.
func (d *Driver) keepNull(ctx context.Context, r ociRuntime) (ociRuntime, error) {
	if r.program == "" {
		return r, nil
	}
	takes, err := d.runtimes.takesNull(ctx, r.program)
	if err != nil {
		return r, fmt.Errorf("runtime %q: look which version %s is: %w", r.name, r.program, err)
	}
	if !takes {
		return r, nil
	}
	helper := d.grants.config.HookPath
	if _, err := os.Stat(helper); err != nil {
		return r, fmt.Errorf("runtime %q: %s is a crun before 1.%d, which gives the node's /dev/null to the users of "+
			"containers (containers/crun#1847), and tranche-hook, which keeps it from that, is not where the plugin's hook_path "+
			"says: %w; install it there, or take a newer crun, or runc", r.name, r.program, crunKeepsNull, err)
	}
	program, err := filepath.Abs(r.program)
	if err == nil {
		r.program, err = ownnull.Link(d.grants.config.RunDir, helper, program)
	}
	if err != nil {
		return r, fmt.Errorf("runtime %q: make a link below the plugin's run_dir by which %s runs without the node's "+
			"/dev/null: %w", r.name, program, err)
	}
	return r, nil
}
