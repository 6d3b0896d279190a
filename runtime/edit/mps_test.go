package edit

import (
	"errors"
	"os"
	"path/filepath"
	"slices"
	"strings"
	"testing"

	"github.com/opencontainers/runtime-spec/specs-go"
	"github.com/shoenig/test/must"

	"github.com/tranche-gpu/tranche/claim"
	"github.com/tranche-gpu/tranche/runtime/mpsdir"
	"github.com/tranche-gpu/tranche/runtime/ocispec"
	"github.com/tranche-gpu/tranche/runtime/runtimetest"
)

// mpsClaim is a claim of 30 % and 3.5 MiB behind an MPS control daemon.
func mpsClaim(id, uuid string, index int) Claim {
	made := claimOf(id, uuid, index)
	made.Mode, made.MPS, made.LimitBytes = claim.ModeMPS, &claim.MPS{Percentage: 30}, 7<<19
	return made
}

// startMPS lays out what the device plugin makes for the daemon of a GPU.
func startMPS(t *testing.T, runDir, uuid string) string {
	t.Helper()
	dir := mpsdir.Of(runDir, uuid)
	must.NoError(t, os.MkdirAll(filepath.Join(dir, "shm"), 0o755))
	runtimetest.WriteFile(t, filepath.Join(dir, "client", "control"), "")
	runtimetest.WriteFile(t, filepath.Join(dir, "client", "control_lock"), "")
	return dir
}

func TestMPS(t *testing.T) {
	node := testNode(t)
	dir := startMPS(t, node.RunDir, runtimetest.GPU0)
	must.Eq(t, filepath.Join(node.RunDir, "mps", runtimetest.GPU0), dir)
	edits, err := New(t.Context(), node, []Claim{mpsClaim("aaaaaaaa", runtimetest.GPU0, 0)})
	must.NoError(t, err)
	for name, before := range map[string][]specs.Mount{
		"nothing there":           nil,
		"the engine's own":        {{Destination: "/dev/shm", Type: "tmpfs", Source: "shm", Options: []string{"size=64m"}}},
		"what engines bind":       {runtimetest.Bind(t.TempDir(), "/dev/shm")},
		"written in another way":  {runtimetest.Bind(t.TempDir(), "//dev/./shm/")},
		"another daemon":          {runtimetest.Bind(t.TempDir(), "/tmp/nvidia-mps"), runtimetest.Bind(t.TempDir(), "/tmp/nvidia-mps/log")},
		"a directory above those": {runtimetest.Bind(t.TempDir(), "/tmp"), {Destination: "/dev", Type: "tmpfs", Source: "tmpfs"}},
	} {
		t.Run(name, func(t *testing.T) {
			spec := runtimetest.ContainerSpec()
			spec.Mounts = append(spec.Mounts, before...)
			spec.Process.Env = append(spec.Process.Env, "CUDA_MPS_ACTIVE_THREAD_PERCENTAGE=100",
				"CUDA_MPS_PINNED_DEVICE_MEM_LIMIT=0=80000M", "CUDA_MPS_PIPE_DIRECTORY=/job", "CUDA_MPS_PIPE_DIRECTORY_OLD=1")
			must.NoError(t, edits.Modify(spec))
			for at, want := range map[string][2]string{
				"/tmp/nvidia-mps": {"client", "ro"}, "/tmp/nvidia-mps/control_lock": {"client/control_lock", "rw"}, "/dev/shm": {"shm", "rw"},
			} {
				mount := runtimetest.MountAt(t, spec, at)
				must.Eq(t, filepath.Join(dir, want[0]), mount.Source)
				must.Eq(t, []string{want[1], "nosuid", "nodev", "noexec", "bind"}, mount.Options)
				must.Greater(t, slices.Index(runtimetest.Destinations(spec), at), slices.Index(runtimetest.Destinations(spec), runtimetest.LibDir+"/libcuda.so."+runtimetest.DriverVersion),
					must.Sprint("a link in the image would have it cover the shadow"))
				for _, earlier := range before {
					if replaced := ocispec.ContainerPath(earlier.Destination); replaced == "/dev/shm" || strings.HasPrefix(replaced, "/tmp/nvidia-mps") {
						continue
					}
					must.Less(t, slices.Index(runtimetest.Destinations(spec), at), slices.Index(runtimetest.Destinations(spec), earlier.Destination))
				}
			}
			must.Len(t, 3, mountsAt(spec, "/tmp/nvidia-mps", "/tmp/nvidia-mps/control_lock", "/tmp/nvidia-mps/log", "/dev/shm"))
			must.Less(t, slices.Index(runtimetest.Destinations(spec), "/tmp/nvidia-mps/control_lock"), slices.Index(runtimetest.Destinations(spec), "/tmp/nvidia-mps"))
			must.Eq(t, []string{
				"PATH=/bin", "LD_PRELOAD=/job/own.so", "CUDA_MPS_PIPE_DIRECTORY_OLD=1",
				"CUDA_MPS_PIPE_DIRECTORY=/tmp/nvidia-mps", "CUDA_MPS_PINNED_DEVICE_MEM_LIMIT=0=3M",
				"CUDA_MPS_ACTIVE_THREAD_PERCENTAGE=30", "NVIDIA_VISIBLE_DEVICES=void",
			}, spec.Process.Env)
			runtimetest.MountAt(t, spec, "/.tranche/claims/aaaaaaaa") // our own limit as well
		})
	}
}

// mountsAt are the mounts at some places, however these are written.
func mountsAt(spec *specs.Spec, places ...string) []specs.Mount {
	var found []specs.Mount
	for _, mount := range spec.Mounts {
		if slices.Contains(places, ocispec.ContainerPath(mount.Destination)) {
			found = append(found, mount)
		}
	}
	return found
}

// A limit of 0 would be none to CUDA.
func TestMPS_TheLeastLimit(t *testing.T) {
	spec := runtimetest.ContainerSpec()
	must.NoError(t, mpsClient{dir: "/run/mps", limitBytes: 1 << 10, percentage: 1}.Modify(spec))
	must.SliceContains(t, spec.Process.Env, "CUDA_MPS_PINNED_DEVICE_MEM_LIMIT=0=1M")
}

func TestMPS_Refused(t *testing.T) {
	link := filepath.Join(t.TempDir(), "shm")
	must.NoError(t, os.Symlink("/dev/shm", link))
	for name, tc := range map[string]struct {
		mount specs.Mount
		want  string
	}{
		"the host's shared memory":    {runtimetest.Bind("/dev/shm", "/dev/shm"), `the container shares the host's`},
		"it by another name":          {runtimetest.Bind(link, "/dev/shm"), `the container shares the host's`},
		"something in shared memory":  {runtimetest.Bind("/srv/data", "/dev/shm/data"), `mounts "/srv/data" at /dev/shm/data`},
		"something in it, with steps": {runtimetest.Bind("/srv/data", "/dev/../dev/shm/data"), "below it"},
	} {
		t.Run(name, func(t *testing.T) {
			spec := runtimetest.ContainerSpec()
			spec.Mounts = append(spec.Mounts, tc.mount)
			must.ErrorContains(t, mpsClient{dir: "/run/mps", limitBytes: 1 << 30, percentage: 1}.Modify(spec), tc.want)
		})
	}
}

func TestMPS_RefusedBesideOthers(t *testing.T) {
	node := testNode(t)
	startMPS(t, node.RunDir, runtimetest.GPU0)
	startMPS(t, node.RunDir, runtimetest.GPU1)
	for name, second := range map[string]Claim{
		"two of them": mpsClaim("bbbbbbbb", runtimetest.GPU1, 1), "slices of another GPU": claimOf("bbbbbbbb", runtimetest.GPU1, 1),
		"a whole GPU": unlimitedClaim("bbbbbbbb", runtimetest.GPU1, 1, claim.ModeExclusive),
	} {
		t.Run(name, func(t *testing.T) {
			for _, claims := range [][]Claim{{mpsClaim("aaaaaaaa", runtimetest.GPU0, 0), second}, {second, mpsClaim("aaaaaaaa", runtimetest.GPU0, 0)}} {
				_, err := New(t.Context(), node, claims)
				must.ErrorContains(t, err, "a container has one claim in mode mps")
				must.ErrorContains(t, err, "aaaaaaaa")
				must.ErrorContains(t, err, "bbbbbbbb")
			}
		})
	}
}

func TestMPS_DaemonIsDown(t *testing.T) {
	for _, missing := range []string{"client/control", "shm", ""} {
		node := testNode(t)
		dir := startMPS(t, node.RunDir, runtimetest.GPU0)
		must.NoError(t, os.RemoveAll(filepath.Join(dir, missing)))
		_, err := New(t.Context(), node, []Claim{mpsClaim("aaaaaaaa", runtimetest.GPU0, 0)})
		var down *MPSDownError
		must.True(t, errors.As(err, &down), must.Sprintf("%q: %v", missing, err))
		must.True(t, down.Retriable())
		must.Eq(t, runtimetest.GPU0, down.GPUUUID)
		must.ErrorIs(t, err, os.ErrNotExist)
		must.True(t, strings.Contains(err.Error(), "the device plugin starts it"))
	}
}

// On another GPU of the same node there are no clients of a daemon.
func TestMPS_NotForOthers(t *testing.T) {
	node := testNode(t)
	startMPS(t, node.RunDir, runtimetest.GPU0)
	spec := edited(t, node, claimOf("aaaaaaaa", runtimetest.GPU0, 0))
	must.SliceEmpty(t, mountsAt(spec, "/tmp/nvidia-mps", "/dev/shm"))
	must.StrNotContains(t, strings.Join(spec.Process.Env, " "), "CUDA_MPS")
}

// With MPS v3 a container has the directory of its claim's namespace alone, and the daemon has the limits.
func TestMPS_Namespace(t *testing.T) {
	node := testNode(t)
	dir := startMPS(t, node.RunDir, runtimetest.GPU0)
	runtimetest.WriteFile(t, filepath.Join(dir, "ns/aaaaaaaa/control"), "")
	runtimetest.WriteFile(t, filepath.Join(dir, "ns/bbbbbbbb/control"), "")
	for name, enforcement := range map[string]claim.Enforcement{"by the driver": claim.EnforcementDriver, "by the library": ""} {
		t.Run(name, func(t *testing.T) {
			made := mpsClaim("aaaaaaaa", runtimetest.GPU0, 0)
			made.Enforcement = enforcement
			edits, err := New(t.Context(), node, []Claim{made})
			must.NoError(t, err)
			spec := runtimetest.ContainerSpec()
			// It names a GPU that the container does not have, which would end the namespace's limit.
			spec.Process.Env = append(spec.Process.Env, "CUDA_MPS_PINNED_DEVICE_MEM_LIMIT=0=1G,1=1G", "CUDA_MPS_ACTIVE_THREAD_PERCENTAGE=100")
			must.NoError(t, edits.Modify(spec))
			must.Len(t, 2, mountsAt(spec, "/tmp/nvidia-mps", "/tmp/nvidia-mps/control_lock", "/dev/shm"))
			mount := runtimetest.MountAt(t, spec, "/tmp/nvidia-mps")
			must.Eq(t, filepath.Join(dir, "ns/aaaaaaaa"), mount.Source)
			must.SliceContains(t, mount.Options, "ro")
			env := strings.Join(spec.Process.Env, " ")
			must.StrContains(t, env, "CUDA_MPS_PIPE_DIRECTORY=/tmp/nvidia-mps")
			must.StrNotContains(t, env, "CUDA_MPS_PINNED_DEVICE_MEM_LIMIT")
			must.StrNotContains(t, env, "CUDA_MPS_ACTIVE_THREAD_PERCENTAGE")
			must.Eq(t, enforcement == "", len(mountsAt(spec, "/.tranche")) > 0, must.Sprint("the region of the shadow library"))
		})
	}
}

// A namespace whose socket is gone is no reason to use another one: the program would be without MPS.
func TestMPS_NamespaceIsDown(t *testing.T) {
	node := testNode(t)
	dir := startMPS(t, node.RunDir, runtimetest.GPU0)
	must.NoError(t, os.MkdirAll(filepath.Join(dir, "ns/aaaaaaaa"), 0o755))
	_, err := New(t.Context(), node, []Claim{mpsClaim("aaaaaaaa", runtimetest.GPU0, 0)})
	var down *MPSDownError
	must.True(t, errors.As(err, &down), must.Sprint(err))
}
