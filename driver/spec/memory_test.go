package spec

import (
	"fmt"
	"testing"

	"github.com/hashicorp/nomad/plugins/drivers"
	"github.com/opencontainers/runtime-spec/specs-go"
	"github.com/shoenig/test/must"

	"github.com/tranche-gpu/tranche/internal/size"
)

func TestWithMemory(t *testing.T) {
	memory := apply(t, withMemory(resourcesOf(drivers.LinuxResources{MemoryLimitBytes: 64 * size.MiB}, 64, 0), true)).
		Linux.Resources.Memory
	must.Eq(t, 64*size.MiB, *memory.Limit)
	must.Eq(t, 64*size.MiB, *memory.Swap)
	must.Nil(t, memory.Reservation)

	memory = apply(t, withMemory(resourcesOf(drivers.LinuxResources{MemoryLimitBytes: 256 * size.MiB}, 64, 256), false)).
		Linux.Resources.Memory
	must.Eq(t, 256*size.MiB, *memory.Limit)
	must.Eq(t, 64*size.MiB, *memory.Reservation)
	must.Nil(t, memory.Swap)

	unlimited := withMemory(resourcesOf(drivers.LinuxResources{MemoryLimitBytes: 64 * size.MiB}, 64, -1), true)
	memory = apply(t, unlimited).Linux.Resources.Memory
	must.Nil(t, memory.Limit)
	must.Nil(t, memory.Swap)
	must.Eq(t, 64*size.MiB, *memory.Reservation)
	_, err := tryApply(unlimited, withMemorySwap(&TaskConfig{MemorySwap: "128MiB"}, true))
	must.ErrorContains(t, err, "no limit of memory")

	must.Nil(t, apply(t, withMemory(&drivers.TaskConfig{}, true)).Linux.Resources)
}

func TestWithMemorySwap(t *testing.T) {
	limited := withMemory(resourcesOf(drivers.LinuxResources{MemoryLimitBytes: 64 * size.MiB}, 64, 0), true)
	swapOf := func(text string, accounted bool) (*Spec, error) {
		return tryApply(limited, withMemorySwap(&TaskConfig{MemorySwap: text}, accounted))
	}
	for text, want := range map[string]int64{"": 64 * size.MiB, "-1": -1, "64MiB": 64 * size.MiB, "1GiB": 1024 * size.MiB} {
		s, err := swapOf(text, true)
		must.NoError(t, err)
		must.Eq(t, want, *s.Linux.Resources.Memory.Swap)
	}
	_, err := swapOf("32MiB", true)
	must.ErrorContains(t, err, `option memory_swap = "32MiB"`)
	must.ErrorContains(t, err, "at least the task's memory (memory_max where it has one) of 64 MiB")
	_, err = swapOf("128MiB", false)
	must.ErrorContains(t, err, `option memory_swap = "128MiB": the kernel of this node does not account for swap`)
	_, err = tryApply(withMemorySwap(&TaskConfig{MemorySwap: "128MiB"}, true))
	must.ErrorContains(t, err, "no limit of memory")
}

func TestWithMemorySwappiness(t *testing.T) {
	ten := int64(10)
	asked := &TaskConfig{MemorySwappiness: &ten}
	must.Eq(t, 10, *apply(t, withMemorySwappiness(asked, false)).Linux.Resources.Memory.Swappiness)
	must.Nil(t, apply(t, withMemorySwappiness(&TaskConfig{}, true)).Linux.Resources)
	_, err := tryApply(withMemorySwappiness(asked, true))
	must.ErrorContains(t, err, "option memory_swappiness = 10: this node has cgroup v2")
}

func TestWithShmSize(t *testing.T) {
	shm := func() specs.Mount {
		return specs.Mount{Destination: "/dev/shm", Type: "tmpfs", Source: "shm", Options: []string{"nosuid", "size=65536k"}}
	}
	for text, want := range map[string]int{"": 65536, "134217728": 131072, "1025": 2, "256MiB": 262144} {
		s := apply(t, specOption(func(s *Spec) error { s.Mounts = append(s.Mounts, shm()); return nil }),
			withShmSize(&TaskConfig{ShmSize: text}))
		must.Eq(t, []string{"nosuid", fmt.Sprintf("size=%dk", want)}, s.Mounts[0].Options)
	}
}
