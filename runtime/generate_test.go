package runtime

import (
	"errors"
	"os"
	"path/filepath"
	"testing"
	"time"

	"github.com/shoenig/test/must"
	cdispecs "tags.cncf.io/container-device-interface/specs-go"
)

// counting makes a spec in which each GPU has a device node named after how often it was asked.
func counting(asked *int) specGenerator {
	return func(_ Config, uuids []string) (*cdispecs.Spec, error) {
		*asked++
		spec := &cdispecs.Spec{Version: "0.6.0", Kind: cdiKind}
		for _, uuid := range uuids {
			spec.Devices = append(spec.Devices, cdispecs.Device{Name: uuid, ContainerEdits: cdispecs.ContainerEdits{
				Env: []string{"GPU=" + uuid},
			}})
		}
		return spec, nil
	}
}

func TestGenerateDevices_Cache(t *testing.T) {
	one := []Grant{grantOf("aaaaaaaa", GPU0, 0)}
	both := []Grant{grantOf("bbbbbbbb", GPU1, 1), grantOf("aaaaaaaa", GPU0, 0)}
	libcudaFile := func(cfg Config) string { return filepath.Join(cfg.DriverRoot, LibDir, "libcuda.so."+driverVersion) }

	cases := []struct {
		name   string
		change func(t *testing.T, cfg *Config)
		second []Grant
		want   int
	}{
		{"nothing changed", func(*testing.T, *Config) {}, one, 1},
		{"another set of GPUs", func(*testing.T, *Config) {}, both, 2},
		{"another hook", func(_ *testing.T, cfg *Config) { cfg.HookPath = "/elsewhere/tranche-hook" }, one, 2},
		{"the driver was replaced in place", func(t *testing.T, cfg *Config) {
			must.NoError(t, os.WriteFile(libcudaFile(*cfg), []byte("newer"), 0o755))
		}, one, 2},
		{"the driver was replaced by one of the same size", func(t *testing.T, cfg *Config) {
			must.NoError(t, os.Chtimes(libcudaFile(*cfg), time.Time{}, time.Now().Add(time.Hour)))
		}, one, 2},
		{"a device node appeared", func(t *testing.T, cfg *Config) {
			WriteFile(t, filepath.Join(cfg.DriverRoot, "dev/nvidiactl"), "")
		}, one, 2},
		{"the kept spec is damaged", func(t *testing.T, cfg *Config) {
			kept, err := filepath.Glob(filepath.Join(cfg.RunDir, "cdi/*/*.json"))
			must.NoError(t, err)
			must.Len(t, 1, kept)
			must.NoError(t, os.Truncate(kept[0], 20))
		}, one, 2},
	}
	for _, tc := range cases {
		t.Run(tc.name, func(t *testing.T) {
			cfg := NodeConfig(t)
			asked := 0
			devices, err := generateDevices(cfg, one, counting(&asked))
			must.NoError(t, err)
			must.Len(t, 1, devices)
			tc.change(t, &cfg)
			devices, err = generateDevices(cfg, tc.second, counting(&asked))
			must.NoError(t, err)
			must.Len(t, len(tc.second), devices)
			must.Eq(t, tc.want, asked)
		})
	}
}

func TestGenerateDevices_RemovesOlderSpecs(t *testing.T) {
	cfg := NodeConfig(t)
	asked := 0
	grants := []Grant{grantOf("aaaaaaaa", GPU0, 0)}
	for range 3 {
		_, err := generateDevices(cfg, grants, counting(&asked))
		must.NoError(t, err)
		file := filepath.Join(cfg.DriverRoot, LibDir, "libcuda.so."+driverVersion)
		must.NoError(t, os.WriteFile(file, make([]byte, 100+asked), 0o755))
	}
	must.Eq(t, 3, asked)
	kept, err := filepath.Glob(filepath.Join(cfg.RunDir, "cdi/*"))
	must.NoError(t, err)
	must.Len(t, 1, kept)
}

func TestGenerateDevices_Error(t *testing.T) {
	cfg := NodeConfig(t)
	broken := errors.New("ERROR_GPU_IS_LOST")
	_, err := generateDevices(cfg, []Grant{grantOf("aaaaaaaa", GPU0, 0)},
		func(Config, []string) (*cdispecs.Spec, error) { return nil, broken })
	must.ErrorIs(t, err, broken)
	must.ErrorContains(t, err, GPU0)
	must.ErrorContains(t, err, cfg.DriverRoot)
}
