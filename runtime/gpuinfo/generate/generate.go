// Package generate makes the CDI specification of a node's GPUs, with NVIDIA's nvcdi. It loads NVML, so only dynamically linked
// programs can use it; package gpuinfo caches its results for the others.
package generate

import (
	"context"
	"errors"
	"fmt"
	"slices"

	"github.com/NVIDIA/go-nvml/pkg/nvml"
	"github.com/NVIDIA/nvidia-container-toolkit/pkg/nvcdi"
	"github.com/hashicorp/go-hclog"
	cdispecs "tags.cncf.io/container-device-interface/specs-go"

	"github.com/tranche-gpu/tranche/runtime/gpuinfo"
	"github.com/tranche-gpu/tranche/runtime/gpuinfo/driverroot"
)

// The kind of the CDI devices that are GPUs.
const (
	vendor = "nvidia.com"
	class  = "gpu"
)

// HookCommand is the command of tranche that runs NVIDIA's hooks.
const HookCommand = "cdi-hook"

// disabledHooks are not for containers with a limit. The first makes the loader prefer an image's own libcuda for forward
// compatibility, which has no shadow in front of it. The second has the driver limit a container's memory to the value of a
// variable, which the job may set.
var disabledHooks = []nvcdi.HookName{"enable-cuda-compat", "apply-cuda-memory-limits"}

// Refresher returns a Refresher that queries NVML in this process.
func Refresher(logger hclog.Logger) gpuinfo.Refresher {
	return func(_ context.Context, place gpuinfo.Place) error {
		spec, unanswered, err := Spec(place, logger)
		if err != nil {
			return err
		}
		for _, gpu := range unanswered {
			logger.Warn("a GPU does not answer, so no container gets it", "gpu", gpu.Index, "error", gpu.Error)
		}
		// First, so that errors about a GPU that the specification lacks have the reason.
		return errors.Join(place.KeepUnanswered(unanswered), place.KeepSpec(spec))
	}
}

// Spec generates a CDI specification with every GPU and MIG instance of the node by its UUID, except GPUs that do not answer. If
// none answers, it returns an error.
func Spec(place gpuinfo.Place, logger hclog.Logger) (*cdispecs.Spec, []gpuinfo.Unanswered, error) {
	generated, unanswered, err := spec(place, logger)
	if err != nil {
		return nil, nil, fmt.Errorf("generate a CDI spec from the driver root %s: %w", place.DriverRoot, err)
	}
	throughCLI(&generated.ContainerEdits)
	for i := range generated.Devices {
		throughCLI(&generated.Devices[i].ContainerEdits)
	}
	return generated, unanswered, nil
}

func spec(place gpuinfo.Place, logger hclog.Logger) (*cdispecs.Spec, []gpuinfo.Unanswered, error) {
	file, err := driverroot.FindFile(place.DriverRoot, driverroot.NVMLLibrary)
	if err != nil {
		return nil, nil, err
	}
	library := nvml.New(nvml.WithLibraryPath(file))
	generator, err := newGenerator(place, library, logger)
	if err != nil {
		return nil, nil, err
	}
	generated, err := generator.GetSpec("all")
	if err == nil {
		return generated.Raw(), nil, nil
	}
	devices, unanswered, oneByOne := answeringDevices(library, generator)
	if oneByOne != nil || len(devices) == 0 {
		return nil, nil, errors.Join(err, oneByOne)
	}
	common, err := generator.GetCommonEdits()
	if err != nil {
		return nil, nil, err
	}
	return rawSpec(devices, common.ContainerEdits), unanswered, nil
}

// rawSpec joins the devices to a specification as nvcdi does for all devices.
func rawSpec(devices []cdispecs.Device, common *cdispecs.ContainerEdits) *cdispecs.Spec {
	raw := &cdispecs.Spec{Kind: vendor + "/" + class, Devices: devices, ContainerEdits: *common}
	if version, err := cdispecs.MinimumRequiredVersion(raw); err == nil {
		raw.Version = version
	}
	return raw
}

func newGenerator(place gpuinfo.Place, library nvml.Interface, logger hclog.Logger) (nvcdi.Interface, error) {
	namer, err := nvcdi.NewDeviceNamer(nvcdi.DeviceNameStrategyUUID)
	if err != nil {
		return nil, err
	}
	return nvcdi.New(
		nvcdi.WithLogger(nvcdiLogger{logger.Named("nvcdi")}),
		nvcdi.WithMode(nvcdi.ModeNvml),
		nvcdi.WithNvmlLib(library),
		nvcdi.WithDriverRoot(place.DriverRoot),
		nvcdi.WithDevRoot(place.DevRoot()),
		nvcdi.WithDeviceNamers(namer),
		nvcdi.WithVendor(vendor),
		nvcdi.WithClass(class),
		nvcdi.WithNVIDIACDIHookPath(place.CLIPath),
		nvcdi.WithDisabledHooks(disabledHooks...),
		// Without it nvcdi uses a second library, which it also searches outside of the driver root; NVML is enough.
		nvcdi.WithFeatureFlags(nvcdi.FeatureDisableNvsandboxUtils),
	)
}

// throughCLI replaces "tranche NAME …" by "tranche cdi-hook NAME …".
func throughCLI(edits *cdispecs.ContainerEdits) {
	for _, hook := range edits.Hooks {
		hook.Args = slices.Insert(slices.Clone(hook.Args), 1, HookCommand)
	}
}

// nvcdiLogger logs nvcdi's messages. Its warnings are about files that many drivers do not have.
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
