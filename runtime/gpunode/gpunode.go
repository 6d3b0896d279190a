// Package gpunode tells NVIDIA's device nodes from others by their paths.
package gpunode

import "strings"

// Is tells whether a path is that of one of NVIDIA's device nodes: GPUs, their control, MIG's capabilities, NVLink's
// switches, memory channels between nodes. The path is clean.
func Is(file string) bool {
	rest, ok := strings.CutPrefix(file, "/dev/nvidia")
	return ok && (rest == "" || rest == "ctl" || strings.ContainsRune("0123456789/-", rune(rest[0])))
}
