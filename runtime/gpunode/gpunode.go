// Package gpunode recognises NVIDIA's device nodes by their paths.
package gpunode

import "strings"

// Is reports whether a clean path is that of one of NVIDIA's device nodes: GPUs, their control devices, MIG's capabilities,
// NVLink's switches, memory channels between nodes, and those of later drivers.
func Is(file string) bool { return strings.HasPrefix(file, "/dev/nvidia") }
