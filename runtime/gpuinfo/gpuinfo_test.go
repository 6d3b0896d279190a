package gpuinfo

import (
	"context"
	"errors"
	"os"
	"path/filepath"
	"testing"
	"time"

	"github.com/shoenig/test/must"
	cdispecs "tags.cncf.io/container-device-interface/specs-go"

	"github.com/tranche-gpu/tranche/claim/layout"
	"github.com/tranche-gpu/tranche/runtime/gpuinfo/driverroot"
)

const (
	gpu0 = "GPU-11111111-1111-1111-1111-111111111111"
	gpu1 = "GPU-22222222-2222-2222-2222-222222222222"
)

// testPlace is a node with the files of a driver.
func testPlace(t *testing.T) Place {
	t.Helper()
	dir := t.TempDir()
	place := Place{DriverRoot: filepath.Join(dir, "root"), RunDir: filepath.Join(dir, "run"), CLIPath: "/usr/bin/tranche"}
	for _, soname := range []string{driverroot.CUDALibrary, driverroot.NVMLLibrary} {
		write(t, library(place, soname), "driver")
	}
	write(t, filepath.Join(place.DriverRoot, "dev/nvidiactl"), "")
	write(t, filepath.Join(place.DriverRoot, "dev/nvidia-caps/nvidia-cap0"), "")
	return place
}

func library(place Place, soname string) string {
	return filepath.Join(place.DriverRoot, driverroot.LibraryDirs()[0], soname)
}

func write(t *testing.T, file, content string) {
	t.Helper()
	must.NoError(t, os.MkdirAll(filepath.Dir(file), 0o755))
	must.NoError(t, os.WriteFile(file, []byte(content), 0o644))
}

// driver counts how often it was asked, and answers for its GPUs.
type driver struct {
	gpus  []string
	asked int
}

func (d *driver) refresh(_ context.Context, place Place) error {
	d.asked++
	spec := &cdispecs.Spec{Version: "0.6.0", Kind: "nvidia.com/gpu"}
	var gpus []GPU
	for i, uuid := range d.gpus {
		spec.Devices = append(spec.Devices, cdispecs.Device{Name: uuid})
		gpus = append(gpus, GPU{UUID: uuid, Index: i, UsableBytes: 1 << 30})
	}
	return errors.Join(place.KeepSpec(spec), place.KeepGPUs(gpus))
}

func TestPlace_AsksAgainWhen(t *testing.T) {
	cases := []struct {
		name   string
		change func(t *testing.T, place *Place, d *driver)
		want   int
	}{
		{"nothing changed", func(*testing.T, *Place, *driver) {}, 1},
		{"another command", func(_ *testing.T, p *Place, _ *driver) { p.CLIPath = "/elsewhere/tranche" }, 2},
		{"the driver was replaced in place", func(t *testing.T, p *Place, _ *driver) {
			write(t, library(*p, driverroot.CUDALibrary), "a newer driver")
		}, 2},
		{"the driver was replaced by one of the same size", func(t *testing.T, p *Place, _ *driver) {
			must.NoError(t, os.Chtimes(library(*p, driverroot.NVMLLibrary), time.Time{}, time.Now().Add(time.Hour)))
		}, 2},
		{"a device node appeared", func(t *testing.T, p *Place, _ *driver) {
			write(t, filepath.Join(p.DriverRoot, "dev/nvidia0"), "")
		}, 2},
		{"a MIG instance appeared", func(t *testing.T, p *Place, _ *driver) {
			write(t, filepath.Join(p.DriverRoot, "dev/nvidia-caps/nvidia-cap1"), "")
		}, 2},
		{"a MIG instance is shared now", func(t *testing.T, p *Place, _ *driver) {
			must.NoError(t, layout.Write(p.RunDir, map[string]layout.GPU{gpu0: {}, "MIG-1": {}}))
		}, 2},
		{"how a GPU is shared has changed", func(t *testing.T, p *Place, _ *driver) {
			must.NoError(t, layout.Write(p.RunDir, map[string]layout.GPU{gpu0: {SliceBytes: 1 << 30}}))
		}, 1},
		{"what is kept is damaged", func(t *testing.T, p *Place, _ *driver) {
			kept, err := filepath.Glob(filepath.Join(p.RunDir, "node/*/*.json"))
			must.NoError(t, err)
			must.Len(t, 2, kept)
			for _, file := range kept {
				must.NoError(t, os.Truncate(file, 20))
			}
		}, 2},
		{"the GPU that is asked for was not there", func(_ *testing.T, _ *Place, d *driver) { d.gpus = []string{gpu0, gpu1} }, 2},
	}
	for _, tc := range cases {
		t.Run(tc.name, func(t *testing.T) {
			place, d := testPlace(t), &driver{gpus: []string{gpu0}}
			_, err := place.Spec(t.Context(), d.refresh, d.gpus)
			must.NoError(t, err)
			must.Eq(t, 1, d.asked)

			tc.change(t, &place, d)
			spec, err := place.Spec(t.Context(), d.refresh, d.gpus)
			must.NoError(t, err)
			must.Len(t, len(d.gpus), spec.Devices)
			gpus, err := place.GPUs(t.Context(), d.refresh)
			must.NoError(t, err)
			must.Len(t, len(d.gpus), gpus)
			must.Eq(t, GPU{UUID: gpu0, UsableBytes: 1 << 30}, gpus[0])
			must.Eq(t, tc.want, d.asked)
		})
	}
}

func TestPlace_RemovesWhatIsOfOlderDrivers(t *testing.T) {
	place, d := testPlace(t), &driver{gpus: []string{gpu0}}
	for range 3 {
		_, err := place.Spec(t.Context(), d.refresh, d.gpus)
		must.NoError(t, err)
		write(t, library(place, driverroot.CUDALibrary), string(make([]byte, 100+d.asked)))
	}
	must.Eq(t, 3, d.asked)
	kept, err := filepath.Glob(filepath.Join(place.RunDir, "node/*"))
	must.NoError(t, err)
	must.Len(t, 1, kept)
}

func TestPlace_Errors(t *testing.T) {
	t.Run("NVML does not answer", func(t *testing.T) {
		place, broken := testPlace(t), errors.New("ERROR_GPU_IS_LOST")
		_, err := place.Spec(t.Context(), func(context.Context, Place) error { return broken }, []string{gpu0})
		must.ErrorIs(t, err, broken)
		must.ErrorContains(t, err, place.DriverRoot)
	})
	t.Run("no such GPU", func(t *testing.T) {
		place, d := testPlace(t), &driver{gpus: []string{gpu0}}
		_, err := place.Spec(t.Context(), d.refresh, []string{gpu1})
		must.ErrorContains(t, err, gpu1)
		must.ErrorContains(t, err, place.DriverRoot)
	})
	t.Run("no driver", func(t *testing.T) {
		place, d := testPlace(t), &driver{}
		must.NoError(t, os.RemoveAll(place.DriverRoot))
		_, err := place.GPUs(t.Context(), d.refresh)
		var missing *driverroot.NotFoundError
		must.True(t, errors.As(err, &missing))
		must.Zero(t, d.asked)
	})
}
