// Package nomadtest makes what an agent of Nomad gives its plugins, for tests and benchmarks.
package nomadtest

import "github.com/hashicorp/nomad/plugins/drivers"

// Resources returns those of a task. Where memoryMaxMB is 0, memory is its limit.
func Resources(linux drivers.LinuxResources, cpuShares, memoryMB, memoryMaxMB int64) *drivers.Resources {
	resources := &drivers.Resources{LinuxResources: &linux}
	nomad := allocate(&resources.NomadResources)
	nomad.Cpu.CpuShares = cpuShares
	nomad.Memory.MemoryMB, nomad.Memory.MemoryMaxMB = memoryMB, memoryMaxMB
	return resources
}

// allocate sets a pointer to a new value of a type that need not be named: the package that has it is not to be imported.
func allocate[T any](pointer **T) *T {
	*pointer = new(T)
	return *pointer
}
