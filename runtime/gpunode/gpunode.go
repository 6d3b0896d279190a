// Package gpunode tells NVIDIA's device nodes from others by their paths.
package gpunode

import "strings"

// Is tells whether a path is that of one of NVIDIA's device nodes: GPUs, their control, MIG's capabilities, NVLink's
// switches, memory channels between nodes, and what the next driver brings. The path is clean.
func Is(file string) bool { return strings.HasPrefix(file, "/dev/nvidia") }
