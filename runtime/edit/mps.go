package edit

import (
	"cmp"
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
	"github.com/tranche-gpu/tranche/runtime/ocispec"
)

// The paths in the container of what a client of an MPS control daemon needs: the directory of the daemon's socket, and the
// file system in which the daemon and its clients share memory. The device plugin creates both on the host, in mpsdir.Of.
const (
	mpsPipesAt = "/tmp/nvidia-mps"
	mpsShmAt   = "/dev/shm"
)

// The variables by which a client finds its daemon and sets its limits.
const (
	mpsPipesEnv      = "CUDA_MPS_PIPE_DIRECTORY"
	mpsMemoryEnv     = "CUDA_MPS_PINNED_DEVICE_MEM_LIMIT"
	mpsPercentageEnv = "CUDA_MPS_ACTIVE_THREAD_PERCENTAGE"
)

// To connect to the socket a client needs only the permissions of the socket itself. In a writable directory it could replace
// the daemon's socket by its own, and get the connections of other containers. The shared memory is writable: a daemon's
// clients have to trust each other that far, see docs/device.md. So is the file that the daemon keeps locked: it is empty, and
// a program may open it for writing to test the lock.
const mpsPipesAccess, mpsShmAccess, mpsLockAccess = "ro", "rw", "rw"

// MPSDownError is returned if the MPS control daemon of a GPU does not run.
type MPSDownError struct {
	GPUUUID string
	err     error
}

func (e *MPSDownError) Error() string {
	return fmt.Sprintf("the MPS control daemon of GPU %s does not run: %v; the device plugin starts it, and logs errors in the log of "+
		"Nomad's agent", e.GPUUUID, e.err)
}

func (e *MPSDownError) Unwrap() error { return e.err }

// Retriable reports that the same call may succeed later: the device plugin starts the daemon again.
func (e *MPSDownError) Retriable() bool { return true }

// mpsClient makes the container's programs clients of the MPS control daemon of the claim's GPU.
type mpsClient struct {
	dir string
	// namespace is the directory of the claim's namespace, below dir, with MPS v3: the daemon has the limits then. A claim without
	// one has them in the container's environment.
	namespace  string
	limitBytes uint64
	percentage int
}

// newMPSClient returns the edits for a claim in mode mps, or none. A container has no other claims beside one in mode mps,
// since its programs see only the GPU of their daemon.
func newMPSClient(node Node, claims []Claim) (Modifiers, error) {
	i := slices.IndexFunc(claims, func(g Claim) bool { return g.MPS != nil })
	if i < 0 {
		return nil, nil
	}
	c := claims[i].Claim
	if len(claims) > 1 {
		other := claims[(i+1)%len(claims)].Claim
		return nil, fmt.Errorf("claim %s is in mode mps, and the container has claim %s besides (mode %s, GPU %s): programs "+
			"behind an MPS control daemon see its GPU only, so a container has one claim in mode mps or several of other modes; "+
			"ask for one device, or for a GPU in another mode", c.ID, other.ID, other.Mode, other.PhysicalGPU())
	}
	m := mpsClient{dir: mpsdir.Of(node.RunDir, c.PhysicalGPU()), limitBytes: c.LimitBytes, percentage: c.MPS.Percentage}
	if namespace := filepath.Join(mpsdir.Namespaces, c.ID); m.has(namespace) {
		m.namespace = namespace
	}
	for _, needed := range []string{filepath.Join(m.dir, m.pipes(), mpsdir.Control), filepath.Join(m.dir, mpsdir.Shm)} {
		if _, err := os.Stat(needed); err != nil {
			return nil, &MPSDownError{GPUUUID: c.PhysicalGPU(), err: err}
		}
	}
	return Modifiers{m}, nil
}

// pipes returns the directory with the socket of the container's programs.
func (m mpsClient) pipes() string { return cmp.Or(m.namespace, mpsdir.Client) }

// Modify replaces mounts of the engine or the job by the daemon's, and variables of the image or the job by the claim's
// limits. The mounts are appended, so that no mount of the job hides them.
func (m mpsClient) Modify(spec *specs.Spec) error {
	if err := refuseShmOf(spec); err != nil {
		return err
	}
	spec.Mounts = slices.DeleteFunc(slices.Clone(spec.Mounts), func(mount specs.Mount) bool {
		at := ocispec.ContainerPath(mount.Destination)
		return at == mpsShmAt || at == mpsPipesAt || strings.HasPrefix(at, mpsPipesAt+"/")
	})
	spec.Mounts = append(spec.Mounts, m.mount(m.pipes(), mpsPipesAt, mpsPipesAccess), m.mount(mpsdir.Shm, mpsShmAt, mpsShmAccess))
	setVariable(spec, mpsPipesEnv, mpsPipesAt)
	if m.namespace != "" {
		// One of the image or the job could only lower the namespace's limit, or end it: it does so if it names other GPUs.
		removeVariable(spec, mpsMemoryEnv)
		removeVariable(spec, mpsPercentageEnv)
		return nil
	}
	if lock := filepath.Join(mpsdir.Client, mpsdir.Lock); m.has(lock) {
		spec.Mounts = append(spec.Mounts, m.mount(lock, filepath.Join(mpsPipesAt, mpsdir.Lock), mpsLockAccess))
	}
	// The daemon sees one GPU, which is number 0 for its clients. A limit of 0 would mean no limit.
	setVariable(spec, mpsMemoryEnv, fmt.Sprintf("0=%dM", max(1, m.limitBytes>>20)))
	setVariable(spec, mpsPercentageEnv, strconv.Itoa(m.percentage))
	return nil
}

// has reports whether the daemon has a file, which depends on its version.
func (m mpsClient) has(name string) bool {
	_, err := os.Stat(filepath.Join(m.dir, name))
	return err == nil
}

func (m mpsClient) mount(name, at, access string) specs.Mount {
	return specs.Mount{
		Destination: at, Type: "bind", Source: filepath.Join(m.dir, name), Options: []string{access, "nosuid", "nodev", "noexec", "bind"},
	}
}

// refuseShmOf refuses a container that shares the host's /dev/shm, which would be replaced by the daemon's, so that its
// programs could share memory with one of the two only. A /dev/shm of the container's or of its pod's own is replaced.
func refuseShmOf(spec *specs.Spec) error {
	for _, mount := range spec.Mounts {
		at := ocispec.ContainerPath(mount.Destination)
		if strings.HasPrefix(at, mpsShmAt+"/") {
			return fmt.Errorf("mount the MPS server's shared memory at %s: the container mounts %q at %s, below it; mount that "+
				"somewhere else, since all clients of the server have the same %s", mpsShmAt, mount.Source, mount.Destination, mpsShmAt)
		}
		if at == mpsShmAt && ocispec.IsBind(mount) && isHostShm(mount.Source) {
			return fmt.Errorf("mount the MPS server's shared memory at %s: the container shares the host's (%s), and can't have "+
				"both; start it with an IPC namespace of its own (ipc_mode and --ipc other than \"host\")", mpsShmAt, mount.Source)
		}
	}
	return nil
}

// isHostShm reports whether a path on the host leads to the host's /dev/shm itself. A directory below it does not count.
func isHostShm(source string) bool {
	own, err := os.Stat(mpsShmAt)
	if errors.Is(err, fs.ErrNotExist) {
		return false
	}
	info, sourceErr := os.Stat(source)
	return err == nil && sourceErr == nil && os.SameFile(own, info)
}

// setVariable sets a variable in the container's environment.
func setVariable(spec *specs.Spec, name, value string) {
	removeVariable(spec, name)
	spec.Process.Env = append(spec.Process.Env, name+"="+value)
}

func removeVariable(spec *specs.Spec, name string) {
	spec.Process.Env = slices.DeleteFunc(slices.Clone(spec.Process.Env), func(entry string) bool {
		before, _, _ := strings.Cut(entry, "=")
		return before == name
	})
}
