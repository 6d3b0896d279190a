package spec

import (
	"errors"
	"fmt"
	"math"
	"os"
	"path/filepath"
	"strconv"
	"strings"

	"github.com/containerd/containerd/v2/pkg/oci"
	"github.com/hashicorp/nomad/plugins/drivers"
	"github.com/opencontainers/runtime-spec/specs-go"

	"github.com/tranche-gpu/tranche/driver/cgroup"
	"github.com/tranche-gpu/tranche/internal/size"
)

// unlimitedMemory is the memory_max of tasks that Nomad places by their memory, and that may use more without a limit.
const unlimitedMemory = -1

// unlimitedSwap is the memory_swap of tasks that may swap as much as the node can.
const unlimitedSwap = -1

// withMemory sets the memory limit: memory_max where the task has one, with memory as what the kernel reduces it to under
// pressure, else memory. There is no swap beyond that.
func withMemory(cfg *drivers.TaskConfig, limitSwap bool) oci.SpecOpts {
	return specOption(func(s *Spec) error {
		limit, reservation := MemoryBytes(cfg)
		if limit <= 0 && reservation <= 0 {
			return nil
		}
		memory := &specs.LinuxMemory{}
		if limit > 0 {
			memory.Limit = &limit
			if limitSwap {
				memory.Swap = &limit
			}
		}
		if reservation > 0 {
			memory.Reservation = &reservation
		}
		resources(s).Memory = memory
		return nil
	})
}

// MemoryBytes returns the task's memory limit, and what is reserved for it where that is less; 0 for none.
func MemoryBytes(cfg *drivers.TaskConfig) (limit, reservation int64) {
	if cfg.Resources == nil {
		return 0, 0
	}
	if linux := cfg.Resources.LinuxResources; linux != nil {
		limit = linux.MemoryLimitBytes
	}
	if nomad := cfg.Resources.NomadResources; nomad != nil {
		if nomad.Memory.MemoryMaxMB == unlimitedMemory {
			return 0, nomad.Memory.MemoryMB * size.MiB
		}
		if nomad.Memory.MemoryMaxMB > nomad.Memory.MemoryMB {
			reservation = nomad.Memory.MemoryMB * size.MiB
		}
		limit = max(limit, nomad.Memory.MemoryMaxMB*size.MiB)
		if limit <= 0 {
			limit = nomad.Memory.MemoryMB * size.MiB
		}
	}
	return limit, reservation
}

// hostAccountsSwap reports whether the kernel can limit memory and swap together. On cgroup v1 that is a boot option, and
// runc fails where it is set but not there.
func hostAccountsSwap() bool {
	if cgroup.Unified() {
		return true
	}
	_, err := os.Stat(filepath.Join(cgroup.Root, "memory/memory.memsw.limit_in_bytes"))
	return err == nil
}

// withMemorySwap lets the task have swap besides its memory. It is applied after withMemory, which sets the limit.
func withMemorySwap(options *TaskConfig, accountsSwap bool) oci.SpecOpts {
	return specOption(func(s *Spec) error {
		if options.MemorySwap == "" {
			return nil
		}
		swap, err := options.swapBytes()
		if err != nil {
			return err
		}
		memory := resources(s).Memory
		switch {
		case !accountsSwap:
			return fmt.Errorf("option memory_swap = %q: the kernel of this node does not account for swap; it does when it is "+
				"started with swapaccount=1, or with cgroup v2", options.MemorySwap)
		case memory == nil || memory.Limit == nil:
			return fmt.Errorf("option memory_swap = %q: the task has no limit of memory that it could be added to",
				options.MemorySwap)
		case swap != unlimitedSwap && swap < *memory.Limit:
			return fmt.Errorf("option memory_swap = %q: it is memory and swap together, and must be at least the task's memory "+
				"(memory_max where it has one) of %d MiB", options.MemorySwap, *memory.Limit/size.MiB)
		}
		memory.Swap = &swap
		return nil
	})
}

// withMemorySwappiness sets how readily the kernel swaps the task's memory out. cgroup v2 has this for the whole node only.
func withMemorySwappiness(options *TaskConfig, unified bool) oci.SpecOpts {
	return specOption(func(s *Spec) error {
		if options.MemorySwappiness == nil {
			return nil
		}
		swappiness := uint64(*options.MemorySwappiness)
		if unified {
			return fmt.Errorf("option memory_swappiness = %d: this node has cgroup v2, which knows no swappiness of a task; "+
				"leave the option out, and bound the swap with memory_swap", swappiness)
		}
		if resources(s).Memory == nil {
			resources(s).Memory = &specs.LinuxMemory{}
		}
		resources(s).Memory.Swappiness = &swappiness
		return nil
	})
}

// swapBytes returns memory_swap in bytes, or unlimitedSwap.
func (c *TaskConfig) swapBytes() (int64, error) {
	if c.MemorySwap == "-1" {
		return unlimitedSwap, nil
	}
	bytes, err := size.Parse(c.MemorySwap)
	if err != nil {
		return 0, fmt.Errorf("option memory_swap: %w, or \"-1\" for as much swap as the node has", err)
	}
	return int64(bytes), nil
}

// checkMemory checks the options memory_swap and memory_swappiness, as far as they do not depend on the node.
func (c *TaskConfig) checkMemory() error {
	var errs []error
	if c.MemorySwap != "" {
		_, err := c.swapBytes()
		errs = append(errs, err)
	}
	if s := c.MemorySwappiness; s != nil && (*s < 0 || *s > 100) {
		errs = append(errs, fmt.Errorf("option memory_swappiness = %d: must be from 0 (seldom) to 100", *s))
	}
	return errors.Join(errs...)
}

// withShmSize sets the size of /dev/shm.
func withShmSize(options *TaskConfig) oci.SpecOpts {
	return specOption(func(s *Spec) error {
		if options.ShmSize == "" {
			return nil
		}
		bytes, err := options.shmBytes()
		if err != nil {
			return err
		}
		const kib = 1024
		return oci.WithDevShmSize(bytes/kib+min(1, bytes%kib))(nil, nil, nil, s)
	})
}

// shmBytes returns shm_size in bytes. In the docker driver it is a plain number of bytes.
func (c *TaskConfig) shmBytes() (int64, error) {
	text := strings.TrimSpace(c.ShmSize)
	bytes, err := strconv.ParseInt(text, 10, 64)
	if err != nil {
		var amount uint64
		amount, err = size.Parse(text)
		bytes = int64(min(amount, math.MaxInt64))
	}
	if err != nil || bytes <= 0 {
		return 0, fmt.Errorf("option shm_size = %q: must be a number of bytes greater than zero, or a size with its unit, such "+
			"as \"256MiB\"", c.ShmSize)
	}
	return bytes, nil
}

// checkShmSize checks the option shm_size.
func (c *TaskConfig) checkShmSize() error {
	if c.ShmSize == "" {
		return nil
	}
	if _, err := c.shmBytes(); err != nil {
		return err
	}
	if c.IPCMode == "host" {
		return fmt.Errorf("option shm_size = %q: with ipc_mode = \"host\" the task has the node's /dev/shm; leave one of the "+
			"two out", c.ShmSize)
	}
	return nil
}
