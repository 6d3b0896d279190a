//go:build tools

// Package nvidia pins NVIDIA's own container runtime, beside which the tests run Tranche's. Its counterpart in C,
// nvidia-container-cli, is not to be had as a Go module: e2e/simgpu/nvidiacli stands in for it.
package nvidia

import (
	_ "github.com/NVIDIA/nvidia-container-toolkit/cmd/nvidia-cdi-hook"
	_ "github.com/NVIDIA/nvidia-container-toolkit/cmd/nvidia-container-runtime"
	_ "github.com/NVIDIA/nvidia-container-toolkit/cmd/nvidia-container-runtime-hook"
)
