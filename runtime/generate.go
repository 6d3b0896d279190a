package runtime

import (
	"crypto/sha256"
	"encoding/hex"
	"encoding/json"
	"errors"
	"fmt"
	"io"
	"os"
	"path/filepath"
	"slices"
	"strings"

	"github.com/NVIDIA/nvidia-container-toolkit/pkg/lookup"
	"github.com/NVIDIA/nvidia-container-toolkit/pkg/nvcdi"
	"github.com/google/renameio/v2"
	"github.com/hashicorp/go-hclog"
	"golang.org/x/sys/unix"
	"tags.cncf.io/container-device-interface/pkg/cdi"
	cdispecs "tags.cncf.io/container-device-interface/specs-go"
)

// generatedFormat is part of the name under which generated specs are kept. Raise it when they change.
const generatedFormat = "1"

// driverVersionFile changes with the kernel module. It lies outside any driver root: there is one kernel.
const driverVersionFile = "/proc/driver/nvidia/version"

// specGenerator makes a CDI spec that names the given GPUs by UUID.
type specGenerator func(cfg Config, uuids []string) (*cdispecs.Spec, error)

// generateDevices makes a CDI spec for the GPUs of the grants from what NVML and the driver root say. That takes NVML
// the better part of a second, so the spec is kept in the run directory, under a name that changes with the driver.
func generateDevices(cfg Config, grants []Grant, generate specGenerator) ([]*cdi.Device, error) {
	driver, err := fingerprintDriver(cfg)
	if err != nil {
		return nil, err
	}
	uuids := gpuUUIDs(grants)
	file := filepath.Join(cfg.RunDir, "cdi", driver, specFileName(uuids))
	if devices, err := devicesOf(file, uuids); err == nil {
		return devices, nil
	}
	raw, err := generate(cfg, uuids)
	if err != nil {
		return nil, fmt.Errorf("generate a CDI spec for %s from the driver root %s: %w",
			strings.Join(uuids, ", "), cfg.DriverRoot, err)
	}
	if err := keepSpec(file, raw); err != nil {
		return nil, fmt.Errorf("keep the generated CDI spec: %w", err)
	}
	return devicesOf(file, uuids)
}

func gpuUUIDs(grants []Grant) []string {
	var uuids []string
	for _, grant := range grants {
		uuids = append(uuids, grant.Claim.GPU.UUID)
	}
	slices.Sort(uuids)
	return slices.Compact(uuids)
}

func specFileName(uuids []string) string {
	sum := sha256.Sum256([]byte(strings.Join(uuids, "\n")))
	return hex.EncodeToString(sum[:8]) + ".json"
}

// devicesOf reads the devices out of a spec that keepSpec wrote.
func devicesOf(file string, uuids []string) ([]*cdi.Device, error) {
	spec, err := cdi.ReadSpec(file, 0)
	if err != nil {
		return nil, fmt.Errorf("read the generated CDI spec %s: %w", file, err)
	}
	if spec == nil {
		return nil, fmt.Errorf("read the generated CDI spec %s: %w", file, os.ErrNotExist)
	}
	var devices []*cdi.Device
	for _, uuid := range uuids {
		device := spec.GetDevice(uuid)
		if device == nil {
			return nil, fmt.Errorf("read the generated CDI spec %s: it does not name %s", file, uuid)
		}
		devices = append(devices, device)
	}
	return devices, nil
}

// keepSpec writes a spec and removes those of earlier drivers.
func keepSpec(file string, raw *cdispecs.Spec) error {
	dir := filepath.Dir(file)
	if err := os.MkdirAll(dir, 0o755); err != nil {
		return err
	}
	content, err := json.Marshal(raw)
	if err != nil {
		return err
	}
	if err := renameio.WriteFile(file, content, 0o644); err != nil {
		return err
	}
	others, err := filepath.Glob(filepath.Join(filepath.Dir(dir), "*"))
	if err != nil {
		return err
	}
	for _, other := range others {
		if other != dir {
			_ = os.RemoveAll(other) // only a cache
		}
	}
	return nil
}

// generateSpec asks nvcdi for the spec, with tranche-hook in the place of nvidia-cdi-hook.
func generateSpec(cfg Config, uuids []string) (*cdispecs.Spec, error) {
	namer, err := nvcdi.NewDeviceNamer(nvcdi.DeviceNameStrategyUUID)
	if err != nil {
		return nil, err
	}
	generator, err := nvcdi.New(
		nvcdi.WithLogger(nvcdiLogger{cfg.Logger.Named("nvcdi")}),
		nvcdi.WithMode(nvcdi.ModeNvml),
		nvcdi.WithDriverRoot(cfg.DriverRoot),
		nvcdi.WithDevRoot(devRoot(cfg)),
		nvcdi.WithDeviceNamers(namer),
		nvcdi.WithVendor(cdiVendor),
		nvcdi.WithClass(cdiClass),
		nvcdi.WithNVIDIACDIHookPath(cfg.HookPath),
		nvcdi.WithDisabledHooks(cudaCompatHook, cudaMemoryLimitsHook),
		// A second library to ask, which is looked for outside the driver root too; NVML knows all that is needed.
		nvcdi.WithFeatureFlags(nvcdi.FeatureDisableNvsandboxUtils),
	)
	if err != nil {
		return nil, err
	}
	spec, err := generator.GetSpec(uuids...)
	if err != nil {
		return nil, err
	}
	raw := spec.Raw()
	inCDIRole(&raw.ContainerEdits)
	for i := range raw.Devices {
		inCDIRole(&raw.Devices[i].ContainerEdits)
	}
	return raw, nil
}

// inCDIRole turns "tranche-hook NAME …" into "tranche-hook cdi NAME …".
func inCDIRole(edits *cdispecs.ContainerEdits) {
	for _, hook := range edits.Hooks {
		hook.Args = slices.Insert(slices.Clone(hook.Args), 1, "cdi")
	}
}

// devRoot is the directory that holds the driver's dev: the driver root where the driver brings device nodes of its own
// (a driver in a container), else the host's.
func devRoot(cfg Config) string {
	if _, err := os.Stat(filepath.Join(cfg.DriverRoot, "dev/nvidiactl")); err == nil {
		return cfg.DriverRoot
	}
	return "/"
}

// fingerprintDriver sums up all that a generated spec depends on, so that it is made anew when the driver was replaced,
// its modules were loaded again under other device numbers, or GPUs came or went. It asks files only, not NVML.
func fingerprintDriver(cfg Config) (string, error) {
	sum := sha256.New()
	fmt.Fprintln(sum, generatedFormat, cfg.DriverRoot, devRoot(cfg), cfg.HookPath)
	locator := lookup.NewLibraryLocator(
		lookup.WithLogger(nvcdiLogger{cfg.Logger.Named("nvcdi")}), lookup.WithRoot(cfg.DriverRoot))
	for _, soname := range []string{libnvml, libcuda} {
		found, err := locator.Locate(soname)
		if err != nil {
			return "", fmt.Errorf("find %s in the driver root %s, to generate a CDI spec from it: %w; "+
				"install the GPU driver there, or set driver_root to where it is", soname, cfg.DriverRoot, err)
		}
		for _, file := range found {
			if err := describeFile(sum, file); err != nil {
				return "", err
			}
		}
	}
	if version, err := os.ReadFile(driverVersionFile); err == nil {
		fmt.Fprintf(sum, "%s\n", version)
	}
	nodes, err := filepath.Glob(filepath.Join(devRoot(cfg), "dev/nvidia*"))
	if err != nil {
		return "", err
	}
	for _, node := range nodes {
		if err := describeFile(sum, node); err != nil {
			return "", err
		}
	}
	return hex.EncodeToString(sum.Sum(nil)[:8]), nil
}

// describeFile writes what tells a file from one that replaced it.
func describeFile(w io.Writer, file string) error {
	var stat unix.Stat_t
	if err := unix.Stat(file, &stat); err != nil {
		if errors.Is(err, unix.ENOENT) {
			return nil // gone since it was listed
		}
		return fmt.Errorf("look at %s: %w", file, err)
	}
	if stat.Mode&unix.S_IFMT == unix.S_IFREG {
		fmt.Fprintln(w, file, stat.Dev, stat.Ino, stat.Size, stat.Mtim.Nano())
		return nil
	}
	fmt.Fprintln(w, file, stat.Mode, stat.Rdev)
	return nil
}

// nvcdiLogger passes on what nvcdi says. Its warnings are about files that many drivers don't have.
type nvcdiLogger struct {
	logger hclog.Logger
}

func (l nvcdiLogger) Tracef(format string, args ...any) { l.logger.Trace(fmt.Sprintf(format, args...)) }
func (l nvcdiLogger) Debugf(format string, args ...any) { l.logger.Trace(fmt.Sprintf(format, args...)) }
func (l nvcdiLogger) Infof(format string, args ...any)  { l.logger.Trace(fmt.Sprintf(format, args...)) }
func (l nvcdiLogger) Warningf(format string, args ...any) {
	l.logger.Debug(fmt.Sprintf(format, args...))
}
func (l nvcdiLogger) Errorf(format string, args ...any) { l.logger.Error(fmt.Sprintf(format, args...)) }
