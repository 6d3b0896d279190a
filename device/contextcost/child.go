package contextcost

// #cgo CFLAGS: -std=c11 -Wall -Wextra -Werror
// #cgo LDFLAGS: -ldl
// #include <stdlib.h>
// #include "context.h"
import "C"

import (
	"context"
	"encoding/hex"
	"encoding/json"
	"errors"
	"fmt"
	"os"
	"strings"
	"unsafe"

	"github.com/tranche-gpu/tranche/device/nvml"
	"github.com/tranche-gpu/tranche/runtime/gpuinfo/driverroot"
)

// plausibleBytes bounds a cost that was measured by the used memory of the whole GPU, which allocations of other processes
// change, too.
const plausibleBytes = 4 << 30

// ChildMain measures and ends the process if it was started to do so, and returns at once otherwise. A binary that uses this
// package calls it before anything else.
func ChildMain() {
	childReady = true
	if os.Args[0] != childName {
		return
	}
	measured, err := measureHere(os.Args[1:])
	if err == nil {
		err = json.NewEncoder(os.Stdout).Encode(measured)
	}
	if err != nil {
		fmt.Fprintln(os.Stderr, err)
		os.Exit(1)
	}
	os.Exit(0)
}

// measureHere creates a context in this process and measures it.
func measureHere(args []string) (*measurement, error) {
	if len(args) != 2 {
		return nil, fmt.Errorf("%s is started by Tranche itself, with a driver root and a GPU", childName)
	}
	ctx, cancel := context.WithTimeout(context.Background(), measureTimeout)
	defer cancel()
	driverRoot, uuid := args[0], args[1]
	return measure(ctx, nvml.New(driverRoot), uuid, func() error { return makeContext(driverRoot, uuid) })
}

// measure measures, by NVML, the context that makeContext creates.
func measure(ctx context.Context, library nvml.Interface, uuid string, makeContext func() error) (*measurement, error) {
	before, err := usedBytes(ctx, library, uuid)
	if err != nil {
		return nil, err
	}
	if err := makeContext(); err != nil {
		return nil, err
	}
	processes, err := library.Processes(ctx, uuid)
	if err != nil {
		return nil, err
	}
	for _, process := range processes {
		if process.PID == os.Getpid() && process.UsedKnown && process.UsedBytes > 0 {
			return &measurement{process.UsedBytes, "process"}, nil
		}
	}
	// NVML does not list this process, because of a PID namespace or of the driver. What remains is the change of the whole
	// GPU's used memory.
	after, err := usedBytes(ctx, library, uuid)
	if err != nil {
		return nil, err
	}
	if after <= before || after-before > plausibleBytes {
		return nil, fmt.Errorf("NVML does not list this process, and the GPU's used memory went from %d to %d bytes, "+
			"which can't be one context", before, after)
	}
	return &measurement{after - before, "difference"}, nil
}

// usedBytes returns the memory of the GPU, or the MIG instance, that all processes use.
func usedBytes(ctx context.Context, library nvml.Interface, uuid string) (uint64, error) {
	node, err := library.Read(ctx)
	if err != nil {
		return 0, err
	}
	for _, gpu := range node.WithInstances(func(instance string) bool { return instance == uuid }) {
		if gpu.UUID == uuid {
			return gpu.UsedBytes, nil
		}
	}
	return 0, fmt.Errorf("NVML does not list the GPU %s", uuid)
}

func makeContext(driverRoot, uuid string) error {
	path, err := driverroot.FindLibrary(driverRoot, driverroot.CUDALibrary)
	if err != nil {
		return err
	}
	raw, err := uuidBytes(uuid)
	if err != nil {
		return err
	}
	libraryPath := C.CString(path)
	defer C.free(unsafe.Pointer(libraryPath))
	var text [512]C.char
	if C.tranche_make_context(libraryPath, (*C.uchar)(&raw[0]), &text[0], C.size_t(len(text))) != 0 {
		return errors.New(C.GoString(&text[0]))
	}
	return nil
}

// uuidBytes converts a UUID from NVML's text to CUDA's 16 bytes.
func uuidBytes(uuid string) ([]byte, error) {
	_, digits, ok := strings.Cut(uuid, "-")
	raw, err := hex.DecodeString(strings.ReplaceAll(digits, "-", ""))
	if !ok || err != nil || len(raw) != 16 {
		return nil, fmt.Errorf("%q is not the UUID of a GPU, which looks like GPU-6f2f5f4c-0b6e-4d7b-9d0c-0a1b2c3d4e5f", uuid)
	}
	return raw, nil
}
