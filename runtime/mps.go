package runtime

import (
	"errors"
	"fmt"
	"io/fs"
	"os"
	"path/filepath"
	"slices"
	"strconv"
	"strings"

	"github.com/opencontainers/runtime-spec/specs-go"

	"github.com/tranche-gpu/tranche/runtime/mpsdir"
)

// What a client of an MPS control daemon has: the socket on which the daemon listens, and the file system in which the
// daemon and its clients share memory. The device plugin makes both on the host, below MPSDir.
const (
	mpsPipesAt = "/tmp/nvidia-mps"
	mpsShmAt   = "/dev/shm"
)

// The variables by which a client finds its daemon and says what it may have.
const (
	mpsPipesEnv      = "CUDA_MPS_PIPE_DIRECTORY"
	mpsMemoryEnv     = "CUDA_MPS_PINNED_DEVICE_MEM_LIMIT"
	mpsPercentageEnv = "CUDA_MPS_ACTIVE_THREAD_PERCENTAGE"
)

// A client connects to the socket, for which the kernel asks of the socket's own mode only. In a directory that is
// writable it could put a socket of its own in the place of the daemon's, and have the programs of other containers.
// The shared memory is for writing: a daemon's clients trust each other that far, as docs/device.md says. So is the file that
// the daemon keeps locked: it is empty, and a program that opens it to look for the lock may do so for writing.
const mpsPipesAccess, mpsShmAccess, mpsLockAccess = "ro", "rw", "rw"

// MPSDir is where the MPS control daemon of a GPU has its directories.
func MPSDir(runDir, gpuUUID string) string { return mpsdir.Of(runDir, gpuUUID) }

// MPSDownError says that the MPS control daemon of a GPU is not there.
type MPSDownError struct {
	GPUUUID string
	err     error
}

func (e *MPSDownError) Error() string {
	return fmt.Sprintf("the MPS control daemon of GPU %s is not there: %v; the device plugin starts it, and says in the log of "+
		"Nomad's agent why it could not", e.GPUUUID, e.err)
}

func (e *MPSDownError) Unwrap() error { return e.err }

// Retriable says that the same call may succeed later: the device plugin starts the daemon again.
func (e *MPSDownError) Retriable() bool { return true }

// mpsClient makes the container's programs clients of the MPS control daemon of the claim's GPU.
type mpsClient struct {
	dir        string
	limitBytes uint64
	percentage int
}

// newMPSClient gives the edits for a claim of mode MPS, which a container has alone: its programs talk to one daemon, and
// see the GPU of that one only.
func newMPSClient(cfg Config, grants []Grant) (Modifiers, error) {
	i := slices.IndexFunc(grants, func(g Grant) bool { return g.Claim.MPS != nil })
	if i < 0 {
		return nil, nil
	}
	c := grants[i].Claim
	if len(grants) > 1 {
		other := grants[(i+1)%len(grants)].Claim
		return nil, fmt.Errorf("claim %s is in mode mps, and the container has claim %s besides (mode %s, GPU %s): programs "+
			"behind an MPS control daemon see its GPU only, so a container has one claim in mode mps or several of other modes; "+
			"ask for one device, or for a GPU in another mode", c.ID, other.ID, other.Mode, other.PhysicalGPU())
	}
	dir := MPSDir(cfg.RunDir, c.PhysicalGPU())
	for _, needed := range []string{filepath.Join(dir, mpsdir.Client, mpsdir.Control), filepath.Join(dir, mpsdir.Shm)} {
		if _, err := os.Stat(needed); err != nil {
			return nil, &MPSDownError{GPUUUID: c.PhysicalGPU(), err: err}
		}
	}
	return Modifiers{mpsClient{dir: dir, limitBytes: c.LimitBytes, percentage: c.MPS.Percentage}}, nil
}

// Modify mounts what the daemon shares over what the engine or the job have put there, and states what the claim allows,
// whatever image or job say. The mounts come last, so that nothing of the job's hides them.
func (m mpsClient) Modify(spec *specs.Spec) error {
	if err := refuseShmOf(spec); err != nil {
		return err
	}
	spec.Mounts = slices.DeleteFunc(slices.Clone(spec.Mounts), func(mount specs.Mount) bool {
		at := containerPath(mount.Destination)
		return at == mpsShmAt || at == mpsPipesAt || strings.HasPrefix(at, mpsPipesAt+"/")
	})
	spec.Mounts = append(spec.Mounts, m.mount(mpsdir.Client, mpsPipesAt, mpsPipesAccess), m.mount(mpsdir.Shm, mpsShmAt, mpsShmAccess))
	if lock := filepath.Join(mpsdir.Client, mpsdir.Lock); m.has(lock) {
		spec.Mounts = append(spec.Mounts, m.mount(lock, filepath.Join(mpsPipesAt, mpsdir.Lock), mpsLockAccess))
	}
	setVariable(spec, mpsPipesEnv, mpsPipesAt)
	// The daemon sees one GPU, so that it is the first to its clients. A limit of nothing would be none.
	setVariable(spec, mpsMemoryEnv, fmt.Sprintf("0=%dM", max(1, m.limitBytes>>20)))
	setVariable(spec, mpsPercentageEnv, strconv.Itoa(m.percentage))
	return nil
}

// has tells whether the daemon shares a file, which depends on its version.
func (m mpsClient) has(name string) bool {
	_, err := os.Stat(filepath.Join(m.dir, name))
	return err == nil
}

func (m mpsClient) mount(name, at, access string) specs.Mount {
	return specs.Mount{
		Destination: at, Type: "bind", Source: filepath.Join(m.dir, name), Options: []string{access, "nosuid", "nodev", "noexec", "bind"},
	}
}

// refuseShmOf refuses a container whose /dev/shm is the host's: its programs would look there for what only the daemon's
// has, and ours in its place would take from it what it was to share. What engines make for one container, or for those
// of a pod, gives way.
func refuseShmOf(spec *specs.Spec) error {
	for _, mount := range spec.Mounts {
		at := containerPath(mount.Destination)
		if strings.HasPrefix(at, mpsShmAt+"/") {
			return fmt.Errorf("mount the MPS server's shared memory at %s: the container mounts %q at %s, below it; mount that "+
				"somewhere else, since all clients of the server have the same %s", mpsShmAt, mount.Source, mount.Destination, mpsShmAt)
		}
		if at == mpsShmAt && isBind(mount) && isHostShm(mount.Source) {
			return fmt.Errorf("mount the MPS server's shared memory at %s: the container shares the host's (%s), and can't have "+
				"both; start it with an IPC namespace of its own (ipc_mode and --ipc other than \"host\")", mpsShmAt, mount.Source)
		}
	}
	return nil
}

// isHostShm tells whether a path on the host leads to the host's /dev/shm itself. A directory of somebody's in there is
// not shared with all the host.
func isHostShm(source string) bool {
	own, err := os.Stat(mpsShmAt)
	if errors.Is(err, fs.ErrNotExist) {
		return false
	}
	info, sourceErr := os.Stat(source)
	return err == nil && sourceErr == nil && os.SameFile(own, info)
}

// setVariable sets a variable of the container's environment in place of all that set it before.
func setVariable(spec *specs.Spec, name, value string) {
	spec.Process.Env = slices.DeleteFunc(slices.Clone(spec.Process.Env), func(entry string) bool {
		before, _, _ := strings.Cut(entry, "=")
		return before == name
	})
	spec.Process.Env = append(spec.Process.Env, name+"="+value)
}
