package doctor

import (
	"context"
	"errors"
	"fmt"
	"io/fs"
	"os"
	"path/filepath"
	"slices"
	"strings"

	"golang.org/x/sys/unix"

	"github.com/tranche-gpu/tranche/claim"
	"github.com/tranche-gpu/tranche/claim/region"
)

var ledgerChecks = []check{
	{"ledger", "records", ledgerRecords},
	{"ledger", "containers", ledgerContainers},
	{"ledger", "regions", ledgerRegions},
	{"ledger", "state directory", ledgerStateDir},
	{"ledger", "run directory", ledgerRunDir},
}

func (n *Node) claims(ctx context.Context) ([]*claim.Claim, []claim.Problem, error) {
	ledger, err := claim.Open(claim.Options{StateDir: n.Config.StateDir, RunDir: n.Config.RunDir})
	if err != nil {
		return nil, nil, err
	}
	return ledger.List(ctx)
}

func ledgerRecords(ctx context.Context, n *Node) finding {
	looked := filepath.Join(n.Config.StateDir, "claims")
	claims, problems, err := n.claims(ctx)
	if err != nil {
		return fault(looked, err.Error(), "run this as root; the ledger has to be readable for any claim to be made")
	}
	if len(problems) > 0 {
		return fault(problems[0].Path, problems[0].Reason, "do as it says; other claims are not touched by it")
	}
	return ok(looked, "claims: %d", len(claims))
}

// ledgerContainers finds what nobody reported and no sweep has seen yet.
func ledgerContainers(ctx context.Context, n *Node) finding {
	looked := filepath.Join(n.Config.StateDir, "claims")
	claims, _, err := n.claims(ctx)
	if err != nil {
		return ok(looked, "not looked at")
	}
	for _, c := range claims {
		if c.Container != nil && c.Released.IsZero() && !claim.Alive(*c.Container) {
			return warning(looked, fmt.Sprintf("claim %s is bound to container %s, which is gone", c.ID, claim.ShortID(c.Container.ID)),
				"whoever asks for its slices next, or starts its task again, gets them; the next sweep of Nomad's device plugin "+
					"releases it, and if it stays on a node of Nomad's, that plugin does not run: see Nomad's log")
		}
	}
	return ok(looked, "every container that holds a claim lives")
}

// ledgerRegions looks at the regions of containers that live: without theirs they cannot allocate any more. Claims without
// a limit may have none.
func ledgerRegions(ctx context.Context, n *Node) finding {
	looked := filepath.Join(n.Config.RunDir, "claims")
	claims, _, err := n.claims(ctx)
	if err != nil {
		return ok(looked, "not looked at")
	}
	for _, c := range claims {
		if c.Container == nil || !c.Limited() || !claim.Alive(*c.Container) {
			continue
		}
		if _, err := region.ReadHeader(filepath.Join(looked, c.ID)); err != nil {
			return fault(looked, fmt.Sprintf("container %s runs and its region is gone: %v", claim.ShortID(c.Container.ID), err),
				"start the container anew, and keep others from emptying "+n.Config.RunDir)
		}
	}
	return ok(looked, "every container that runs has its region")
}

func ledgerStateDir(_ context.Context, n *Node) finding {
	dir := n.Config.StateDir
	kind, found, err := fileSystem(dir)
	switch {
	case err != nil:
		return fault(dir, err.Error(), "let root reach the directory, or set state_dir")
	case kind == unix.TMPFS_MAGIC:
		return fault(dir, found+" is in memory, so claims are lost with a reboot", "set state_dir to a directory on a disk")
	case n.closedToAgent(dir):
		return fault(dir, "tranche-agent.service may not write there, so usage is not accounted",
			"set state_dir to a directory, not below "+strings.Join(closedDirs, ", "))
	}
	if info, err := os.Stat(filepath.Join(dir, "claims")); err == nil && info.Mode().Perm()&0o077 != 0 {
		return fault(dir, fmt.Sprintf("others than root may look into the ledger (%s)", info.Mode()),
			"chmod 700 "+filepath.Join(dir, "claims"))
	}
	return ok(dir, "%s survives a reboot", found)
}

// closedDirs are those that the agent's service may not write to: see ProtectSystem and ProtectHome in systemd.exec(5).
var closedDirs = []string{"/usr", "/etc", "/boot", "/efi", "/home", "/root", "/run/user"}

func (n *Node) closedToAgent(dir string) bool {
	_, err := os.Stat(n.path("/usr/lib/systemd/system/tranche-agent.service"))
	return err == nil && slices.ContainsFunc(closedDirs, func(closed string) bool { return strings.HasPrefix(dir+"/", closed+"/") })
}

func ledgerRunDir(_ context.Context, n *Node) finding {
	dir := n.Config.RunDir
	kind, found, err := fileSystem(dir)
	switch {
	case err != nil:
		return fault(dir, err.Error(), "let root reach the directory, or set run_dir")
	case kind != unix.TMPFS_MAGIC:
		return warning(dir, found+" is no tmpfs, so accounting goes to a disk and outlives a reboot",
			"set run_dir to a directory below /run, or mount a tmpfs there")
	}
	return ok(dir, "%s is a tmpfs", found)
}

// fileSystem gives the kind of the file system in which a directory is or would be made.
func fileSystem(dir string) (kind int64, found string, err error) {
	for {
		var fsInfo unix.Statfs_t
		err := unix.Statfs(dir, &fsInfo)
		if err == nil {
			return fsInfo.Type, dir, nil
		}
		if !errors.Is(err, fs.ErrNotExist) || dir == "/" {
			return 0, dir, fmt.Errorf("look at %s: %w", dir, err)
		}
		dir = filepath.Dir(dir)
	}
}
