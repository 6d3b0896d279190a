package nvml

import (
	"context"
	"encoding/binary"
	"errors"
	"fmt"
	"io/fs"
	"os"
	"path/filepath"

	gonvml "github.com/NVIDIA/go-nvml/pkg/nvml"
)

// Health is the state of a GPU. A field is nil if it is unknown, which may be temporary: a GPU with MIG instances does not
// report its rows.
type Health struct {
	// Rows are reported by GPUs since Ampere, Pages by older ones.
	Rows  *RemappedRows
	Pages *RetiredPages
	// Uncorrected are errors that ECC detected and could not correct.
	Uncorrected *UncorrectedErrors
	// Recovery is the action that the driver requests, since version 570.
	Recovery *RecoveryAction
	// ComputeMode is the compute mode, which operators and mode mps set.
	ComputeMode *ComputeMode
	// MissingNode is the path of a device node that every CUDA program needs and that does not exist; empty if there is none.
	MissingNode string
}

// RemappedRows counts defective rows of memory that were replaced by spare ones.
type RemappedRows struct {
	// Correctable and Uncorrectable count the rows that were remapped for errors of these kinds.
	Correctable, Uncorrectable int
	// Pending is whether some are remapped only when the GPU is reset. Until then the driver does not use them.
	Pending bool
	// Failed is whether a row could not be remapped, so that the GPU has to be replaced.
	Failed bool
	// BanksWithoutSpares counts the banks of memory without a spare row; nil if unknown.
	BanksWithoutSpares *int64
}

// RetiredPages counts pages of memory that the driver does not use any more.
type RetiredPages struct {
	// Correctable and Uncorrectable count the pages that were retired for repeated corrected errors, and for one that was
	// not corrected.
	Correctable, Uncorrectable int
	// Pending is whether some are retired only when the GPU is reset.
	Pending bool
}

// UncorrectedErrors counts errors since the last reset (Volatile) and since the GPU was made (Aggregate).
type UncorrectedErrors struct {
	Volatile, Aggregate *int64
}

// RecoveryAction is what a GPU needs to work again, as the driver reports it.
type RecoveryAction int

// The recovery actions of NVML.
const (
	RecoveryNone RecoveryAction = iota
	RecoveryReset
	RecoveryReboot
	RecoveryDrainP2P
	RecoveryDrainAndReset
	RecoveryIMEXDomain
	RecoveryBusReset
	RecoverySystemReboot
)

var recoveryTexts = map[RecoveryAction]string{
	RecoveryNone:          "nothing",
	RecoveryReset:         "a reset of the GPU",
	RecoveryReboot:        "a reboot of the node",
	RecoveryDrainP2P:      "that its peer-to-peer traffic be drained",
	RecoveryDrainAndReset: "that its work be drained and the GPU be reset",
	RecoveryIMEXDomain:    "that the IMEX domain be recovered",
	RecoveryBusReset:      "a reset of its PCIe bus",
	RecoverySystemReboot:  "a reboot of the whole system",
}

// String describes the action.
func (a RecoveryAction) String() string {
	if text, ok := recoveryTexts[a]; ok {
		return text
	}
	return fmt.Sprintf("recovery action %d", int(a))
}

// Problem returns why the GPU is unhealthy; empty if it is not. The damage of a single error is reported by an Xid, not
// here.
func (h *Health) Problem() string {
	switch {
	case h.Rows != nil && h.Rows.Failed:
		return "a row of its memory could not be remapped: have the GPU replaced"
	case h.Recovery != nil && *h.Recovery != RecoveryNone:
		return "the driver asks for " + h.Recovery.String()
	case h.MissingNode != "":
		return "the device node " + h.MissingNode + " is missing, so that no CUDA program can start: have the driver create it " +
			"with nvidia-modprobe -u -c 0, at each boot"
	}
	return ""
}

// Warnings returns what an operator should attend to although the GPU works.
func (h *Health) Warnings() []string {
	var warnings []string
	if h.Rows != nil && h.Rows.Pending {
		warnings = append(warnings, "rows of its memory are remapped with the next reset of the GPU")
	}
	if h.Rows != nil && h.Rows.BanksWithoutSpares != nil && *h.Rows.BanksWithoutSpares > 0 {
		warnings = append(warnings, fmt.Sprintf("%d banks of its memory have no spare row left", *h.Rows.BanksWithoutSpares))
	}
	if h.Pages != nil && h.Pages.Pending {
		warnings = append(warnings, "pages of its memory are retired with the next reset of the GPU")
	}
	return warnings
}

var healthQueries = []query[Health]{
	{"remapped rows", "nvmlDeviceGetRemappedRows", queryRows},
	{"spare rows", "nvmlDeviceGetRowRemapperHistogram", querySpareRows},
	{"retired pages", "nvmlDeviceGetRetiredPages", queryPages},
	{"pages to be retired", "nvmlDeviceGetRetiredPagesPendingStatus", queryPendingPages},
	{"uncorrected ECC errors", "nvmlDeviceGetTotalEccErrors", queryUncorrected},
	{"recovery action", "nvmlDeviceGetFieldValues", queryRecovery},
	{"compute mode", "nvmlDeviceGetComputeMode", queryComputeMode},
}

// Health implements Interface.
func (l *Library) Health(ctx context.Context, uuid string) (*Health, error) {
	health, err := queryGPU(ctx, l, uuid, healthQueries)
	if err == nil {
		health.MissingNode = l.missingNode()
	}
	return health, err
}

// missingNode returns the path of the node for unified memory if there is none. The driver creates it when a program asks for it
// on the host; a program in a container cannot.
func (l *Library) missingNode() string {
	if l.injected {
		return ""
	}
	dev := filepath.Join(l.driverRoot, "dev")
	if _, err := os.Stat(filepath.Join(dev, "nvidiactl")); err != nil {
		dev = "/dev" // as NVIDIA's tools do
	}
	node := filepath.Join(dev, "nvidia-uvm")
	if _, err := os.Stat(node); errors.Is(err, fs.ErrNotExist) {
		return node
	}
	return ""
}

func queryRows(device gonvml.Device, h *Health) gonvml.Return {
	correctable, uncorrectable, pending, failed, ret := device.GetRemappedRows()
	if ret == gonvml.SUCCESS {
		h.Rows = &RemappedRows{Correctable: correctable, Uncorrectable: uncorrectable, Pending: pending, Failed: failed}
	}
	return ret
}

func querySpareRows(device gonvml.Device, h *Health) gonvml.Return {
	if h.Rows == nil {
		return gonvml.SUCCESS
	}
	banks, ret := device.GetRowRemapperHistogram()
	return number(banks.None, ret).into(&h.Rows.BanksWithoutSpares)
}

func queryPages(device gonvml.Device, h *Health) gonvml.Return {
	correctable, ret := device.GetRetiredPages(gonvml.PAGE_RETIREMENT_CAUSE_MULTIPLE_SINGLE_BIT_ECC_ERRORS)
	if ret != gonvml.SUCCESS {
		return ret
	}
	uncorrectable, ret := device.GetRetiredPages(gonvml.PAGE_RETIREMENT_CAUSE_DOUBLE_BIT_ECC_ERROR)
	if ret == gonvml.SUCCESS {
		h.Pages = &RetiredPages{Correctable: len(correctable), Uncorrectable: len(uncorrectable)}
	}
	return ret
}

func queryPendingPages(device gonvml.Device, h *Health) gonvml.Return {
	if h.Pages == nil {
		return gonvml.SUCCESS
	}
	pending, ret := device.GetRetiredPagesPendingStatus()
	h.Pages.Pending = ret == gonvml.SUCCESS && pending == gonvml.FEATURE_ENABLED
	return ret
}

func queryUncorrected(device gonvml.Device, h *Health) gonvml.Return {
	var errors UncorrectedErrors
	ret := number(device.GetTotalEccErrors(gonvml.MEMORY_ERROR_TYPE_UNCORRECTED, gonvml.VOLATILE_ECC)).into(&errors.Volatile)
	if ret != gonvml.SUCCESS {
		return ret
	}
	h.Uncorrected = &errors
	return number(device.GetTotalEccErrors(gonvml.MEMORY_ERROR_TYPE_UNCORRECTED, gonvml.AGGREGATE_ECC)).into(&errors.Aggregate)
}

// queryRecovery queries a field, which has a result code besides that of the call.
func queryRecovery(device gonvml.Device, h *Health) gonvml.Return {
	fields := []gonvml.FieldValue{{FieldId: gonvml.FI_DEV_GET_GPU_RECOVERY_ACTION}}
	if ret := device.GetFieldValues(fields); ret != gonvml.SUCCESS {
		return ret
	}
	switch ret := gonvml.Return(fields[0].NvmlReturn); ret {
	case gonvml.SUCCESS:
		action := RecoveryAction(binary.NativeEndian.Uint32(fields[0].Value[:]))
		h.Recovery = &action
		return gonvml.SUCCESS
	case gonvml.ERROR_INVALID_ARGUMENT: // a driver that doesn't know the field
		return gonvml.ERROR_NOT_SUPPORTED
	default:
		return ret
	}
}
