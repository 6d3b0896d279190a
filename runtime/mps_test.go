package runtime

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
)

// mpsGrant is a grant of 30 % and 3.5 MiB behind an MPS control daemon.
func mpsGrant(id, uuid string, index int) Grant {
	grant := grantOf(id, uuid, index)
	grant.Claim.Mode, grant.Claim.MPS, grant.Claim.LimitBytes = claim.ModeMPS, &claim.MPS{Percentage: 30}, 7<<19
	return grant
}

// startMPS lays out what the device plugin makes for the daemon of a GPU.
func startMPS(t *testing.T, runDir, uuid string) string {
	t.Helper()
	dir := MPSDir(runDir, uuid)
	must.NoError(t, os.MkdirAll(filepath.Join(dir, "shm"), 0o755))
	WriteFile(t, filepath.Join(dir, "client", "control"), "")
	WriteFile(t, filepath.Join(dir, "client", "control_lock"), "")
	return dir
}

func TestMPS(t *testing.T) {
	cfg := NodeConfig(t)
	dir := startMPS(t, cfg.RunDir, GPU0)
	must.Eq(t, filepath.Join(cfg.RunDir, "mps", GPU0), dir)
	edits, err := Edits(t.Context(), cfg, []Grant{mpsGrant("aaaaaaaa", GPU0, 0)})
	must.NoError(t, err)
	for name, before := range map[string][]specs.Mount{
		"nothing there":           nil,
		"the engine's own":        {{Destination: "/dev/shm", Type: "tmpfs", Source: "shm", Options: []string{"size=64m"}}},
		"what engines bind":       {bind(t.TempDir(), "/dev/shm")},
		"written in another way":  {bind(t.TempDir(), "//dev/./shm/")},
		"another daemon":          {bind(t.TempDir(), "/tmp/nvidia-mps"), bind(t.TempDir(), "/tmp/nvidia-mps/log")},
		"a directory above those": {bind(t.TempDir(), "/tmp"), {Destination: "/dev", Type: "tmpfs", Source: "tmpfs"}},
	} {
		t.Run(name, func(t *testing.T) {
			spec := containerSpec()
			spec.Mounts = append(spec.Mounts, before...)
			spec.Process.Env = append(spec.Process.Env, "CUDA_MPS_ACTIVE_THREAD_PERCENTAGE=100",
				"CUDA_MPS_PINNED_DEVICE_MEM_LIMIT=0=80000M", "CUDA_MPS_PIPE_DIRECTORY=/job", "CUDA_MPS_PIPE_DIRECTORY_OLD=1")
			must.NoError(t, edits.Modify(spec))
			for at, want := range map[string][2]string{
				"/tmp/nvidia-mps": {"client", "ro"}, "/tmp/nvidia-mps/control_lock": {"client/control_lock", "rw"}, "/dev/shm": {"shm", "rw"},
			} {
				mount := mountAt(t, spec, at)
				must.Eq(t, filepath.Join(dir, want[0]), mount.Source)
				must.Eq(t, []string{want[1], "nosuid", "nodev", "noexec", "bind"}, mount.Options)
				must.Greater(t, slices.Index(destinations(spec), at), slices.Index(destinations(spec), LibDir+"/libcuda.so."+driverVersion),
					must.Sprint("a link in the image would have it cover the shadow"))
				for _, earlier := range before {
					if replaced := containerPath(earlier.Destination); replaced == "/dev/shm" || strings.HasPrefix(replaced, "/tmp/nvidia-mps") {
						continue
					}
					must.Less(t, slices.Index(destinations(spec), at), slices.Index(destinations(spec), earlier.Destination))
				}
			}
			must.Len(t, 3, mountsAt(spec, "/tmp/nvidia-mps", "/tmp/nvidia-mps/control_lock", "/tmp/nvidia-mps/log", "/dev/shm"))
			must.Less(t, slices.Index(destinations(spec), "/tmp/nvidia-mps/control_lock"), slices.Index(destinations(spec), "/tmp/nvidia-mps"))
			must.Eq(t, []string{
				"PATH=/bin", "LD_PRELOAD=/job/own.so", "CUDA_MPS_PIPE_DIRECTORY_OLD=1",
				"CUDA_MPS_PIPE_DIRECTORY=/tmp/nvidia-mps", "CUDA_MPS_PINNED_DEVICE_MEM_LIMIT=0=3M",
				"CUDA_MPS_ACTIVE_THREAD_PERCENTAGE=30", "NVIDIA_VISIBLE_DEVICES=void",
			}, spec.Process.Env)
			mountAt(t, spec, "/.tranche/claims/aaaaaaaa") // our own limit as well
		})
	}
}

// mountsAt are the mounts at some places, however these are written.
func mountsAt(spec *specs.Spec, places ...string) []specs.Mount {
	var found []specs.Mount
	for _, mount := range spec.Mounts {
		if slices.Contains(places, containerPath(mount.Destination)) {
			found = append(found, mount)
		}
	}
	return found
}

// A limit of 0 would be none to CUDA.
func TestMPS_TheLeastLimit(t *testing.T) {
	spec := containerSpec()
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
		"the host's shared memory":    {bind("/dev/shm", "/dev/shm"), `the container shares the host's`},
		"it by another name":          {bind(link, "/dev/shm"), `the container shares the host's`},
		"something in shared memory":  {bind("/srv/data", "/dev/shm/data"), `mounts "/srv/data" at /dev/shm/data`},
		"something in it, with steps": {bind("/srv/data", "/dev/../dev/shm/data"), "below it"},
	} {
		t.Run(name, func(t *testing.T) {
			spec := containerSpec()
			spec.Mounts = append(spec.Mounts, tc.mount)
			must.ErrorContains(t, mpsClient{dir: "/run/mps", limitBytes: 1 << 30, percentage: 1}.Modify(spec), tc.want)
		})
	}
}

func TestMPS_RefusedBesideOthers(t *testing.T) {
	cfg := NodeConfig(t)
	startMPS(t, cfg.RunDir, GPU0)
	startMPS(t, cfg.RunDir, GPU1)
	for name, second := range map[string]Grant{
		"two of them": mpsGrant("bbbbbbbb", GPU1, 1), "slices of another GPU": grantOf("bbbbbbbb", GPU1, 1),
		"a whole GPU": unlimitedGrant("bbbbbbbb", GPU1, 1, claim.ModeExclusive),
	} {
		t.Run(name, func(t *testing.T) {
			for _, grants := range [][]Grant{{mpsGrant("aaaaaaaa", GPU0, 0), second}, {second, mpsGrant("aaaaaaaa", GPU0, 0)}} {
				_, err := Edits(t.Context(), cfg, grants)
				must.ErrorContains(t, err, "a container has one claim in mode mps")
				must.ErrorContains(t, err, "aaaaaaaa")
				must.ErrorContains(t, err, "bbbbbbbb")
			}
		})
	}
}

func TestMPS_DaemonIsDown(t *testing.T) {
	for _, missing := range []string{"client/control", "shm", ""} {
		cfg := NodeConfig(t)
		dir := startMPS(t, cfg.RunDir, GPU0)
		must.NoError(t, os.RemoveAll(filepath.Join(dir, missing)))
		_, err := Edits(t.Context(), cfg, []Grant{mpsGrant("aaaaaaaa", GPU0, 0)})
		var down *MPSDownError
		must.True(t, errors.As(err, &down), must.Sprintf("%q: %v", missing, err))
		must.True(t, down.Retriable())
		must.Eq(t, GPU0, down.GPUUUID)
		must.ErrorIs(t, err, os.ErrNotExist)
		must.True(t, strings.Contains(err.Error(), "the device plugin starts it"))
	}
}

// On another GPU of the same node there are no clients of a daemon.
func TestMPS_NotForOthers(t *testing.T) {
	cfg := NodeConfig(t)
	startMPS(t, cfg.RunDir, GPU0)
	spec := edited(t, cfg, grantOf("aaaaaaaa", GPU0, 0))
	must.SliceEmpty(t, mountsAt(spec, "/tmp/nvidia-mps", "/dev/shm"))
	must.StrNotContains(t, strings.Join(spec.Process.Env, " "), "CUDA_MPS")
}
